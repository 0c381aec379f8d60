//! `kdeploy/smoke`: verdicts on answers.

use schemars::JsonSchema;
use serde::Serialize;

use crate::measure::Verdict;
use crate::report::Document;

/// Counts.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SmokeSummary {
    /// Right answers.
    pub passed: usize,
    /// Wrong answers.
    pub failed: usize,
}

/// The outcome of `smoke`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SmokeBody {
    /// Deployment or address.
    pub name: String,
    /// Model as it is served.
    pub model: String,
    /// One verdict a case.
    pub cases: Vec<Verdict>,
    /// Counts.
    pub summary: SmokeSummary,
}

impl SmokeBody {
    /// Counts the verdicts.
    #[must_use]
    pub fn new(name: String, model: String, cases: Vec<Verdict>) -> Self {
        let passed = cases.iter().filter(|verdict| verdict.ok).count();
        let summary = SmokeSummary { passed, failed: cases.len() - passed };
        Self { name, model, cases, summary }
    }
}

impl Document for SmokeBody {
    const SCHEMA: &'static str = "kdeploy/smoke";
    const VERSION: u32 = 1;
}
