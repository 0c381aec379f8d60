//! Which data type of the KV cache works: attention kind x compute capability x vLLM version, as read
//! from the release wheels (`kv_support/gpu.json`) and from the CPU build (`kv_support/cpu.json`).
//!
//! What was not read stays unknown: a version is taken as its nearest lower read neighbour, and that is
//! said; a GPU, a data type or a version outside the table has no answer here.

use std::fmt;
use std::sync::LazyLock;

use serde::Deserialize;

use super::gpu::ComputeCapability;
use super::model::{DeclaredKvCache, MlaRanks, ModelConfig};
use super::version::EngineVersion;

/// vLLM follows the KV cache type of a ModelOpt checkpoint from here (rule `auto-resolves-to-checkpoint`).
const FOLLOWS_CHECKPOINT: (u64, u64) = (0, 14);

/// How attention keeps what it has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
pub enum AttentionKind {
    /// Keys and values of every head (MHA, GQA, MQA).
    #[serde(rename = "standard")]
    Standard,
    /// Multi-head latent attention.
    #[serde(rename = "mla")]
    Mla,
    /// Multi-head latent attention over a chosen part of the tokens.
    #[serde(rename = "mla-sparse")]
    SparseMla,
}

impl AttentionKind {
    /// Kind of a model.
    #[must_use]
    pub const fn of(config: &ModelConfig) -> Self {
        match (config.mla, config.attention.indexer) {
            (Some(_), Some(_)) => Self::SparseMla,
            (Some(_), None) => Self::Mla,
            (None, _) => Self::Standard,
        }
    }

    /// As predicates name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Mla => "mla",
            Self::SparseMla => "mla-sparse",
        }
    }
}

impl fmt::Display for AttentionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Standard => "standard attention",
            Self::Mla => "MLA",
            Self::SparseMla => "sparse MLA",
        })
    }
}

/// What the cache is kept on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvDevice<'a> {
    /// A GPU of this compute capability.
    Gpu(ComputeCapability),
    /// The CPU build, with the processor's flags; empty means unknown.
    Cpu(&'a [String]),
}

impl fmt::Display for KvDevice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(capability) => capability.fmt(f),
            Self::Cpu(_) => f.pad("CPU"),
        }
    }
}

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub struct KvQuestion<'a> {
    /// Version of the engine.
    pub version: &'a EngineVersion,
    /// What the cache is kept on.
    pub device: KvDevice<'a>,
    /// Attention of the model.
    pub kind: AttentionKind,
    /// Sizes of MLA.
    pub mla: Option<MlaRanks>,
    /// `--kv-cache-dtype` as the engine's backend choice sees it: `auto` is the model's own type.
    pub dtype: &'a str,
    /// `--decode-context-parallel-size`.
    pub context_parallel: u64,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvSupport {
    /// A backend stores it.
    Works {
        /// Backends that do.
        backends: Vec<String>,
        /// What else is to be said: a version that was not read.
        note: Option<String>,
    },
    /// The engine accepts it; whether it runs is told differently by different people.
    Doubtful {
        /// Why.
        reason: String,
        /// Where that is from.
        sources: Vec<String>,
        /// What else is to be said.
        note: Option<String>,
    },
    /// No backend stores it.
    Unsupported {
        /// One for each backend.
        reasons: Vec<String>,
        /// Where that is from.
        sources: Vec<String>,
        /// First version read that stores it, when there is one.
        works_from: Option<String>,
        /// What else is to be said.
        note: Option<String>,
    },
    /// It was not read.
    Unknown {
        /// What is missing.
        why: String,
    },
}

#[derive(Debug, Deserialize)]
struct Table {
    versions_read: Vec<String>,
    #[serde(default)]
    compute_capability: Vec<CapabilityRow>,
    backends: Vec<Row>,
    #[serde(default)]
    rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
struct CapabilityRow {
    cc: String,
}

#[derive(Debug, Deserialize)]
struct Row {
    vllm: String,
    backend: String,
    kind: AttentionKind,
    kv_cache_dtypes: Vec<String>,
    compute_capability: String,
    /// One of these flags of the processor is needed.
    #[serde(default)]
    cpu_flags: Vec<String>,
    /// With one of these flags the engine takes another backend.
    #[serde(default)]
    cpu_without: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Rule {
    id: String,
    #[serde(default)]
    sources: Vec<String>,
}

static GPU: LazyLock<Table> = LazyLock::new(|| read(include_str!("kv_support/gpu.json")));
static CPU: LazyLock<Table> = LazyLock::new(|| read(include_str!("kv_support/cpu.json")));

fn read(text: &str) -> Table {
    serde_json::from_str(text).unwrap_or_else(|error| unreachable!("an embedded table: {error}"))
}

impl Table {
    fn sources(&self, ids: &[&str]) -> Vec<String> {
        let rules = self.rules.iter().filter(|rule| ids.contains(&rule.id.as_str()));
        rules.flat_map(|rule| rule.sources.iter().cloned()).collect()
    }

    /// The newest read version that is not newer than this one.
    fn neighbour(&self, version: &EngineVersion) -> Option<&str> {
        let read = self.versions_read.iter().filter_map(|text| Some((text.parse().ok()?, text)));
        read.filter(|(read, _): &(EngineVersion, _)| read <= version)
            .max_by(|a, b| a.0.cmp(&b.0))
            .map(|(_, text)| text.as_str())
    }
}

/// Name of a data type without its synonyms.
fn canonical(dtype: &str) -> &str {
    match dtype {
        "half" => "float16",
        "float" => "float32",
        other => other,
    }
}

/// Is it a form of FP8?
#[must_use]
pub fn is_fp8(dtype: &str) -> bool {
    dtype.starts_with("fp8")
}

/// Answers from the table.
#[must_use]
pub fn kv_support(question: KvQuestion<'_>) -> KvSupport {
    let dtype = canonical(question.dtype);
    let table: &Table = match question.device {
        KvDevice::Gpu(_) => &GPU,
        KvDevice::Cpu(_) => &CPU,
    };
    let Some(read) = table.neighbour(question.version) else {
        let oldest = table.versions_read.first().map_or("none", String::as_str);
        return KvSupport::Unknown {
            why: format!(
                "vLLM {} is older than {oldest}, the oldest version that was read",
                question.version
            ),
        };
    };
    if let KvDevice::Gpu(capability) = question.device
        && !table.compute_capability.iter().any(|row| row.cc.parse() == Ok(capability))
    {
        return KvSupport::Unknown { why: format!("{capability} is not in the table") };
    }
    if !table.backends.iter().any(|row| row.kv_cache_dtypes.iter().any(|known| known == dtype)) {
        return KvSupport::Unknown { why: format!("KV cache type `{dtype}` is not in the table") };
    }
    let note = (read.parse::<EngineVersion>().ok().as_ref() != Some(question.version))
        .then(|| format!("vLLM {} was not read; it is taken as {read}", question.version));
    let rows = |version: &str| {
        let version = version.to_owned();
        table.backends.iter().filter(move |row| row.vllm == version && row.kind == question.kind)
    };
    let backends: Vec<String> = rows(read)
        .filter(|row| refusal(row, dtype, question.device).is_none())
        .map(|row| row.backend.clone())
        .collect();
    if !backends.is_empty() {
        return match doubt(&question, dtype) {
            Some((reason, rule)) => {
                KvSupport::Doubtful { reason: reason.to_owned(), sources: table.sources(&[rule]), note }
            }
            None => KvSupport::Works { backends, note },
        };
    }
    if rows(read).next().is_none() {
        return KvSupport::Unknown {
            why: format!("no backend for {} on {} was read", question.kind, question.device),
        };
    }
    let mut reasons: Vec<String> =
        rows(read).filter_map(|row| refusal(row, dtype, question.device)).collect();
    reasons.dedup();
    let works_from = table
        .versions_read
        .iter()
        .filter(|text| text.parse::<EngineVersion>().is_ok_and(|version| version > *question.version))
        .find(|text| rows(text).any(|row| refusal(row, dtype, question.device).is_none()))
        .cloned();
    KvSupport::Unsupported { reasons, sources: table.sources(&rule_ids(&question, dtype)), works_from, note }
}

/// Why a backend does not store it; `None` when it does.
fn refusal(row: &Row, dtype: &str, device: KvDevice<'_>) -> Option<String> {
    let name = &row.backend;
    let no = |why: String| Some(format!("{name}: {why}"));
    match device {
        KvDevice::Gpu(capability) => {
            if !runs_on(&row.compute_capability, capability) {
                return no(format!("runs on {} only", row.compute_capability));
            }
            let fp8 = is_fp8(dtype);
            if row.kv_cache_dtypes.iter().any(|known| known == dtype) {
                // FP8 in Triton needs the hardware's own conversion; FlashAttention has FP8 in its
                // versions 3 (9.x) and 4 (10.x) alone.
                let at_least = |major, minor| capability >= ComputeCapability { major, minor };
                if fp8 && name.starts_with("TRITON") && !at_least(8, 9) {
                    return no("has no FP8 before SM89".to_owned());
                }
                if fp8 && name == "FLASH_ATTN" && !matches!(capability.major, 9 | 10) {
                    return no("has FP8 on 9.x and 10.x only".to_owned());
                }
                if dtype == "bfloat16" && !at_least(8, 0) {
                    return no("has no bfloat16 before SM80".to_owned());
                }
                return None;
            }
        }
        KvDevice::Cpu(flags) => {
            let stores = row.kv_cache_dtypes.iter().any(|known| known == dtype);
            let has = |names: &[String]| names.iter().any(|name| flags.contains(name));
            if has(&row.cpu_without) {
                return no(format!("is not taken where the processor has {}", row.cpu_without.join(", ")));
            }
            // Where the flags are not known the engine says it itself, before the load.
            let capable = row.cpu_flags.is_empty() || flags.is_empty() || has(&row.cpu_flags);
            if stores && capable {
                return None;
            }
            if stores {
                return no(format!("needs one of {} for it", row.cpu_flags.join(", ")));
            }
        }
    }
    no(format!("stores {} only", row.kv_cache_dtypes.join(", ")))
}

/// Does a row's pattern hold: `any`, `9.x,10.x`, `12.0,12.1`, `>=7.5,<=12.1`?
fn runs_on(pattern: &str, capability: ComputeCapability) -> bool {
    let bound = |text: &str| text.parse::<ComputeCapability>().ok();
    let (bounds, names): (Vec<&str>, Vec<&str>) =
        pattern.split(',').map(str::trim).partition(|part| part.starts_with(['<', '>']));
    let within = bounds.iter().all(|part| match (part.strip_prefix(">="), part.strip_prefix("<=")) {
        (Some(low), _) => bound(low).is_some_and(|low| capability >= low),
        (_, Some(high)) => bound(high).is_some_and(|high| capability <= high),
        _ => false,
    });
    let named = names.is_empty()
        || names.iter().any(|part| match part.strip_suffix(".x") {
            Some(major) => major.parse() == Ok(capability.major),
            None => *part == "any" || bound(part) == Some(capability),
        });
    within && named
}

/// Accepted by the engine and still in doubt, with the rule that says so.
fn doubt(question: &KvQuestion<'_>, dtype: &str) -> Option<(&'static str, &'static str)> {
    let KvDevice::Gpu(capability) = question.device else { return None };
    let latent = question.mla == Some(MlaRanks { kv_lora_rank: 512, qk_rope_head_dim: 64 });
    let mla_fp8 = question.kind == AttentionKind::Mla && is_fp8(dtype);
    if mla_fp8 && latent && capability.major == 12 {
        return Some((
            "the engine accepts fp8 there, and stock builds are reported to fail while graphs are captured (shared memory, Required: 102400, Hardware limit: 101376)",
            "mla-fp8-sm120-shared-memory",
        ));
    }
    if mla_fp8 && question.context_parallel > 1 && !question.version.is_at_least(0, 32) {
        return Some((
            "fp8 with decode context parallelism needed changes whose release is not known",
            "mla-dcp-fp8",
        ));
    }
    None
}

fn rule_ids(question: &KvQuestion<'_>, dtype: &str) -> Vec<&'static str> {
    let KvDevice::Gpu(capability) = question.device else { return vec!["mla-fp8-cpu"] };
    let at_least = |major, minor| capability >= ComputeCapability { major, minor };
    let rules = [
        ("fp8-below-sm89", is_fp8(dtype) && !at_least(8, 9)),
        ("bf16-below-sm80", dtype == "bfloat16" && !at_least(8, 0)),
        ("mla-fp8-sm120", question.kind == AttentionKind::Mla && is_fp8(dtype) && at_least(8, 9)),
        ("explicit-bf16-mla-0.14", question.kind == AttentionKind::Mla && dtype == "bfloat16"),
        ("sparse-mla-sm120", question.kind == AttentionKind::SparseMla && capability.major == 12),
        ("nvfp4-kv", dtype.starts_with("nvfp4")),
    ];
    rules.into_iter().filter(|(_, applies)| *applies).map(|(id, _)| id).collect()
}

/// What the checkpoint declares for the KV cache, as far as this version follows it under
/// `--kv-cache-dtype auto` (vllm-process.md 7.1): ModelOpt from 0.14; compressed-tensors, but not in MLA
/// layers; other methods never.
#[must_use]
pub fn followed_kv_cache<'a>(
    config: &'a ModelConfig,
    version: &EngineVersion,
) -> Option<&'a DeclaredKvCache> {
    let quantization = config.quantization.as_ref()?;
    let followed = match quantization.method.as_str() {
        method if method.starts_with("modelopt") => {
            version.is_at_least(FOLLOWS_CHECKPOINT.0, FOLLOWS_CHECKPOINT.1)
        }
        "compressed-tensors" => config.mla.is_none(),
        _ => false,
    };
    quantization.kv_cache.as_ref().filter(|_| followed)
}

#[cfg(test)]
mod tests;
