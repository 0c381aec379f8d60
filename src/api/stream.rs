//! One streamed completion, measured.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use serde_json::json;

use super::Client;
use crate::measure::{FailureKind, Recorder, RequestRecord, SseDecoder, parse_chunk, parse_server_error};
use crate::plan::Endpoint;
use crate::units::{Bytes, Tokens};

/// Longest event.
const MAX_EVENT: usize = 8 << 20;
/// Longest stream: an answer of a million tokens is far below it.
const MAX_STREAM: Bytes = Bytes::from_mib(512);
/// Longest error body that is read.
const MAX_ERROR: usize = 64 << 10;

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptRequest {
    /// Served name.
    pub model: String,
    /// Chat or plain completion.
    pub endpoint: Endpoint,
    /// The user's message, or the text to go on from.
    pub prompt: String,
    /// Output budget.
    pub max_tokens: Tokens,
    /// 0 for the same answer every time.
    pub temperature: f64,
}

impl PromptRequest {
    /// A request at temperature 0.
    #[must_use]
    pub const fn new(model: String, endpoint: Endpoint, prompt: String, max_tokens: Tokens) -> Self {
        Self { model, endpoint, prompt, max_tokens, temperature: 0.0 }
    }

    fn path(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "/v1/chat/completions",
            Endpoint::Completions => "/v1/completions",
        }
    }

    fn body(&self) -> serde_json::Value {
        let mut body = json!({
            "model": self.model,
            "max_tokens": self.max_tokens.as_u64(),
            "temperature": self.temperature,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        match self.endpoint {
            Endpoint::Chat => body["messages"] = json!([{"role": "user", "content": self.prompt}]),
            Endpoint::Completions => body["prompt"] = json!(self.prompt),
        }
        body
    }
}

/// How long an answer may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// The whole answer.
    pub total: Duration,
    /// Without a single byte.
    pub idle: Duration,
}

impl Client {
    /// Sends a streamed request and records what happens. Failures are part of the record; nothing is
    /// retried. Dropping the future closes the connection.
    pub async fn stream(&self, request: &PromptRequest, deadlines: Deadlines) -> RequestRecord {
        // Serialised before the clock starts: it is not the server's time.
        let body = request.body().to_string();
        let mut recorder = Recorder::default();
        let start = Instant::now();
        let exchange = self.exchange(request.path(), body, deadlines.idle, start, &mut recorder);
        if tokio::time::timeout(deadlines.total, exchange).await.is_err() {
            recorder.fail(
                FailureKind::TimedOut,
                format!("no complete answer within {} s", deadlines.total.as_secs()),
            );
        }
        recorder.finish(start.elapsed())
    }

    async fn exchange(
        &self,
        path: &str,
        body: String,
        idle: Duration,
        start: Instant,
        recorder: &mut Recorder,
    ) {
        let request = self.http.post(self.url(path)).header("content-type", "application/json").body(body);
        let stalled = |recorder: &mut Recorder| {
            recorder.fail(FailureKind::Stalled, format!("nothing came for {} s", idle.as_secs()));
        };
        let response = match tokio::time::timeout(idle, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) if error.is_connect() => {
                return recorder.fail(FailureKind::Refused, format!("no connection to {}", self.base()));
            }
            Ok(Err(error)) => {
                return recorder.fail(FailureKind::Broken, format!("the connection broke: {}", root(&error)));
            }
            Err(_) => return stalled(recorder),
        };
        recorder.headers(start.elapsed());
        let status = response.status().as_u16();
        if status != 200 {
            let text = error_text(response).await;
            return recorder.fail(FailureKind::HttpStatus, format!("HTTP {status}: {text}"));
        }
        let mut decoder = SseDecoder::new(MAX_EVENT);
        let mut total = 0_u64;
        let mut parts = response.bytes_stream();
        while !recorder.is_done() {
            let part = match tokio::time::timeout(idle, parts.next()).await {
                Ok(Some(Ok(part))) => part,
                Ok(Some(Err(error))) => {
                    return recorder
                        .fail(FailureKind::Broken, format!("the connection broke: {}", root(&error)));
                }
                Ok(None) => break,
                Err(_) => return stalled(recorder),
            };
            let at = start.elapsed();
            total += part.len() as u64;
            if total > MAX_STREAM.as_u64() {
                return recorder
                    .fail(FailureKind::BadProtocol, format!("the answer is longer than {MAX_STREAM}"));
            }
            let events = match decoder.feed(&part) {
                Ok(events) => events,
                Err(error) => return recorder.fail(FailureKind::BadProtocol, error.to_string()),
            };
            for event in events {
                match parse_chunk(&event) {
                    Ok(chunk) => recorder.chunk(at, chunk),
                    Err(error) => return recorder.fail(FailureKind::BadProtocol, error.to_string()),
                }
            }
        }
        if decoder.is_cut() && !recorder.is_done() {
            recorder.fail(FailureKind::CutStream, "the stream broke off in the middle of an event");
        }
    }
}

async fn error_text(response: reqwest::Response) -> String {
    let mut body = Vec::new();
    let mut parts = response.bytes_stream();
    while let Some(Ok(part)) = parts.next().await {
        body.extend_from_slice(&part);
        if body.len() >= MAX_ERROR {
            break;
        }
    }
    match parse_server_error(&body) {
        Some(error) => error.message,
        None if body.is_empty() => "no explanation".to_owned(),
        None => String::from_utf8_lossy(&body).chars().take(200).collect(),
    }
}

/// The innermost cause: reqwest's own messages repeat the address.
fn root(error: &reqwest::Error) -> String {
    let mut source: &dyn std::error::Error = error;
    while let Some(next) = source.source() {
        source = next;
    }
    source.to_string()
}
