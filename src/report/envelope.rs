//! The frame of every `--json` document.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::codes::ErrorCode;
use super::diagnostic::{Diagnostic, Evidence, Remedy, Retry};
use super::exit::Exit;

/// A body that can be sent as a `--json` document. The version is raised when a field is renamed,
/// removed or changes its meaning; adding one keeps it.
pub trait Document: Serialize {
    /// `kdeploy/plan`, `kdeploy/status`, …
    const SCHEMA: &'static str;
    /// Version of that shape.
    const VERSION: u32;
}

/// The frame: schema, version, program, time, outcome, then the body's own fields.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Envelope<B> {
    schema: &'static str,
    version: u32,
    kdeploy: &'static str,
    time: String,
    ok: bool,
    exit: u8,
    #[serde(flatten)] // output only: nothing is parsed through it
    body: B,
}

impl<B: Document> Envelope<B> {
    /// Frames `body`, observed at `now`, for a command that ends with `exit`.
    #[must_use]
    pub fn new(body: B, exit: Exit, now: Timestamp) -> Self {
        Self {
            schema: B::SCHEMA,
            version: B::VERSION,
            kdeploy: env!("CARGO_PKG_VERSION"),
            time: now.to_string(),
            ok: exit == Exit::Done,
            exit: exit.code(),
            body,
        }
    }
}

/// The body of a failed command.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Failure {
    error: ErrorBody,
}

impl Document for Failure {
    const SCHEMA: &'static str = "kdeploy/error";
    const VERSION: u32 = 1;
}

/// A diagnostic in JSON; also used for warnings inside other documents and in events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    code: String,
    summary: String,
    cause: String,
    evidence: Vec<Evidence>,
    did: Vec<String>,
    remedy: Vec<Remedy>,
    retry: Retry,
}

impl From<&Diagnostic> for ErrorBody {
    fn from(diagnostic: &Diagnostic) -> Self {
        Self {
            code: diagnostic.code.name().to_owned(),
            summary: diagnostic.summary.clone(),
            cause: diagnostic.cause.clone(),
            evidence: diagnostic.evidence.clone(),
            did: diagnostic.did.clone(),
            remedy: diagnostic.remedy.clone(),
            retry: diagnostic.retry,
        }
    }
}

impl From<ErrorBody> for Diagnostic {
    /// The way back, for events of a supervisor in another process. A code of a newer kdeploy becomes
    /// `unknown-failure`.
    fn from(body: ErrorBody) -> Self {
        let code = ErrorCode::from_name(&body.code).unwrap_or(ErrorCode::UnknownFailure);
        let ErrorBody { code: _, summary, cause, evidence, did, remedy, retry } = body;
        Self { code, summary, cause, evidence, did, remedy, retry }
    }
}

impl From<&Diagnostic> for Failure {
    fn from(diagnostic: &Diagnostic) -> Self {
        Self { error: diagnostic.into() }
    }
}
