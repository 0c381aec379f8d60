//! What is told and written when something is decided: ready, a failure, the end.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use camino::Utf8Path;

use super::log_reader::LogReader;
use super::{Supervisor, millis};
use crate::app::failure::{describe_status, explain};
use crate::lifecycle::{Failure, IdleWatch, Measured, Outcome, Stage};
use crate::report::Diagnostic;
use crate::report::schema::{Event, EventKind};
use crate::store::{AttemptDir, LaunchState, write_atomic};
use crate::units::format_duration;

impl Supervisor {
    pub(super) fn tell_stall(&self, stage: Stage, still: Duration) {
        let left = self.limits.start_stall.saturating_sub(still);
        self.warn(format!(
            "stage `{}` is stalled: nothing advanced and nothing was read for {}; it is ended in {} unless it moves",
            stage.label(),
            format_duration(still),
            format_duration(left)
        ));
    }

    pub(super) fn announce_ready(&mut self) {
        self.leave_stage();
        self.refresh_tree();
        self.scan_shm();
        self.idle = IdleWatch::new(self.plan.timeouts.idle_probe(), self.now());
        let ready_ms = millis(self.attempt_began.elapsed());
        self.record.ready_ms = Some(ready_ms);
        self.record_state(LaunchState::Ready, "");
        self.learn(ready_ms);
        let mut event = self.event(EventKind::Ready);
        if let Some(ready) = &mut self.ready {
            ready.ready_ms = ready_ms;
            event.ready = Some(ready.clone());
        }
        self.tell(event);
    }

    pub(super) fn announce_retry(&mut self, failure: Failure) {
        let diagnostic = self.explain(failure);
        self.tell(self.event(EventKind::AttemptFailed).diagnostic(&diagnostic));
        self.record_state(LaunchState::Restarting, &diagnostic.summary);
        let text = format!("attempt {} of {} follows", self.state.attempt + 1, self.limits.max_attempts);
        self.tell(self.event(EventKind::Retrying).text(text));
        self.ready = None;
        if let Some(plan) = self.next_plan.take() {
            self.plan = plan.clone();
            self.record.plan = plan;
            self.save();
        }
    }

    fn explain(&mut self, failure: Failure) -> Diagnostic {
        let log_path = self.attempt_dir.as_ref().map(AttemptDir::engine_log);
        let said = self.log.as_ref().map(LogReader::said);
        let heard = said.as_deref().map(|said| (&said.scan, &said.figures));
        let known = self.diagnostic.take();
        let mut diagnostic =
            explain(failure, known, heard, log_path.as_deref(), self.exit_status, &self.plan);
        if let Some((pid, title, status)) = self.watched.first_ended() {
            let how = status.map_or_else(|| "the kernel does not say how".to_owned(), describe_status);
            diagnostic = diagnostic.fact(format!("process {pid} {title}"), format!("ended first, {how}"));
        }
        if let Some(kills) = self.oom_kills.filter(|kills| *kills > 0) {
            let text = format!("oom_kill {kills}: the kernel killed for lack of memory");
            diagnostic = diagnostic.fact("memory.events", text);
        }
        diagnostic.did.push(crate::report::stop_line(&self.stop));
        diagnostic
    }

    pub(super) fn end(&mut self, outcome: Outcome) {
        self.record.stop = Some(self.stop.clone());
        let mut event = match outcome {
            Outcome::Stopped { .. } => {
                self.record_state(LaunchState::Stopped, "");
                self.event(EventKind::Stopped)
            }
            Outcome::Failed(failure) => {
                let diagnostic = self.explain(failure);
                self.tell(self.event(EventKind::AttemptFailed).diagnostic(&diagnostic));
                self.record_state(LaunchState::Failed, &diagnostic.summary);
                self.diagnostic = Some(diagnostic);
                self.event(EventKind::Failed)
            }
            Outcome::Incomplete => {
                let diagnostic = crate::app::reap::incomplete(&self.plan.name, &self.stop);
                self.record_state(LaunchState::Failed, &diagnostic.summary);
                self.diagnostic = Some(diagnostic);
                self.event(EventKind::Failed)
            }
        };
        event.stop = Some(self.stop.clone());
        if let Some(diagnostic) = &self.diagnostic {
            event = event.diagnostic(diagnostic);
        }
        self.write_outcome(&event);
        self.tell(event);
    }

    fn write_outcome(&self, event: &Event) {
        let Some(dir) = &self.attempt_dir else { return };
        let written = serde_json::to_vec_pretty(event).map_err(|error| error.to_string()).and_then(|bytes| {
            write_atomic(&dir.path.join("outcome.json"), &bytes).map_err(|error| error.to_string())
        });
        if let Err(error) = written {
            self.warn(format!("the outcome cannot be written: {error}"));
        }
    }
}

/// Words for a figure that the engine printed.
pub(super) fn measured_text(measured: &Measured) -> String {
    match measured {
        Measured::Version(version) => format!("vLLM {version}"),
        Measured::KvCacheTokens(tokens) => format!("KV cache {tokens} tokens"),
        Measured::KvCacheDtype(dtype) => format!("KV cache data type {dtype}"),
        Measured::MaxModelLen(tokens) => format!("context {tokens} tokens"),
        Measured::WeightsSeconds(seconds) => format!("read in {seconds} s"),
    }
}

/// Appends one JSON line.
pub(super) fn append_event(path: &Utf8Path, event: &Event) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    let mut file = std::fs::File::options().create(true).append(true).mode(0o600).open(path)?;
    file.write_all(&line)
}
