//! What a start teaches: held against the plan, kept for the next one, and after a refused context
//! turned into the one change that is made.

use jiff::Timestamp;

use super::Supervisor;
use crate::facts::{EngineFigures, Learned};
use crate::lifecycle::{self, Failure, Phase};
use crate::plan::{beside, differences, revise_context};
use crate::store::add_learned;

impl Supervisor {
    /// What the engine said of its memory so far.
    pub(super) fn figures(&self) -> EngineFigures {
        self.log.as_ref().map(|log| log.said().figures.clone()).unwrap_or_default()
    }

    /// Tells where the engine measured otherwise than planned, and keeps it for the next plan.
    pub(super) fn learn(&self, ready_ms: u64) {
        let figures = &self.record.figures;
        for line in differences(&self.plan, figures) {
            self.warn(line);
        }
        let learned = Learned {
            at: Timestamp::now().to_string(),
            ready_ms,
            weights: figures.weights,
            beside: beside(&self.plan, figures),
        };
        if let Err(error) = add_learned(&self.dirs.state, &self.plan.learning_key, learned) {
            tracing::warn!("what the start taught cannot be kept: {error}");
        }
    }

    /// After a start that was refused its context: the plan with the one that the engine named.
    pub(super) fn revise(&mut self) {
        let Phase::Stopping { failure: Some(Failure::ExitedDuringStart { .. }), .. } = self.state.phase
        else {
            return;
        };
        let Some(revised) = self.figures().named_context.and_then(|named| revise_context(&self.plan, named))
        else {
            return;
        };
        self.warn(format!("the plan is changed: {}", revised.verdict));
        self.next_plan = Some(revised);
        self.pending.push(lifecycle::Event::Revised);
    }
}
