//! `kdeploy/quickstart`: the newcomer's whole way.

use schemars::JsonSchema;
use serde::Serialize;

use super::bench::BenchBody;
use super::event::ReadyBody;
use crate::facts::StopReport;
use crate::measure::Verdict;
use crate::report::Document;

/// One part of the way with the time that it took.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct PartBody {
    /// `engine`, `model`, `start`, `ask`, `measure`, `stop`.
    pub part: &'static str,
    /// Wall time.
    pub elapsed_ms: u64,
}

/// What `quickstart` did.
#[derive(Debug, Serialize, JsonSchema)]
pub struct QuickstartBody {
    /// Name of the deployment.
    pub name: String,
    /// Parts in their order.
    pub parts: Vec<PartBody>,
    /// Figures from when it became ready.
    pub ready: ReadyBody,
    /// The questions with their answers.
    pub cases: Vec<Verdict>,
    /// The measurement.
    pub bench: BenchBody,
    /// What the stop ended and removed; absent when it was left running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopReport>,
}

impl Document for QuickstartBody {
    const SCHEMA: &'static str = "kdeploy/quickstart";
    const VERSION: u32 = 1;
}

/// What `quickstart --install-only` did.
#[derive(Debug, Serialize, JsonSchema)]
pub struct InstalledBody {
    /// The engine's `vllm`.
    pub engine: String,
    /// The model's directory.
    pub model: String,
    /// Parts in their order.
    pub parts: Vec<PartBody>,
}

impl Document for InstalledBody {
    const SCHEMA: &'static str = "kdeploy/installed";
    const VERSION: u32 = 1;
}
