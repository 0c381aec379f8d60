//! `kdeploy/down`: what a stop ended, freed, removed, and could not.

use schemars::JsonSchema;
use serde::Serialize;

use crate::facts::StopReport;
use crate::report::Document;
use crate::units::Bytes;

/// The outcome of `down`.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct DownBody {
    /// Deployments that were stopped.
    pub names: Vec<String>,
    /// Processes ended, as `pid title`.
    pub stopped: Vec<String>,
    /// Memory that they held.
    pub freed_bytes: Bytes,
    /// Shared-memory objects and directories removed.
    pub removed: Vec<String>,
    /// What is still there, with the reason.
    pub survivors: Vec<String>,
}

impl DownBody {
    /// Adds what one stop did.
    pub fn add(&mut self, name: &str, report: &StopReport) {
        self.names.push(name.to_owned());
        self.stopped.extend(report.stopped.iter().cloned());
        self.freed_bytes = self.freed_bytes.checked_add(report.freed).unwrap_or(self.freed_bytes);
        self.removed.extend(report.removed.iter().cloned());
        self.survivors.extend(report.survivors.iter().cloned());
    }
}

impl Document for DownBody {
    const SCHEMA: &'static str = "kdeploy/down";
    const VERSION: u32 = 1;
}
