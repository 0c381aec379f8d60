//! Parallel layout and context window that fit.

use serde_json::Value;

use super::command::Options;
use super::cpu_memory::{CpuNeeds, plan_cpu_memory};
use super::error::PlanError;
use super::kv::{AttentionDevice, KvLayout, KvOptions, kv_layout};
use super::make::warning;
use super::model::{MemoryRow, PlanChange, PlanWarning};
use crate::config::{ContextWanted, Origin, OriginKind, Setting, Settings};
use crate::facts::{Facts, Gpu};
use crate::units::{Bytes, Tokens};

/// vLLM's default on CPU (0.32): batches of a server.
const CPU_BATCHED_TOKENS: u64 = 2048;
/// How far the search goes, so that a message can name a length above the wanted one.
const MOST_SEARCHED: u64 = 1 << 24;
/// Version from which `--max-model-len auto` is known to work.
const AUTO_CONTEXT: (u64, u64) = (0, 15);

/// Weights may take this share, in percent, of what the engine may use; the rest is for activations and
/// the KV cache.
const WEIGHTS_SHARE: u64 = 88;

/// What fits, and why.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fit {
    pub hardware: String,
    pub fits: bool,
    pub verdict: String,
    /// Context window; `None` when the engine decides.
    pub context: Option<Tokens>,
    /// Value of `--max-model-len`; `None` leaves the flag out.
    pub max_model_len: Option<Setting<Value>>,
    pub context_reason: String,
    pub kv_cache_tokens: Option<Tokens>,
    /// `VLLM_CPU_KVCACHE_SPACE` with its reason.
    pub kv_space: Option<(String, String)>,
    pub memory: Vec<MemoryRow>,
    pub warnings: Vec<PlanWarning>,
    /// Changes that would let more fit.
    pub changes: Vec<PlanChange>,
}

/// How the model is spread over ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub tensor_parallel: u64,
    pub pipeline_parallel: u64,
    pub data_parallel: u64,
    pub reason: String,
}

impl Layout {
    /// Worker processes in all.
    pub const fn ranks(&self) -> u64 {
        self.tensor_parallel.saturating_mul(self.pipeline_parallel).saturating_mul(self.data_parallel)
    }

    /// As given; otherwise one rank, or all GPUs where the weights need more than one.
    pub fn choose(settings: &Settings, facts: &Facts, options: &Options) -> Result<Self, PlanError> {
        let given = options.whole("tensor_parallel_size")?;
        let pipeline = options.whole("pipeline_parallel_size")?.unwrap_or(1);
        let data = options.whole("data_parallel_size")?.unwrap_or(1);
        let gpus = if facts.engine.is_cpu_build { Vec::new() } else { chosen_gpus(settings, facts)? };
        let (tensor, reason) = match given {
            Some(given) => (given, String::new()),
            None => choose_tensor_parallel(facts, options, &gpus, pipeline)?,
        };
        let tensor = tensor.max(1);
        let heads = facts.model.config.as_ref().and_then(|config| config.heads);
        if let Some(heads) = heads.filter(|heads| !heads.is_multiple_of(tensor)) {
            return Err(PlanError::BadOption {
                place: options.origin("tensor_parallel_size").map_or("the plan", Origin::place).to_owned(),
                key: "tensor_parallel_size".to_owned(),
                message: format!("must divide the model's {heads} attention heads; {tensor} does not"),
            });
        }
        let layout =
            Self { tensor_parallel: tensor, pipeline_parallel: pipeline, data_parallel: data, reason };
        if !facts.engine.is_cpu_build && layout.ranks() > gpus.len() as u64 {
            return Err(PlanError::BadOption {
                place: options.origin("tensor_parallel_size").map_or("the plan", Origin::place).to_owned(),
                key: "tensor_parallel_size".to_owned(),
                message: format!("asks for {} GPUs in all; there are {}", layout.ranks(), gpus.len()),
            });
        }
        Ok(layout)
    }
}

/// The smallest tensor parallel size whose ranks hold the weights with room beside them.
fn choose_tensor_parallel(
    facts: &Facts,
    options: &Options,
    gpus: &[&Gpu],
    pipeline: u64,
) -> Result<(u64, String), PlanError> {
    let count = gpus.len() as u64 / pipeline.max(1);
    let heads = facts.model.config.as_ref().and_then(|config| config.heads);
    let mut sizes: Vec<u64> = (0..7).map(|power| 1 << power).filter(|size| *size < count).collect();
    sizes.push(count);
    sizes.retain(|size| *size > 0 && heads.is_none_or(|heads| heads.is_multiple_of(*size)));
    let Some(largest) = sizes.last().copied() else { return Ok((1, "one rank holds the model".to_owned())) };
    let budget = super::gpu_fit::binding_budget(facts, options, gpus)?;
    for size in sizes {
        let weights = super::gpu_fit::rank_estimate(facts, size, pipeline, options)?;
        let (Some(weights), Some(budget)) = (weights, budget) else {
            return Ok((1, "its weights are not known".to_owned()));
        };
        let room = Bytes::new(budget.requested().as_u64() / 100 * WEIGHTS_SHARE);
        if weights.likely <= room {
            let reason = if size == 1 {
                "one GPU holds the weights".to_owned()
            } else {
                format!("weights of {} a GPU leave room on {size}, and not on fewer", weights.likely)
            };
            return Ok((size, reason));
        }
    }
    Ok((largest, "the weights need all GPUs".to_owned()))
}

pub(super) fn chosen_gpus<'a>(settings: &Settings, facts: &'a Facts) -> Result<Vec<&'a Gpu>, PlanError> {
    let all = &facts.gpus.gpus;
    if all.is_empty() {
        let reason = facts.gpus.absent_because.clone().unwrap_or_else(|| "there is no GPU".to_owned());
        return Err(PlanError::NoGpu { reason });
    }
    let Some(chosen) = &settings.gpus else { return Ok(all.iter().collect()) };
    let find = |index: &u32| {
        all.iter().find(|gpu| gpu.index == *index).ok_or_else(|| PlanError::NoSuchGpu {
            place: chosen.origin.place().to_owned(),
            index: *index,
            found: format!("there are {}, numbered from 0", all.len()),
        })
    };
    chosen.value.iter().map(find).collect()
}

/// The window to aim for: what was wanted, within the model's own length and the profile's maximum.
pub(super) fn target(settings: &Settings, facts: &Facts) -> Result<Option<Tokens>, PlanError> {
    let config = facts.model.config.as_ref();
    let max = config.and_then(|config| config.max_len);
    let allowed_longer =
        settings.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN").is_some_and(|value| value.value == "1");
    let most = |tokens: Tokens| settings.context_max.as_ref().map_or(tokens, |limit| tokens.min(limit.value));
    match settings.context.value {
        ContextWanted::Exactly(wanted) => match max.filter(|max| wanted > *max && !allowed_longer) {
            Some(max) => {
                let place = settings.context.origin.place().to_owned();
                Err(PlanError::ContextAboveModel { place, wanted, max })
            }
            None => Ok(Some(wanted)),
        },
        ContextWanted::Auto => Ok(config.and_then(|config| config.auto_len).or(max).map(most)),
    }
}

/// What fits into the host's memory.
pub(super) fn fit_cpu(
    settings: &Settings,
    facts: &Facts,
    options: &Options,
    layout: &Layout,
) -> Result<Fit, PlanError> {
    let target = target(settings, facts)?;
    let kv_options = KvOptions {
        tensor_parallel: layout.tensor_parallel,
        pipeline_parallel: layout.pipeline_parallel,
        context_parallel: 1,
        dtype: options.text("kv_cache_dtype"),
        block: options.whole("block_size")?,
        version: &facts.engine.version,
        device: AttentionDevice::cpu(&facts.host.cpu_flags),
        batched_tokens: options.whole("max_num_batched_tokens")?.unwrap_or(CPU_BATCHED_TOKENS),
        sparse_is_fp8: false,
        prediction_layers: 0,
        speculative_tokens: 0,
    };
    let shape = match &facts.model.config {
        Some(config) => kv_layout(config, kv_options),
        None => Err("config.json is not on this machine".to_owned()),
    };
    let given_space = given_space(settings)?;
    let memory = plan_cpu_memory(CpuNeeds {
        weights: facts.model.weights,
        available: facts.host.memory_available,
        ranks: layout.ranks(),
        shape: shape.as_ref().ok(),
        context: target,
        given_space,
    });
    let mut fit = Fit {
        hardware: describe_host(facts),
        fits: true,
        verdict: String::new(),
        context: None,
        max_model_len: None,
        context_reason: String::new(),
        kv_cache_tokens: None,
        kv_space: given_space.is_none().then(|| (gib_text(memory.space), memory.reason.clone())),
        memory: memory.rows,
        warnings: Vec::new(),
        changes: Vec::new(),
    };
    match &shape {
        Ok(shape) => choose_context(&mut fit, settings, shape, memory.space, target),
        Err(reason) => leave_context_to_engine(&mut fit, settings, facts, target, reason),
    }
    if memory.fits == Some(false) {
        let available = facts.host.memory_available.unwrap_or_default();
        fit.fits = false;
        fit.verdict = format!("it needs {} of memory and {available} are available", memory.total);
    }
    Ok(fit)
}

fn gib_text(space: Bytes) -> String {
    (space.as_u64() / Bytes::from_gib(1).as_u64()).to_string()
}

/// `VLLM_CPU_KVCACHE_SPACE` in GiB, as the user set it.
fn given_space(settings: &Settings) -> Result<Option<Bytes>, PlanError> {
    let Some(given) = settings.env.get("VLLM_CPU_KVCACHE_SPACE") else { return Ok(None) };
    let gib = given.value.trim().parse::<u64>().ok().filter(|gib| (1..=65_536).contains(gib));
    gib.map(|gib| Some(Bytes::from_gib(gib))).ok_or_else(|| PlanError::BadOption {
        place: given.origin.place().to_owned(),
        key: "VLLM_CPU_KVCACHE_SPACE".to_owned(),
        message: "must be a whole number of GiB, at least 1".to_owned(),
    })
}

fn choose_context(
    fit: &mut Fit,
    settings: &Settings,
    shape: &KvLayout,
    space: Bytes,
    target: Option<Tokens>,
) {
    let Some(target) = target else {
        "as far as is known: the model does not say how long its context may be".clone_into(&mut fit.verdict);
        return;
    };
    let Some(longest) = shape.longest(space, Tokens::new(target.as_u64().max(MOST_SEARCHED))) else {
        fit.fits = false;
        fit.verdict = format!("{space} of KV cache hold not one token");
        return;
    };
    let exact = matches!(settings.context.value, ContextWanted::Exactly(_));
    let context = if exact || target <= longest { target } else { longest };
    fit.context = Some(context);
    fit.kv_cache_tokens = Some(shape.printed(space, context));
    let origin = if settings.context.origin.kind > OriginKind::Planned {
        settings.context.origin.clone()
    } else {
        Origin::planned("the longest that fits, up to the model's own length")
    };
    fit.max_model_len = Some(Setting::new(Value::from(context.as_u64()), origin));
    let needed = shape.needed(target);
    if target <= longest {
        fit.verdict = format!("with a {context}-token context");
    } else if exact {
        fit.fits = false;
        fit.verdict = format!(
            "a {target}-token context needs {needed} of KV cache and there are {space}, which hold {longest} tokens"
        );
    } else {
        fit.verdict = format!(
            "with a {context}-token context (the model's own {target} would need {needed} of KV cache)"
        );
        fit.context_reason = format!("{space} of KV cache hold no more");
    }
    let min = settings.context_min.as_ref().map_or(Tokens::new(1), |min| min.value);
    if context < min {
        fit.fits = false;
        let place = settings.context_min.as_ref().map_or("kdeploy", |min| min.origin.place());
        fit.verdict =
            format!("the longest context that fits is {context} tokens and {place} asks for {min} at least");
    }
}

pub(super) fn leave_context_to_engine(
    fit: &mut Fit,
    settings: &Settings,
    facts: &Facts,
    target: Option<Tokens>,
    reason: &str,
) {
    fit.warnings.push(warning(
        "kv-cache-not-planned",
        &format!("how long a context fits is not known before the start: {reason}"),
    ));
    let origin = settings.context.origin.clone();
    match settings.context.value {
        ContextWanted::Exactly(wanted) => {
            fit.context = Some(wanted);
            fit.max_model_len = Some(Setting::new(Value::from(wanted.as_u64()), origin));
            fit.verdict = format!("as far as is known, with a {wanted}-token context");
        }
        ContextWanted::Auto if facts.engine.version.is_at_least(AUTO_CONTEXT.0, AUTO_CONTEXT.1) => {
            let capped = settings.context_max.is_some().then_some(target).flatten();
            fit.max_model_len = Some(match capped {
                Some(tokens) => Setting::new(Value::from(tokens.as_u64()), origin),
                None => Setting::new(
                    Value::from("auto"),
                    Origin::planned("the engine finds the longest that fits"),
                ),
            });
            "as far as is known; the engine finds the longest context that fits".clone_into(&mut fit.verdict);
        }
        ContextWanted::Auto => {
            "as far as is known; this engine takes the model's own context length"
                .clone_into(&mut fit.verdict);
        }
    }
}

fn describe_host(facts: &Facts) -> String {
    let cores = match facts.host.cpus {
        Some(1) => ", 1 core".to_owned(),
        Some(n) => format!(", {n} cores"),
        None => String::new(),
    };
    let memory = facts.host.memory_total.map(|memory| format!(", {memory}")).unwrap_or_default();
    format!("CPU{cores}{memory}")
}

pub(super) fn describe_gpus(gpus: &[&Gpu]) -> String {
    let first = gpus.first();
    let name = first.and_then(|gpu| gpu.name.clone()).unwrap_or_else(|| "GPU of unknown name".to_owned());
    let capability = first.and_then(|gpu| gpu.compute_capability).map(|cc| cc.to_string());
    let memory = gpus.iter().filter_map(|gpu| gpu.memory_total).min().map(|memory| format!("{memory} each"));
    let details: Vec<String> = [capability, memory].into_iter().flatten().collect();
    let details = if details.is_empty() { String::new() } else { format!(" ({})", details.join(", ")) };
    format!("{} x {name}{details}", gpus.len())
}
