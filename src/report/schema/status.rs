//! `kdeploy/status`: what runs.

use schemars::JsonSchema;
use serde::Serialize;

use crate::facts::Unrecorded;
use crate::report::Document;
use crate::units::Bytes;

/// One deployment. Absent means unknown.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct DeploymentBody {
    /// Name.
    pub name: String,
    /// `starting`, `ready`, `unresponsive`, `restarting`, `stopping`, `crashed`, `failed`, `stopped`.
    pub state: String,
    /// Stage of a start, or the reason of a failure.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Model as the user named it.
    pub model: String,
    /// Base URL of the API, when it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Since when the state holds, RFC 3339 UTC.
    pub since: String,
    /// How long the state holds.
    pub since_ms: u64,
    /// Pid of the engine's main process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Pid of the supervising kdeploy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supervisor_pid: Option<i32>,
    /// Processes of the tree that are alive.
    pub processes: usize,
    /// Host memory the tree holds (resident, shared pages counted once a process).
    pub memory_bytes: Bytes,
    /// Requests running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Requests waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u64>,
    /// Share of the KV cache in use, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_usage: Option<f64>,
    /// Smoke cases passed and asked after the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smoke: Option<(u32, u32)>,
    /// Start of the attempt to ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_ms: Option<u64>,
}

/// All deployments.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StatusBody {
    /// Sorted by name.
    pub deployments: Vec<DeploymentBody>,
    /// Remains of engines that no launch record knows; absent when there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unrecorded: Option<Unrecorded>,
}

impl Document for StatusBody {
    const SCHEMA: &'static str = "kdeploy/status";
    const VERSION: u32 = 1;
}
