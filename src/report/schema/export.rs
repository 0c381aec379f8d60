//! `kdeploy/export`: a plan as a file for another tool.

use schemars::JsonSchema;
use serde::Serialize;

use crate::report::Document;

/// What was written.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ExportBody {
    /// Name of the deployment.
    pub name: String,
    /// `systemd`.
    pub format: &'static str,
    /// Where it was written; absent for stdout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The text.
    pub text: String,
}

impl Document for ExportBody {
    const SCHEMA: &'static str = "kdeploy/export";
    const VERSION: u32 = 1;
}
