//! `kdeploy/up`: the outcome of `up --json`.

use schemars::JsonSchema;
use serde::Serialize;

use super::event::ReadyBody;
use crate::facts::StopReport;
use crate::report::Document;

/// What `up` did.
#[derive(Debug, Serialize, JsonSchema)]
pub struct UpBody {
    /// Name of the deployment.
    pub name: String,
    /// `ready`, `starting` (the wait ended first), or `stopped`.
    pub state: &'static str,
    /// Figures from when it became ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadyBody>,
    /// What the stop ended and removed, when it was supervised to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopReport>,
}

impl Document for UpBody {
    const SCHEMA: &'static str = "kdeploy/up";
    const VERSION: u32 = 1;
}
