//! `kdeploy/logs`: the engine's log in JSON.

use schemars::JsonSchema;
use serde::Serialize;

use crate::report::Document;

/// The log of an attempt.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LogsBody {
    /// Name of the deployment.
    pub name: String,
    /// Number of the attempt.
    pub attempt: u64,
    /// Path of the raw log.
    pub file: String,
    /// Its lines, decoded lossily.
    pub lines: Vec<String>,
}

impl Document for LogsBody {
    const SCHEMA: &'static str = "kdeploy/logs";
    const VERSION: u32 = 1;
}

/// One line of `logs -f --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LogLineBody<'a> {
    /// `kdeploy/log-line`.
    pub schema: &'static str,
    /// Version of this shape.
    pub version: u32,
    /// The line, decoded lossily.
    pub line: &'a str,
}
