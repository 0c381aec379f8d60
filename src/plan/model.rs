//! The plan itself: everything a launch needs, ready to be stored, printed, or run elsewhere.

use std::collections::BTreeMap;
use std::time::Duration;

use camino::Utf8PathBuf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kv_type::PlannedKvType;
use super::remedy::{PlannedOverlay, PlannedPatch};
use crate::config::{DeploymentName, Origin, SmokeCase};
use crate::units::{Bytes, Tokens};

/// Version of the stored form; raised with every change that an older kdeploy cannot read.
pub const PLAN_FORMAT: u32 = 1;

/// Everything a launch needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// [`PLAN_FORMAT`].
    pub format: u32,
    /// Name of the deployment.
    pub name: DeploymentName,
    /// What is served.
    pub model: PlannedModel,
    /// What serves it.
    pub engine: PlannedEngine,
    /// One line about the hardware, for people: `CPU, 2 cores, 23.5 GiB`.
    pub hardware: String,
    /// Does it fit? A plan that does not is printed, never run.
    pub fits: bool,
    /// Why it fits or not, one sentence.
    pub verdict: String,
    /// Context window (`max_model_len`); `None` when the engine decides.
    pub context: Option<Tokens>,
    /// KV cache capacity the plan expects, when the architecture is known.
    pub kv_cache_tokens: Option<Tokens>,
    /// Every value with where it comes from.
    pub settings: Vec<PlannedSetting>,
    /// Memory ledger.
    pub memory: Vec<MemoryRow>,
    /// The command line; `argv[0]` is the executable.
    pub argv: Vec<String>,
    /// Variables set for the engine. Never secrets.
    pub env: BTreeMap<String, String>,
    /// Variables taken out of the inherited environment.
    pub unset_env: Vec<String>,
    /// Address the engine listens on.
    pub host: String,
    /// Port the engine listens on.
    pub port: u16,
    /// Which endpoint answers this model's prompts.
    pub endpoint: Endpoint,
    /// The first request.
    pub warmup: WarmupPlan,
    /// Questions asked after the warm-up; empty when smoke is off.
    pub smoke: Vec<SmokeCase>,
    /// Deadlines.
    pub timeouts: Timeouts,
    /// Starts allowed in one launch.
    pub max_attempts: u32,
    /// Expected time to ready, in milliseconds, when it is known.
    pub eta_ms: Option<u64>,
    /// What the reader should know.
    pub warnings: Vec<PlanWarning>,
    /// Changes that would let more fit, best first.
    #[serde(default)]
    pub changes: Vec<PlanChange>,
    /// A context shorter than this is never used.
    #[serde(default)]
    pub context_min: Option<Tokens>,
    /// What was changed after a failure, and why.
    #[serde(default)]
    pub revised: Option<String>,
    /// Under this key is kept what a start teaches.
    #[serde(default)]
    pub learning_key: String,
    /// Data type of the KV cache.
    #[serde(default)]
    pub kv_type: Option<PlannedKvType>,
    /// Patches in effect.
    #[serde(default)]
    pub patches: Vec<PlannedPatch>,
    /// The directory that the engine is pointed at, when the checkpoint is patched.
    #[serde(default)]
    pub overlay: Option<PlannedOverlay>,
}

/// What is served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedModel {
    /// As the user named it.
    pub id: String,
    /// Local directory; `None` when the engine itself will fetch the id.
    #[schemars(with = "Option<String>")]
    pub path: Option<Utf8PathBuf>,
    /// Name under which the API serves it.
    pub served_name: String,
    /// First of `architectures` in config.json.
    pub architecture: Option<String>,
    /// Quantization method of the checkpoint.
    pub quantization: Option<String>,
    /// Commit of the model cache's snapshot.
    pub revision: Option<String>,
    /// Sum of the weight files.
    pub weights: Option<Bytes>,
}

/// What serves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedEngine {
    /// The `vllm` program.
    #[schemars(with = "String")]
    pub executable: Utf8PathBuf,
    /// Version as its installation records it.
    pub version: String,
    /// What it was built for.
    pub device: EngineDevice,
    /// How it was found: `--engine`, `KDEPLOY_ENGINE`, `active venv`, `PATH`, `managed`.
    pub found: String,
}

/// What an engine was built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EngineDevice {
    /// The CPU build.
    Cpu,
    /// A CUDA build.
    Cuda,
}

/// A resolved value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedSetting {
    /// vLLM's or kdeploy's own name, with underscores.
    pub name: String,
    /// The value.
    pub value: serde_json::Value,
    /// Where it comes from.
    pub origin: Origin,
    /// Why it is so; empty when the origin says it all.
    pub reason: String,
}

/// One row of the memory ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryRow {
    /// What takes the memory: `weights`, `KV cache`, …
    pub item: String,
    /// How much.
    pub bytes: Bytes,
    /// Formula or reading it comes from.
    pub source: String,
}

/// Something the reader should know about a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanWarning {
    /// Kebab-case name.
    pub code: String,
    /// One sentence.
    pub text: String,
}

/// A change that would let more fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanChange {
    /// What to add to the command line.
    pub flag: String,
    /// What it brings, in words.
    pub effect: String,
}

/// Which endpoint answers prompts of this model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`: the tokenizer has no chat template.
    Completions,
}

/// The first request after the start; its figures are the cold ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WarmupPlan {
    /// The user's message.
    pub prompt: String,
    /// Output budget.
    pub max_tokens: Tokens,
}

/// Deadlines of a launch, stored in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Timeouts {
    /// Longest time without progress during the start.
    pub start_stall_ms: u64,
    /// Longest time for the whole start.
    pub start_total_ms: u64,
    /// Longest time for the warm-up request.
    pub warmup_ms: u64,
    /// How long requests in flight may finish at a stop (`--shutdown-timeout`).
    pub drain_ms: u64,
    /// How long nothing may be generated before an idle engine is asked for one token; 0 is never.
    #[serde(default = "default_idle_probe_ms")]
    pub idle_probe_ms: u64,
    /// How long that token may take.
    #[serde(default = "default_idle_probe_timeout_ms")]
    pub idle_probe_timeout_ms: u64,
}

/// For plans that were kept by a kdeploy that did not probe.
const fn default_idle_probe_ms() -> u64 {
    30_000
}

const fn default_idle_probe_timeout_ms() -> u64 {
    120_000
}

impl Timeouts {
    /// Longest time without progress during the start.
    #[must_use]
    pub const fn start_stall(&self) -> Duration {
        Duration::from_millis(self.start_stall_ms)
    }

    /// Longest time for the whole start.
    #[must_use]
    pub const fn start_total(&self) -> Duration {
        Duration::from_millis(self.start_total_ms)
    }

    /// Longest time for the warm-up request.
    #[must_use]
    pub const fn warmup(&self) -> Duration {
        Duration::from_millis(self.warmup_ms)
    }

    /// How long requests in flight may finish at a stop.
    #[must_use]
    pub const fn drain(&self) -> Duration {
        Duration::from_millis(self.drain_ms)
    }

    /// How long nothing may be generated before an idle engine is asked for one token; `None` is never.
    #[must_use]
    pub const fn idle_probe(&self) -> Option<Duration> {
        match self.idle_probe_ms {
            0 => None,
            ms => Some(Duration::from_millis(ms)),
        }
    }

    /// How long that token may take.
    #[must_use]
    pub const fn idle_probe_timeout(&self) -> Duration {
        Duration::from_millis(self.idle_probe_timeout_ms)
    }
}
