//! What a start teaches: held against the plan, kept for the next one, and after a refused context
//! turned into the one change that is made.

use jiff::Timestamp;

use super::Supervisor;
use crate::app::failure::kv_type_error;
use crate::facts::{EngineFigures, Learned};
use crate::lifecycle::{self, Failure, Phase};
use crate::plan::{EvidenceVerdict, beside, differences, revise_context};
use crate::store::add_learned;

impl Supervisor {
    /// What the engine said of its memory so far.
    pub(super) fn figures(&self) -> EngineFigures {
        self.log.as_ref().map(|log| log.said().figures.clone()).unwrap_or_default()
    }

    /// What the log says of the plan so far.
    pub(super) fn evidence(&self) -> EvidenceVerdict {
        self.log.as_ref().map(|log| log.said().evidence.clone().finish()).unwrap_or_default()
    }

    /// A cause that every attempt would meet again: no further one is made.
    pub(super) fn give_up_when_doomed(&mut self) {
        let doomed =
            self.log.as_ref().is_some_and(|log| kv_type_error(&log.said().scan, &self.plan).is_some());
        if doomed && matches!(self.state.phase, Phase::Stopping { failure: Some(_), .. }) {
            self.limits.max_attempts = self.state.attempt;
        }
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
