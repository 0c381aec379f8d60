//! The service manager is told where the launch is.

use std::time::Duration;

use super::Supervisor;
use crate::lifecycle::{Moment, Phase, outcome_word};
use crate::units::format_duration;

impl Supervisor {
    /// Sends what there is to tell; does nothing outside a service.
    pub(super) fn tell_manager(&mut self) {
        let Some(socket) = &self.manager else { return };
        let status = self.status_line();
        let moment = Moment { now: self.clock.elapsed(), phase: self.state.phase, status: &status };
        let message = self.notifier.message(moment, &self.limits);
        if !message.is_empty() {
            socket.send(&message);
        }
    }

    /// One line for people: stage, count, time left.
    fn status_line(&self) -> String {
        match self.state.phase {
            Phase::Waiting { until } if self.state.attempt > 0 => {
                let pause = format_duration(until.saturating_sub(self.clock.elapsed()));
                format!("attempt {} of {} in {pause}", self.state.attempt + 1, self.limits.max_attempts)
            }
            Phase::Waiting { .. } => "starting".to_owned(),
            Phase::Starting { stage, .. } => {
                let count = self.counted.filter(|(counted, ..)| *counted == stage);
                let count = count.map(|(_, done, total)| format!(" {done}/{total}")).unwrap_or_default();
                format!("starting: {}{count}{}", stage.label(), self.time_left())
            }
            Phase::WarmingUp { .. } => "warming up: the first request is under way".to_owned(),
            Phase::Ready { .. } => {
                format!("ready: {} on port {}", self.plan.model.served_name, self.plan.port)
            }
            Phase::Stopping { failure: Some(_), .. } => "failed; ending what is left".to_owned(),
            Phase::Stopping { failure: None, .. } => "stopping".to_owned(),
            Phase::Ended(outcome) => outcome_word(outcome).to_owned(),
        }
    }

    fn time_left(&self) -> String {
        let expected = self.plan.eta_ms.map(Duration::from_millis);
        let left = expected.map(|eta| eta.saturating_sub(self.attempt_began.elapsed()));
        // Whole seconds: a line that changes ten times a second is told ten times a second.
        let left = left.map(|left| Duration::from_secs(left.as_secs())).filter(|left| !left.is_zero());
        left.map(|left| format!(", {} left", format_duration(left))).unwrap_or_default()
    }
}
