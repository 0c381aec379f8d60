//! Which data type the KV cache gets, from where, and whether an attention backend stores it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::command::Options;
use crate::config::OriginKind;
use crate::facts::{
    AttentionKind, ComputeCapability, DeclaredKvCache, Facts, Gpu, KvDevice, KvQuestion, KvSupport,
    ModelConfig, followed_kv_cache, is_fp8, kv_support,
};

/// The KV cache type of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PlannedKvType {
    /// What is stored: `bfloat16`, `fp8`, …
    pub dtype: String,
    /// Where that comes from: a flag, a key of the checkpoint, the model's own type.
    pub source: String,
    /// What the support table says of it.
    pub support: String,
    /// What the engine may name it in the line of its configuration; empty when that is not known.
    pub engine_says: Vec<String>,
    /// Must that line be there?
    pub confirmed: bool,
}

/// The type that the engine will use with these options.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct KvType {
    /// As the engine's backend choice sees it: `auto` is the model's own.
    pub dtype: String,
    pub from: KvFrom,
    pub kind: AttentionKind,
    /// What it is kept on, in words.
    pub device: String,
    pub support: KvSupport,
    /// Does the engine's line show it? Not where layers decide later (compressed-tensors).
    pub shown: bool,
}

/// Who decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KvFrom {
    /// An option, at this place; decided by the planner when `planned`.
    Option { place: String, planned: bool },
    /// The checkpoint, at this file and key.
    Checkpoint { place: String },
    /// Nobody: the model's own type.
    Model,
}

/// `None` when the model is not known.
pub(super) fn kv_type(
    config: &ModelConfig,
    facts: &Facts,
    gpus: &[&Gpu],
    options: &Options,
) -> Option<KvType> {
    let given = options.text("kv_cache_dtype").filter(|dtype| *dtype != "auto");
    let followed = followed_kv_cache(config, &facts.engine.version);
    let (dtype, from, shown) = match (given, followed) {
        (Some(given), _) => {
            let origin = options.origin("kv_cache_dtype")?;
            let planned = origin.kind == OriginKind::Planned;
            (given.to_ascii_lowercase(), KvFrom::Option { place: origin.place().to_owned(), planned }, true)
        }
        (None, Some(declared)) => {
            let quantization = config.quantization.as_ref()?;
            let place = quantization.kv_cache_source.clone().unwrap_or_else(|| "the checkpoint".to_owned());
            let dtype = match declared {
                DeclaredKvCache::Fp8 => "fp8".to_owned(),
                DeclaredKvCache::Nvfp4 => "nvfp4".to_owned(),
                DeclaredKvCache::Other(name) => name.to_ascii_lowercase(),
            };
            (dtype, KvFrom::Checkpoint { place }, quantization.method.starts_with("modelopt"))
        }
        (None, None) => ("auto".to_owned(), KvFrom::Model, true),
    };
    let kind = AttentionKind::of(config);
    let (device, support) = ask(config, facts, gpus, options, &dtype)?;
    Some(KvType { dtype, from, kind, device, support, shown })
}

/// The worst answer of all GPUs in use.
pub(super) fn ask(
    config: &ModelConfig,
    facts: &Facts,
    gpus: &[&Gpu],
    options: &Options,
    dtype: &str,
) -> Option<(String, KvSupport)> {
    let question = |device| KvQuestion {
        version: &facts.engine.version,
        device,
        kind: AttentionKind::of(config),
        mla: config.mla,
        dtype,
        context_parallel: options.whole("decode_context_parallel_size").ok().flatten().unwrap_or(1),
    };
    if facts.engine.is_cpu_build {
        let device = KvDevice::Cpu(&facts.host.cpu_flags);
        return Some((device.to_string(), kv_support(question(device))));
    }
    let mut capabilities: Vec<ComputeCapability> =
        gpus.iter().filter_map(|gpu| gpu.compute_capability).collect();
    capabilities.sort_unstable();
    capabilities.dedup();
    let rank = |support: &KvSupport| match support {
        KvSupport::Works { .. } => 0,
        KvSupport::Unknown { .. } => 1,
        KvSupport::Doubtful { .. } => 2,
        KvSupport::Unsupported { .. } => 3,
    };
    let answers = capabilities.into_iter().map(|capability| {
        let device = KvDevice::Gpu(capability);
        (device.to_string(), kv_support(question(device)))
    });
    answers.max_by_key(|(_, support)| rank(support)).or_else(|| {
        let why = "no GPU says its compute capability".to_owned();
        Some(("the GPUs".to_owned(), KvSupport::Unknown { why }))
    })
}

/// The model's own type: `--dtype` when that is given.
pub(super) fn model_dtype(config: &ModelConfig, options: &Options) -> Option<String> {
    let given = options.text("dtype").filter(|dtype| *dtype != "auto");
    let dtype = given.map(str::to_owned).or_else(|| config.dtype.clone())?;
    Some(match dtype.as_str() {
        "half" => "float16".to_owned(),
        "float" => "float32".to_owned(),
        _ => dtype,
    })
}

impl KvType {
    /// Is it planned for without being sure? `None` when that is not known.
    pub fn is_supported(&self) -> Option<bool> {
        match self.support {
            KvSupport::Works { .. } => Some(true),
            KvSupport::Unsupported { .. } | KvSupport::Doubtful { .. } => Some(false),
            KvSupport::Unknown { .. } => None,
        }
    }

    /// For the plan; `remedied` when something was done about it.
    pub fn planned(&self, model_dtype: Option<&str>, remedied: bool) -> PlannedKvType {
        let plain = model_dtype.unwrap_or("the model's own type").to_owned();
        let (source, asked) = match &self.from {
            KvFrom::Option { place, .. } => (place.clone(), true),
            KvFrom::Checkpoint { place } => (place.clone(), false),
            KvFrom::Model => ("the model's own type".to_owned(), false),
        };
        let engine_says = match self.dtype.as_str() {
            _ if !self.shown => Vec::new(),
            "auto" => std::iter::once("auto".to_owned()).chain(model_dtype.map(str::to_owned)).collect(),
            "fp8" | "fp8_e4m3" => vec!["fp8".to_owned(), "fp8_e4m3".to_owned(), "fp8_ds_mla".to_owned()],
            // Sparse backends turn FP8 into a form of their own.
            other if is_fp8(other) => vec![other.to_owned(), "fp8_ds_mla".to_owned()],
            other => vec![other.to_owned()],
        };
        PlannedKvType {
            dtype: if self.dtype == "auto" { plain } else { self.dtype.clone() },
            source,
            support: self.says(),
            engine_says,
            confirmed: self.shown && (asked || remedied),
        }
    }

    /// The support table's answer in words.
    pub fn says(&self) -> String {
        let with = |text: String, note: &Option<String>| match note {
            Some(note) => format!("{text}; {note}"),
            None => text,
        };
        match &self.support {
            KvSupport::Works { backends, note } => with(format!("stored by {}", backends.join(", ")), note),
            KvSupport::Doubtful { reason, note, .. } => with(format!("in doubt: {reason}"), note),
            KvSupport::Unsupported { note, .. } => with("no attention backend stores it".to_owned(), note),
            KvSupport::Unknown { why } => format!("not known: {why}"),
        }
    }

    /// `an fp8 KV cache with MLA on SM120`.
    pub fn subject(&self) -> String {
        match self.dtype.as_str() {
            "auto" => format!("{} on {}", self.kind, self.device),
            dtype => format!("a KV cache of {dtype} with {} on {}", self.kind, self.device),
        }
    }
}
