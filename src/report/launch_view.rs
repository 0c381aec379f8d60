//! Events of a launch as a person reads them: one region redrawn on a terminal, one line per stage
//! elsewhere.

use std::time::{Duration, Instant};

use super::progress::Step;
use super::schema::{Event, EventKind, ReadyBody};
use super::ui::Ui;
use super::{Diagnostic, Exit};
use crate::lifecycle::Stage;
use crate::units::{format_duration, three_digits};

/// Draws events in the order they come.
#[derive(Debug)]
pub struct LaunchView<'a> {
    ui: &'a Ui,
    step: Option<(Stage, Step<'a>)>,
    note: String,
    /// When the attempt is expected to be ready.
    expected: Option<Instant>,
}

impl<'a> LaunchView<'a> {
    /// A view that draws through `ui`.
    #[must_use]
    pub const fn new(ui: &'a Ui) -> Self {
        Self { ui, step: None, note: String::new(), expected: None }
    }

    /// Draws one event.
    pub fn show(&mut self, event: &Event) {
        match event.event {
            EventKind::AttemptStarted => {
                self.step = None;
                let log = event.text.as_deref().unwrap_or_default();
                let eta = event.eta_ms.map(Duration::from_millis);
                self.expected = eta.and_then(|eta| Instant::now().checked_add(eta));
                let about =
                    eta.map(|eta| format!("   ready in about {}", format_duration(eta))).unwrap_or_default();
                self.ui.say(&format!("{}  attempt {}{about}   log: {log}", event.name, event.attempt));
            }
            EventKind::StageStarted => {
                if let Some(stage) = event.stage {
                    self.note.clear();
                    let step = self.ui.step(stage.label());
                    step.update(&self.with_time_left(event.text.as_deref().unwrap_or_default()));
                    self.step = Some((stage, step));
                }
            }
            EventKind::StageProgress => self.progress(event),
            EventKind::StageDone => {
                if let Some((_, step)) = self.step.take() {
                    step.done(event.text.as_deref().unwrap_or(&self.note));
                }
            }
            EventKind::Ready => {
                self.step = None;
                if let Some(ready) = &event.ready {
                    self.ready(&event.name, ready);
                }
            }
            EventKind::AttemptFailed => {
                if let Some((_, step)) = self.step.take() {
                    step.failed("");
                }
                if let Some(body) = &event.diagnostic {
                    self.ui.complain(&Diagnostic::from(body.clone()));
                }
            }
            EventKind::Retrying | EventKind::Stopping => {
                self.step = None;
                self.ui.say(event.text.as_deref().unwrap_or_default());
            }
            EventKind::Stopped => {
                self.step = None;
                if let Some(stop) = &event.stop {
                    self.ui.say(&stop_line(stop));
                }
            }
            EventKind::Failed => self.step = None,
            EventKind::Warning => self.ui.warn(event.text.as_deref().unwrap_or_default()),
        }
    }

    /// Redraws what changes with time alone.
    pub fn tick(&self) {
        if let Some((_, step)) = &self.step
            && self.ui.is_live()
        {
            step.update(&self.with_time_left(&self.note));
        }
    }

    fn progress(&mut self, event: &Event) {
        let Some((_, step)) = &self.step else { return };
        match (event.done, event.total) {
            (Some(done), Some(total)) => {
                self.note = format!("{done} of {total}");
                step.progress(done, total, &self.note);
            }
            _ => {
                if let Some(text) = &event.text {
                    self.note.clone_from(text);
                    step.update(&self.with_time_left(text));
                }
            }
        }
    }

    /// A text with the time until ready, while there is some left.
    fn with_time_left(&self, text: &str) -> String {
        let left = self.expected.map(|expected| expected.saturating_duration_since(Instant::now()));
        match left.filter(|left| *left > Duration::from_secs(1)) {
            Some(left) => {
                format!("{text}  about {} until ready", format_duration(left)).trim_start().to_owned()
            }
            None => text.to_owned(),
        }
    }

    fn ready(&self, name: &str, ready: &ReadyBody) {
        self.ui.answer(&ready_text(name, ready));
        for problem in &ready.smoke_problems {
            self.ui.warn(problem);
        }
    }
}

/// The lines that a person waits for.
fn ready_text(name: &str, ready: &ReadyBody) -> String {
    let took = format_duration(Duration::from_millis(ready.ready_ms));
    let mut text = format!("Ready: {}/v1   model {}   {took}\n", ready.url, ready.model);
    if ready.smoke_total > 0 {
        text += &format!("  smoke    {} of {} answers correct\n", ready.smoke_passed, ready.smoke_total);
    }
    for line in &ready.evidence {
        text += &format!("  evidence {line}\n");
    }
    if let Some(e2e) = ready.cold_e2e_ms {
        let tokens = ready.cold_output_tokens.map(|n| format!(" for {n} tokens")).unwrap_or_default();
        let ttft = ready.cold_ttft_ms.map(|ms| format!(", first token after {} ms", three_digits(ms)));
        text += &format!(
            "  cold     first request of all took {}{tokens}{}\n",
            format_duration(Duration::from_secs_f64(e2e.max(0.0) / 1e3)),
            ttft.unwrap_or_default()
        );
    }
    text + &format!("Next: kdeploy bench {name}    kdeploy status {name}    kdeploy down {name}")
}

/// One line about a stop.
#[must_use]
pub fn stop_line(stop: &crate::facts::StopReport) -> String {
    let mut parts = vec![match stop.stopped.len() {
        0 => "no process was left".to_owned(),
        1 => "stopped 1 process".to_owned(),
        n => format!("stopped {n} processes"),
    }];
    if stop.freed > crate::units::Bytes::ZERO {
        parts.push(format!("freed {}", stop.freed));
    }
    if !stop.removed.is_empty() {
        parts.push(format!("removed {}", stop.removed.join(", ")));
    }
    if !stop.survivors.is_empty() {
        parts.push(format!("still there: {}", stop.survivors.join(", ")));
    }
    parts.join("; ")
}

/// The exit code for a deployment that became ready.
#[must_use]
pub const fn exit_when_ready(ready: &ReadyBody) -> Exit {
    if ready.smoke_passed == ready.smoke_total { Exit::Done } else { Exit::No }
}
