//! Progress of a longer work: a live line on a terminal, one line per change elsewhere.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::ui::Ui;
use crate::units::format_duration;

/// Without a terminal at most one line in this time says that a step still runs.
const QUIET_INTERVAL: Duration = Duration::from_secs(30);

/// One step of a longer work. Dropping it without [`Step::done`] clears its live line.
#[derive(Debug)]
pub struct Step<'a> {
    ui: &'a Ui,
    name: String,
    bar: ProgressBar,
    started: Instant,
    last_line: Mutex<Instant>,
}

impl<'a> Step<'a> {
    pub(super) fn begin(ui: &'a Ui, name: &str) -> Self {
        let bar = ui.bars().add(ProgressBar::new_spinner());
        bar.set_style(spinner_style());
        bar.set_prefix(format!("{name:<10}"));
        bar.enable_steady_tick(Duration::from_millis(120));
        Self {
            ui,
            name: name.to_owned(),
            bar,
            started: Instant::now(),
            last_line: Mutex::new(Instant::now()),
        }
    }

    /// Says what is being done now. Without a terminal it is printed at most every 30 s.
    pub fn update(&self, text: &str) {
        self.bar.set_message(text.to_owned());
        if self.ui.is_live() {
            return;
        }
        let due = self.last_line.lock().is_ok_and(|mut last| {
            let due = last.elapsed() >= QUIET_INTERVAL;
            if due {
                *last = Instant::now();
            }
            due
        });
        if due {
            let elapsed = format_duration(self.started.elapsed());
            self.ui.say(&format!("  ..  {:<10}  {text}  {elapsed}", self.name));
        }
    }

    /// Shows a share of the whole, `done` of `total`.
    pub fn progress(&self, done: u64, total: u64, text: &str) {
        if self.bar.length() != Some(total) {
            self.bar.set_length(total);
            self.bar.set_style(bar_style());
        }
        self.bar.set_position(done);
        self.update(text);
    }

    /// Time since the step began.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Ends the step with one lasting line.
    pub fn done(self, text: &str) {
        self.finish("ok", text);
    }

    /// Ends the step: nothing had to be done.
    pub fn skipped(self, text: &str) {
        self.finish("--", text);
    }

    /// Ends the step: it did not succeed; the diagnostic follows.
    pub fn failed(self, text: &str) {
        self.finish("!!", text);
    }

    fn finish(self, mark: &str, text: &str) {
        self.bar.finish_and_clear();
        let elapsed = format_duration(self.started.elapsed());
        // Mark, name and gaps take 19 columns; the last one stays free, or some terminals wrap.
        let room = self.ui.width().saturating_sub(20 + elapsed.len());
        self.ui.say(&format!("  {mark}  {:<10}  {text:<room$} {elapsed}", self.name));
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if !self.bar.is_finished() {
            self.bar.finish_and_clear();
        }
    }
}

fn spinner_style() -> ProgressStyle {
    ProgressStyle::with_template("  ..  {prefix}  {wide_msg} {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn bar_style() -> ProgressStyle {
    ProgressStyle::with_template("  ..  {prefix}  [{bar:28}] {percent:>3}%  {wide_msg} {elapsed}  {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("##.")
}
