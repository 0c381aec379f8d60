//! `kdeploy/event`: what a launch says while it happens; JSON lines of `up --events`, of
//! `events.jsonl`, and between a detached supervisor and the `up` that waits for it.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::facts::StopReport;
use crate::lifecycle::Stage;
use crate::report::{Diagnostic, ErrorBody};

/// Kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// An attempt begins.
    AttemptStarted,
    /// A stage begins.
    StageStarted,
    /// Work was counted inside a stage.
    StageProgress,
    /// A stage ended.
    StageDone,
    /// The deployment answers.
    Ready,
    /// The attempt failed.
    AttemptFailed,
    /// Another attempt follows.
    Retrying,
    /// The stop begins.
    Stopping,
    /// The launch is over and everything is gone.
    Stopped,
    /// The launch is over because it failed.
    Failed,
    /// Something the reader should know.
    Warning,
}

/// What `ready` carries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReadyBody {
    /// Base URL of the API.
    pub url: String,
    /// Name under which the model is served.
    pub model: String,
    /// Start of the attempt to ready.
    pub ready_ms: u64,
    /// The first request: time to first token.
    pub cold_ttft_ms: Option<f64>,
    /// The first request: end to end.
    pub cold_e2e_ms: Option<f64>,
    /// The first request: tokens of output, by the server's own count.
    pub cold_output_tokens: Option<u64>,
    /// Smoke cases passed.
    pub smoke_passed: u32,
    /// Smoke cases asked.
    pub smoke_total: u32,
    /// What was wrong with the answers, one sentence each.
    pub smoke_problems: Vec<String>,
    /// Lines of the engine's log that confirm the plan, as `engine.log:LINE TEXT`.
    #[serde(default)]
    pub evidence: Vec<String>,
}

/// One event. Fields that do not apply are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// `kdeploy/event`.
    pub schema: String,
    /// Version of this shape.
    pub version: u32,
    /// When, RFC 3339 UTC.
    pub time: String,
    /// What.
    pub event: EventKind,
    /// Name of the deployment.
    pub name: String,
    /// Number of the attempt inside its launch, from 1.
    pub attempt: u32,
    /// Stage it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// Work done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    /// Work to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// How long the stage took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed_ms: Option<u64>,
    /// Expected time from here to ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_ms: Option<u64>,
    /// Something for people: path of the log, a measured figure, a warning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Figures of `ready`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadyBody>,
    /// What a failure was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnostic: Option<ErrorBody>,
    /// What a stop ended and removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopReport>,
}

impl Event {
    /// An event with nothing but its kind.
    #[must_use]
    pub fn new(name: &str, attempt: u32, kind: EventKind) -> Self {
        Self {
            schema: "kdeploy/event".to_owned(),
            version: 1,
            time: Timestamp::now().to_string(),
            event: kind,
            name: name.to_owned(),
            attempt,
            stage: None,
            done: None,
            total: None,
            elapsed_ms: None,
            eta_ms: None,
            text: None,
            ready: None,
            diagnostic: None,
            stop: None,
        }
    }

    /// Adds the stage.
    #[must_use]
    pub const fn stage(mut self, stage: Stage) -> Self {
        self.stage = Some(stage);
        self
    }

    /// Adds a text.
    #[must_use]
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.text = Some(text.into());
        self
    }

    /// Adds a failure.
    #[must_use]
    pub fn diagnostic(mut self, diagnostic: &Diagnostic) -> Self {
        self.diagnostic = Some(diagnostic.into());
        self
    }
}
