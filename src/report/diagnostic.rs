//! A failure as a person and a program read it: what happened, the evidence, what kdeploy did,
//! what to do next.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::codes::ErrorCode;
use super::exit::Exit;

/// Columns before the text of a part.
const INDENT: usize = 12;

/// May the same command succeed when it is simply run again?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// No: the cause is permanent.
    Never,
    /// Yes, later: something else has to end first.
    Later,
    /// Only after a change that `remedy` names.
    AfterChange,
}

/// Where a piece of evidence comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceKind {
    /// A line of the engine's log.
    Log,
    /// Something read from the machine or a file.
    Fact,
}

/// One observation that supports the diagnosis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// Where it comes from.
    pub kind: EvidenceKind,
    /// `engine.log:1184`, a path, a command: empty when the text says it all.
    #[serde(rename = "where")]
    pub place: String,
    /// What was seen, without control characters.
    pub text: String,
}

/// Something the reader can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Remedy {
    /// What it achieves.
    pub text: String,
    /// A command to paste, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// A user-visible failure. `exit` is the code's own unless a command says otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct Diagnostic {
    /// Stable code.
    pub code: ErrorCode,
    /// One line, no full stop.
    pub summary: String,
    /// Why, in the reader's terms; may be empty.
    pub cause: String,
    /// What was seen.
    pub evidence: Vec<Evidence>,
    /// What kdeploy already did about it.
    pub did: Vec<String>,
    /// What the reader can do, best first.
    pub remedy: Vec<Remedy>,
    /// May running it again help?
    pub retry: Retry,
}

impl Diagnostic {
    /// Starts a diagnostic that only a change can cure.
    #[must_use]
    pub fn new(code: ErrorCode, summary: impl Into<String>) -> Self {
        Self {
            code,
            summary: summary.into(),
            cause: String::new(),
            evidence: Vec::new(),
            did: Vec::new(),
            remedy: Vec::new(),
            retry: Retry::AfterChange,
        }
    }

    /// Adds the cause.
    #[must_use]
    pub fn cause(mut self, cause: impl Into<String>) -> Self {
        self.cause = cause.into();
        self
    }

    /// Takes the cause from an error with its whole source chain, each message once.
    #[must_use]
    pub fn cause_chain(self, error: &dyn std::error::Error) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(next) = source {
            let message = next.to_string();
            if !text.contains(&message) {
                let _ = write!(text, ": {message}");
            }
            source = next.source();
        }
        self.cause(text)
    }

    /// Adds something read from the machine.
    #[must_use]
    pub fn fact(mut self, place: impl Into<String>, text: impl Into<String>) -> Self {
        self.evidence.push(Evidence { kind: EvidenceKind::Fact, place: place.into(), text: text.into() });
        self
    }

    /// Adds a line of the engine's log.
    #[must_use]
    pub fn log_line(mut self, place: impl Into<String>, text: impl Into<String>) -> Self {
        self.evidence.push(Evidence { kind: EvidenceKind::Log, place: place.into(), text: text.into() });
        self
    }

    /// Adds something kdeploy already did.
    #[must_use]
    pub fn did(mut self, what: impl Into<String>) -> Self {
        self.did.push(what.into());
        self
    }

    /// Adds an advice without a command.
    #[must_use]
    pub fn advice(mut self, text: impl Into<String>) -> Self {
        self.remedy.push(Remedy { text: text.into(), command: None });
        self
    }

    /// Adds an advice with the command that follows it.
    #[must_use]
    pub fn command(mut self, text: impl Into<String>, command: impl Into<String>) -> Self {
        self.remedy.push(Remedy { text: text.into(), command: Some(command.into()) });
        self
    }

    /// Says whether running it again may help.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// The exit code it leads to.
    #[must_use]
    pub fn exit(&self) -> Exit {
        self.code.exit()
    }

    /// Plain text, wrapped to `width` columns, ending in a line feed. Colour is the door's business.
    #[must_use]
    pub fn render(&self, width: usize) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "error[{}]: {}", self.code, clean(&self.summary));
        let part = |out: &mut String, label: &str, text: &str| {
            let (first, rest) = (format!("  {label:<9} "), " ".repeat(INDENT));
            let options = textwrap::Options::new(width.max(40))
                .initial_indent(&first)
                .subsequent_indent(&rest)
                .break_words(false)
                // Paths stay whole: they are copied from here.
                .word_separator(textwrap::WordSeparator::AsciiSpace)
                .word_splitter(textwrap::WordSplitter::NoHyphenation);
            for line in textwrap::wrap(&clean(text), options) {
                let _ = writeln!(out, "{line}");
            }
        };
        if !self.cause.is_empty() {
            part(&mut out, "cause", &self.cause);
        }
        for (i, item) in self.evidence.iter().enumerate() {
            let label = if i == 0 { "evidence" } else { "" };
            let text = if item.place.is_empty() {
                item.text.clone()
            } else {
                format!("{}  {}", item.place, item.text)
            };
            part(&mut out, label, &text);
        }
        for (i, did) in self.did.iter().enumerate() {
            part(&mut out, if i == 0 { "done" } else { "" }, did);
        }
        for (i, remedy) in self.remedy.iter().take(3).enumerate() {
            let label = if i == 0 { "you can" } else { "" };
            let Some(command) = &remedy.command else {
                part(&mut out, label, &remedy.text);
                continue;
            };
            let line = format!("{}: {command}", remedy.text);
            if INDENT + textwrap::core::display_width(&line) <= width.max(40) {
                part(&mut out, label, &line);
            } else {
                // A command that is broken in two cannot be pasted.
                part(&mut out, label, &format!("{}:", remedy.text));
                let _ = writeln!(out, "{:INDENT$}  {}", "", clean(command));
            }
        }
        out
    }
}

/// Replaces control characters (escape codes from a log, say) so that evidence cannot drive the
/// reader's terminal.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::{Diagnostic, Retry};
    use crate::report::ErrorCode;

    #[test]
    fn renders_every_part_wrapped_and_without_control_characters() {
        let text = Diagnostic::new(ErrorCode::PortBusy, "port 8000 is taken")
            .cause(
                "another program listens there and would get the requests of this deployment instead of it",
            )
            .fact("127.0.0.1:8000", "bind: address in use \u{1b}[31m")
            .did("started nothing")
            .command("use another port", "kdeploy up m --port 8001")
            .advice("or end that program")
            .retry(Retry::Later)
            .render(60);
        insta::assert_snapshot!(text, @r"
        error[port-busy]: port 8000 is taken
          cause     another program listens there and would get the
                    requests of this deployment instead of it
          evidence  127.0.0.1:8000  bind: address in use �[31m
          done      started nothing
          you can   use another port: kdeploy up m --port 8001
                    or end that program
        ");
    }

    #[test]
    fn paths_and_commands_stay_whole() {
        let path = "/a/long/path/of/a/checkpoint/in/a/directory/that/has/a/name";
        let text = Diagnostic::new(ErrorCode::Io, "x")
            .cause(format!("the file {path} is not there"))
            .command("look at it", format!("ls -l {path}"))
            .render(60);
        insta::assert_snapshot!(text, @r"
        error[io]: x
          cause     the file
                    /a/long/path/of/a/checkpoint/in/a/directory/that/has/a/name
                    is not there
          you can   look at it:
                      ls -l /a/long/path/of/a/checkpoint/in/a/directory/that/has/a/name
        ");
    }

    #[test]
    fn a_source_chain_is_told_once() {
        let io = std::io::Error::other("no space left");
        let text = Diagnostic::new(ErrorCode::Io, "x").cause_chain(&io).cause;
        assert_eq!(text, "no space left");
    }
}
