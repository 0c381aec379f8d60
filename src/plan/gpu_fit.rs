//! What fits on GPUs: the ledger of the rank that binds, the context window beside it, and what would
//! let more fit.

use serde_json::Value;

use super::command::Options;
use super::error::PlanError;
use super::fit::{Fit, Layout, chosen_gpus, describe_gpus, leave_context_to_engine, target};
use super::gpu_memory::{Budget, Fits, Ledger};
use super::kv::{AttentionDevice, KvLayout, KvOptions, kv_layout};
use super::make::warning;
use super::model::{MemoryRow, PlanChange};
use super::overheads::{Estimate, OverheadOptions, activations, cuda_graphs, non_torch};
use super::weights::{Spread, computed_inventory, rank_weights};
use crate::config::{ContextWanted, MemoryItem, Origin, OriginKind, Setting, Settings};
use crate::facts::{Facts, Gpu, Learned, ModelConfig};
use crate::units::{Bytes, Tokens};

/// A context that was chosen is rounded down to a multiple of this.
const CONTEXT_STEP: u64 = 1024;

/// The budget of the GPU that binds; `None` when no GPU tells its memory.
pub(super) fn binding_budget(
    facts: &Facts,
    options: &Options,
    gpus: &[&Gpu],
) -> Result<Option<Budget>, PlanError> {
    // 0.92 since 0.31, 0.90 before (vllm-memory.md 1).
    let default = if facts.engine.version.is_at_least(0, 31) { 920 } else { 900 };
    let utilization = options.thousandths("gpu_memory_utilization")?.unwrap_or(default);
    Ok(gpus.iter().filter_map(|gpu| Budget::of(gpu, utilization)).min_by_key(|budget| budget.requested()))
}

/// Weights of the heaviest rank; `None` when they are not known.
pub(super) fn rank_estimate(
    facts: &Facts,
    tensor_parallel: u64,
    pipeline_parallel: u64,
    options: &Options,
) -> Result<Option<Estimate>, PlanError> {
    let Some(config) = &facts.model.config else { return Ok(None) };
    let spread = Spread {
        tensor_parallel,
        pipeline_parallel,
        expert_parallel: options.is_on("enable_expert_parallel").then(|| {
            tensor_parallel.saturating_mul(options.whole("data_parallel_size").ok().flatten().unwrap_or(1))
        }),
        prediction: speculative_tokens(options) > 0,
    };
    let per_mille = |bytes: Bytes, share: u64| Bytes::new(bytes.as_u64() / 1000 * share);
    if let Some(inventory) = &facts.model.inventory {
        let rank = rank_weights(inventory, config, spread);
        let high = per_mille(rank.heaviest, 1010);
        return Ok(Some(Estimate { low: rank.heaviest, likely: rank.heaviest, high, source: rank.source }));
    }
    if let Ok(inventory) = computed_inventory(config) {
        let rank = rank_weights(&inventory, config, spread);
        let (low, high) = (per_mille(rank.heaviest, 990), per_mille(rank.heaviest, 1020));
        return Ok(Some(Estimate { low, likely: rank.heaviest, high, source: rank.source }));
    }
    let shards = tensor_parallel.saturating_mul(pipeline_parallel).max(1);
    Ok(facts.model.weights.map(|weights| {
        let share = Bytes::new(weights.as_u64().div_ceil(shards));
        let source = format!("sum of the weight files / {shards}");
        Estimate { low: share, likely: share, high: per_mille(share, 1100), source }
    }))
}

fn speculative_tokens(options: &Options) -> u64 {
    options.field("speculative_config", "num_speculative_tokens").unwrap_or(0)
}

/// vLLM's defaults by the device's size (0.32): batched tokens and sequences of a server.
const fn engine_defaults(total: Bytes) -> (u64, u64) {
    let gib = total.as_u64() >> 30;
    match gib {
        160.. => (16_384, 1024),
        70..160 => (8192, 1024),
        _ => (2048, 256),
    }
}

/// What fits on the GPUs.
pub(super) fn fit_gpu(
    settings: &Settings,
    facts: &Facts,
    options: &Options,
    layout: &Layout,
    learned: Option<&Learned>,
) -> Result<Fit, PlanError> {
    let target = target(settings, facts)?;
    let gpus = chosen_gpus(settings, facts)?;
    let used = usize::try_from(layout.ranks()).unwrap_or(gpus.len()).min(gpus.len());
    let used = gpus.get(..used).unwrap_or_default();
    let mut fit = Fit {
        hardware: describe_gpus(&gpus),
        fits: true,
        verdict: String::new(),
        context: None,
        max_model_len: None,
        context_reason: String::new(),
        kv_cache_tokens: None,
        kv_space: None,
        memory: Vec::new(),
        warnings: Vec::new(),
        changes: Vec::new(),
    };
    let budget = binding_budget(facts, options, used)?;
    let config = facts.model.config.as_ref();
    let (Some(budget), Some(config)) = (budget, config) else {
        let reason =
            if budget.is_none() { "no GPU tells its memory" } else { "config.json is not on this machine" };
        leave_context_to_engine(&mut fit, settings, facts, target, reason);
        return Ok(fit);
    };
    let overheads = overhead_options(facts, options, layout, budget, used)?;
    let ledger = draw_up(settings, facts, options, layout, overheads, budget)?;
    let Some(ledger) = ledger.map(|ledger| with_learned(ledger, learned)) else {
        let reason = "the sizes of its weights or activations are not known";
        leave_context_to_engine(&mut fit, settings, facts, target, reason);
        weigh_alone(&mut fit, facts, options, layout, budget)?;
        check_free_memory(&mut fit, budget);
        return Ok(fit);
    };
    check_free_memory(&mut fit, budget);
    warn_of_gaps(&mut fit, facts, config, options);
    let kv = kv_layout(config, kv_options(facts, options, layout, overheads.batched_tokens)?);
    match (kv, target) {
        (Ok(kv), Some(target)) => {
            choose_context(&mut fit, settings, &ledger, &kv, target);
            if !fit.fits || fit.context.is_some_and(|context| context < target) {
                fit.changes = changes(config, options, &ledger, &kv, overheads, target, fit.context);
            }
        }
        (kv, _) => {
            fit.memory = ledger.table(None);
            let reason =
                kv.err().unwrap_or_else(|| "the model does not say how long its context may be".to_owned());
            leave_context_to_engine(&mut fit, settings, facts, target, &reason);
            if ledger.available()[2] == Bytes::ZERO {
                fit.fits = false;
                fit.verdict = format!("weights of {} leave nothing for a KV cache", ledger.weights.likely);
            }
        }
    }
    Ok(fit)
}

/// Where nothing else is known: the weights alone must fit.
fn weigh_alone(
    fit: &mut Fit,
    facts: &Facts,
    options: &Options,
    layout: &Layout,
    budget: Budget,
) -> Result<(), PlanError> {
    let weights = rank_estimate(facts, layout.tensor_parallel, layout.pipeline_parallel, options)?;
    let Some(weights) = weights else { return Ok(()) };
    let row = |item: &str, bytes, source: &str| MemoryRow {
        item: item.to_owned(),
        bytes,
        source: source.to_owned(),
    };
    fit.memory.push(row("weights", weights.likely, &weights.source));
    fit.memory.push(row("all", budget.total, "memory of the smallest GPU"));
    if weights.likely >= budget.requested() {
        fit.fits = false;
        fit.verdict = format!(
            "the weights alone need {} on each GPU and the engine may use {}",
            weights.likely,
            budget.requested()
        );
    }
    Ok(())
}

fn overhead_options<'a>(
    facts: &'a Facts,
    options: &Options,
    layout: &Layout,
    budget: Budget,
    used: &[&Gpu],
) -> Result<OverheadOptions<'a>, PlanError> {
    let (batched, sequences) = engine_defaults(budget.total);
    Ok(OverheadOptions {
        version: &facts.engine.version,
        tensor_parallel: layout.tensor_parallel,
        batched_tokens: options.whole("max_num_batched_tokens")?.unwrap_or(batched),
        sequences: options.whole("max_num_seqs")?.unwrap_or(sequences),
        enforce_eager: options.is_on("enforce_eager"),
        nvlink: used.iter().map(|gpu| gpu.nvlink).reduce(|a, b| Some(a? && b?)).flatten(),
    })
}

fn draw_up(
    settings: &Settings,
    facts: &Facts,
    options: &Options,
    layout: &Layout,
    overheads: OverheadOptions<'_>,
    budget: Budget,
) -> Result<Option<Ledger>, PlanError> {
    let Some(config) = &facts.model.config else { return Ok(None) };
    let weights = rank_estimate(facts, layout.tensor_parallel, layout.pipeline_parallel, options)?;
    let (Some(weights), Ok(activations)) = (weights, activations(config, overheads)) else { return Ok(None) };
    let given = |item: MemoryItem, planned: Estimate| match settings.assumed.get(&item) {
        Some(bytes) => Estimate::known(*bytes, "assumed, as given".to_owned()),
        None => planned,
    };
    Ok(Some(Ledger {
        budget,
        weights: given(MemoryItem::Weights, weights),
        activations: given(MemoryItem::Activations, activations),
        graphs: given(MemoryItem::Graphs, cuda_graphs(overheads)),
        outside: given(MemoryItem::Outside, non_torch(overheads)),
    }))
}

/// Measured rows win over estimated ones.
fn with_learned(mut ledger: Ledger, learned: Option<&Learned>) -> Ledger {
    let Some(learned) = learned else { return ledger };
    let source = format!("learned from the start of {}", learned.at);
    if let Some(weights) = learned.weights {
        ledger.weights = Estimate::known(weights, source.clone());
    }
    if let Some(beside) = learned.beside {
        ledger.activations =
            Estimate::known(beside, format!("{source}, with graphs and memory outside PyTorch"));
        ledger.graphs = Estimate::known(Bytes::ZERO, "in the row above".to_owned());
        ledger.outside = Estimate::known(Bytes::ZERO, "in the row above".to_owned());
    }
    ledger
}

fn kv_options<'a>(
    facts: &'a Facts,
    options: &'a Options,
    layout: &Layout,
    batched_tokens: u64,
) -> Result<KvOptions<'a>, PlanError> {
    let speculative_tokens = speculative_tokens(options);
    let prediction = facts.model.config.as_ref().map_or(0, |config| config.attention.prediction_layers);
    Ok(KvOptions {
        tensor_parallel: layout.tensor_parallel,
        pipeline_parallel: layout.pipeline_parallel,
        context_parallel: options.whole("decode_context_parallel_size")?.unwrap_or(1),
        dtype: options.text("kv_cache_dtype"),
        block: options.whole("block_size")?,
        version: &facts.engine.version,
        device: AttentionDevice::Gpu,
        batched_tokens,
        sparse_is_fp8: facts
            .gpus
            .gpus
            .first()
            .and_then(|gpu| gpu.compute_capability)
            .is_some_and(|capability| capability.major == 12),
        prediction_layers: if speculative_tokens > 0 { prediction } else { 0 },
        speculative_tokens,
    })
}

/// Parts of a model that the ledger does not hold.
fn warn_of_gaps(fit: &mut Fit, facts: &Facts, config: &ModelConfig, options: &Options) {
    if options.has_field("speculative_config", "model") {
        let text = "the draft model's weights and cache are not in the memory table; give them with --assume";
        fit.warnings.push(warning("draft-model-not-planned", text));
    }
    if config.has_encoder && facts.model.inventory.is_none() {
        let text =
            "the weights of the model's encoder are not in the memory table: they are not here to be counted";
        fit.warnings.push(warning("encoder-not-planned", text));
    }
}

/// The engine refuses to start when less is free than it may use.
fn check_free_memory(fit: &mut Fit, budget: Budget) {
    let (Some(free), Some(allowed)) = (budget.free, budget.allowed()) else { return };
    if free < budget.requested() {
        let share = allowed as f64 / 1000.0;
        fit.fits = false;
        fit.verdict = format!("a GPU has {free} free and the engine asks for {}", budget.requested());
        fit.changes.push(PlanChange {
            flag: format!("--set gpu_memory_utilization={share:.3}"),
            effect: "takes what other programs leave".to_owned(),
        });
    }
}

fn choose_context(fit: &mut Fit, settings: &Settings, ledger: &Ledger, kv: &KvLayout, target: Tokens) {
    let [worst, likely, _] = ledger.available();
    let min = settings.context_min.as_ref().map_or(Tokens::new(1), |min| min.value);
    let longest = |space: Bytes| kv.longest(space, target).unwrap_or_default();
    let rounded = |length: Tokens| if length < target { length.round_down_to(CONTEXT_STEP) } else { length };
    let exact = matches!(settings.context.value, ContextWanted::Exactly(_));
    let context = if exact {
        target
    } else {
        // The low end, unless only the likely one is long enough.
        let careful = rounded(longest(worst));
        if careful >= min && careful > Tokens::default() { careful } else { rounded(longest(likely)) }
    };
    let more = |length: Tokens| kv.needed(length).saturating_sub(likely);
    let printed = kv.printed(likely, context.max(Tokens::new(1)));
    fit.memory = ledger.table(Some((likely, format!("{printed} tokens: {}", kv.formula()))));
    if kv.padding_layers() > 0 {
        let text =
            format!("{} padding layers make groups of layers alike and hold nothing", kv.padding_layers());
        fit.warnings.push(warning("padding-layers", &text));
    }
    if context < min || context == Tokens::default() {
        fit.fits = false;
        let asked = settings
            .context_min
            .as_ref()
            .map(|min| format!(" and {} asks for {}", min.origin.place(), min.value));
        fit.verdict = format!(
            "{likely} are left for the KV cache, room for {context} tokens{}",
            asked.unwrap_or_default()
        );
        fit.context = Some(context).filter(|context| *context > Tokens::default());
        return;
    }
    fit.context = Some(context);
    fit.kv_cache_tokens = Some(printed);
    let origin = if settings.context.origin.kind > OriginKind::Planned {
        settings.context.origin.clone()
    } else {
        Origin::planned("the longest that fits with every estimate at its high end")
    };
    fit.max_model_len = Some(Setting::new(Value::from(context.as_u64()), origin));
    let sureness = ledger.fits(kv, context);
    match sureness {
        Fits::Surely | Fits::Likely if fit.fits => {
            let own = if context < target {
                format!(
                    " (the model's own {target} needs {}, {} more per GPU)",
                    kv.needed(target),
                    more(target)
                )
            } else {
                String::new()
            };
            fit.verdict = format!("with a {context}-token context{own}");
        }
        Fits::Surely | Fits::Likely => {}
        Fits::AtBest | Fits::No => {
            let hope = if sureness == Fits::AtBest { ", unless every estimate comes out low" } else { "" };
            fit.fits = false;
            fit.verdict = format!(
                "a {context}-token context needs {} of KV cache per GPU and {likely} are left{hope}; {} tokens fit",
                kv.needed(context),
                rounded(longest(likely))
            );
        }
    }
    if sureness == Fits::Likely {
        fit.warnings.push(warning(
            "estimated",
            "this fits when the estimates are right; the ranges are in the memory table",
        ));
    }
}

/// What would let more fit, in the order of vllm-memory.md 7.
fn changes(
    config: &ModelConfig,
    options: &Options,
    ledger: &Ledger,
    kv: &KvLayout,
    overheads: OverheadOptions<'_>,
    target: Tokens,
    context: Option<Tokens>,
) -> Vec<PlanChange> {
    let mut changes = Vec::new();
    let frees = |other: OverheadOptions<'_>| {
        let less = activations(config, other).map_or(ledger.activations.likely, |estimate| estimate.likely);
        ledger.activations.likely.saturating_sub(less)
    };
    let mut offer = |flag: String, freed: Bytes| {
        if freed >= Bytes::from_mib(64) {
            changes.push(PlanChange { flag, effect: format!("frees about {freed} per GPU") });
        }
    };
    offer(
        "--set max_num_seqs=64".to_owned(),
        frees(OverheadOptions { sequences: overheads.sequences.min(64), ..overheads }),
    );
    let batched = overheads.batched_tokens.min(2048);
    offer(
        "--set max_num_batched_tokens=2048".to_owned(),
        frees(OverheadOptions { batched_tokens: batched, ..overheads }),
    );
    if config.mla.is_some()
        && overheads.tensor_parallel > 1
        && options.whole("decode_context_parallel_size") == Ok(None)
    {
        let share = overheads.tensor_parallel;
        changes.push(PlanChange {
            flag: format!("--set decode_context_parallel_size={share}"),
            effect: format!("holds {share} times the tokens, where the attention backend can do it"),
        });
    }
    if !overheads.enforce_eager && ledger.graphs.likely > Bytes::ZERO {
        changes.push(PlanChange {
            flag: "--set enforce_eager=true".to_owned(),
            effect: format!("frees about {} per GPU and costs speed", ledger.graphs.likely),
        });
    }
    let fits = kv.longest(ledger.available()[1], target).map(|length| length.round_down_to(CONTEXT_STEP));
    if let Some(length) = fits.filter(|length| Some(*length) < context && length.as_u64() > 0) {
        changes.insert(
            0,
            PlanChange { flag: format!("--context {}", length.as_u64()), effect: "fits".to_owned() },
        );
    }
    changes
}
