//! `kdeploy/reap`: what was ended and removed after kdeploys that were killed.

use schemars::JsonSchema;
use serde::Serialize;

use crate::facts::{StopReport, Unrecorded};
use crate::report::Document;

/// What one launch left.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ReapedBody {
    /// Name of the deployment.
    pub name: String,
    /// What was ended and removed; with `dry_run` what would be.
    pub report: StopReport,
}

/// The outcome of `reap`.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct ReapBody {
    /// Nothing was touched.
    pub dry_run: bool,
    /// Launches whose kdeploy is dead.
    pub launches: Vec<ReapedBody>,
    /// Remains that no record knows, with `--unrecorded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unrecorded: Option<Unrecorded>,
    /// What was done about them after asking.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unrecorded_report: Option<StopReport>,
}

impl Document for ReapBody {
    const SCHEMA: &'static str = "kdeploy/reap";
    const VERSION: u32 = 1;
}
