//! The one door to stdout and stderr: decides colour, width, progress and quiet.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;

use anstream::AutoStream;
use anstyle::{AnsiColor, Style};
use jiff::Timestamp;

use super::diagnostic::Diagnostic;
use super::envelope::{Document, Envelope, Failure};
use super::exit::Exit;
use super::progress::Step;

/// `--color`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ColorChoice {
    /// Colour on a terminal, unless `NO_COLOR` or `TERM=dumb`.
    #[default]
    Auto,
    /// Colour always.
    Always,
    /// Colour never.
    Never,
}

/// What the command line asked of the door.
#[derive(Debug, Clone, Copy, Default)]
pub struct UiOptions {
    /// stdout carries exactly one JSON document.
    pub json: bool,
    /// Only the answer and errors.
    pub quiet: bool,
    /// Tracing goes to stderr, so bars stay away.
    pub verbose: bool,
    /// `--no-progress` or `KDEPLOY_NO_PROGRESS`.
    pub no_progress: bool,
    /// `--color`.
    pub color: ColorChoice,
}

/// The door. Cheap to share by reference; writes are line-atomic.
#[derive(Debug)]
pub struct Ui {
    options: UiOptions,
    bars: indicatif::MultiProgress,
    live: bool,
    width: usize,
    broken_pipe: Mutex<bool>,
}

impl Ui {
    /// Looks at the streams once.
    #[must_use]
    pub fn new(options: UiOptions) -> Self {
        let live = std::io::stderr().is_terminal()
            && !options.quiet
            && !options.verbose
            && !options.no_progress
            && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let target = if live {
            indicatif::ProgressDrawTarget::stderr()
        } else {
            indicatif::ProgressDrawTarget::hidden()
        };
        let width = std::env::var("COLUMNS")
            .ok()
            .and_then(|columns| columns.parse().ok())
            .unwrap_or_else(textwrap::termwidth)
            .clamp(60, 120);
        Self {
            options,
            bars: indicatif::MultiProgress::with_draw_target(target),
            live,
            width,
            broken_pipe: Mutex::new(false),
        }
    }

    /// Columns to wrap to.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.width
    }

    /// Does stdout carry a JSON document?
    #[must_use]
    pub const fn is_json(&self) -> bool {
        self.options.json
    }

    /// Are live bars drawn?
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.live
    }

    pub(super) const fn bars(&self) -> &indicatif::MultiProgress {
        &self.bars
    }

    /// Begins a step of a longer work: one bar on a terminal, single lines elsewhere.
    #[must_use]
    pub fn step(&self, name: &str) -> Step<'_> {
        Step::begin(self, name)
    }

    /// Writes the answer to stdout (text mode only), adding a final line feed when missing.
    pub fn answer(&self, text: &str) {
        if !self.options.json {
            self.stdout(text);
        }
    }

    /// Writes a document to stdout (JSON mode only).
    pub fn document<B: Document>(&self, body: B, exit: Exit) {
        if self.options.json {
            self.json_line(&Envelope::new(body, exit, Timestamp::now()));
        }
    }

    /// Writes one JSON line to stdout, whatever the mode: for streams of events.
    pub fn json_line<T: serde::Serialize>(&self, value: &T) {
        match serde_json::to_string(value) {
            Ok(text) => self.stdout(&text),
            Err(error) => self.warn(&format!("cannot write JSON: {error}")),
        }
    }

    /// Writes a line of conversation to stderr.
    pub fn say(&self, text: &str) {
        if !self.options.quiet {
            self.stderr(text);
        }
    }

    /// Writes a warning to stderr.
    pub fn warn(&self, text: &str) {
        let style = Style::new().fg_color(Some(AnsiColor::Yellow.into())).bold();
        self.stderr(&format!("{style}warning{style:#}: {text}"));
    }

    /// Writes a failure: text to stderr; in JSON mode also as the document on stdout.
    pub fn failure(&self, diagnostic: &Diagnostic) {
        self.complain(diagnostic);
        self.document(Failure::from(diagnostic), diagnostic.exit());
    }

    /// Writes a failure to stderr only: the command goes on, or prints its own document.
    pub fn complain(&self, diagnostic: &Diagnostic) {
        let text = diagnostic.render(self.width);
        let style = Style::new().fg_color(Some(AnsiColor::Red.into())).bold();
        let text = match text.split_once(':') {
            Some((head, rest)) => format!("{style}{head}{style:#}:{rest}"),
            None => text,
        };
        self.stderr(&text);
    }

    /// Writes a question to stderr, also when quiet: somebody is waited for.
    pub fn ask(&self, text: &str) {
        self.stderr(text);
    }

    /// Raw bytes to stdout: the engine's own log.
    pub fn raw(&self, bytes: &[u8]) {
        let mut out = std::io::stdout().lock();
        if out.write_all(bytes).and_then(|()| out.flush()).is_err() {
            self.set_broken();
        }
    }

    /// Has the reader of stdout gone away? Streams end quietly then.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken_pipe.lock().is_ok_and(|broken| *broken)
    }

    fn set_broken(&self) {
        if let Ok(mut broken) = self.broken_pipe.lock() {
            *broken = true;
        }
    }

    fn stdout(&self, text: &str) {
        let mut out = AutoStream::new(std::io::stdout().lock(), self.color(std::io::stdout().is_terminal()));
        let end = if text.ends_with('\n') { "" } else { "\n" };
        let written = self.bars.suspend(|| write!(out, "{text}{end}").and_then(|()| out.flush()));
        if written.is_err() {
            self.set_broken();
        }
    }

    pub(super) fn stderr(&self, text: &str) {
        let mut out = AutoStream::new(std::io::stderr().lock(), self.color(std::io::stderr().is_terminal()));
        let end = if text.ends_with('\n') { "" } else { "\n" };
        // A closed stderr is nobody's error: there is nobody left to tell.
        let _ = self.bars.suspend(|| write!(out, "{text}{end}").and_then(|()| out.flush()));
    }

    fn color(&self, terminal: bool) -> anstream::ColorChoice {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let forced = std::env::var_os("CLICOLOR_FORCE").is_some_and(|v| !v.is_empty() && v != "0");
        match self.options.color {
            ColorChoice::Always => anstream::ColorChoice::AlwaysAnsi,
            ColorChoice::Never => anstream::ColorChoice::Never,
            ColorChoice::Auto if set("NO_COLOR") => anstream::ColorChoice::Never,
            ColorChoice::Auto if forced || (terminal && !dumb) => anstream::ColorChoice::AlwaysAnsi,
            ColorChoice::Auto => anstream::ColorChoice::Never,
        }
    }
}
