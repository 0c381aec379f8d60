//! The record of one request: clock points, counts, text, outcome.
//!
//! Clock points (milliseconds since the request began to be sent; benchmark-method of vLLM 0.32):
//! headers → first event (often an empty role event) → first token of any kind (TTFT) → first token
//! of the answer → last token → end of the stream.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::chunk::{Chunk, Usage};

/// Kinds of failed requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// No connection.
    Refused,
    /// The connection broke.
    Broken,
    /// An HTTP status other than 200.
    HttpStatus,
    /// An error object in the stream, after HTTP 200.
    ErrorInStream,
    /// The stream ended without `[DONE]` and without a finish reason.
    CutStream,
    /// The stream ended well but carried no token.
    Empty,
    /// The whole request took too long.
    TimedOut,
    /// Nothing came for too long.
    Stalled,
    /// Not the OpenAI protocol.
    BadProtocol,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "result")]
pub enum Outcome {
    /// Complete: tokens, a finish reason, no error.
    Ok,
    /// Not complete.
    Failed {
        /// Kind.
        kind: FailureKind,
        /// What was seen.
        message: String,
    },
}

/// One request, measured. Times are in milliseconds since it began to be sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RequestRecord {
    /// How it ended.
    pub outcome: Outcome,
    /// Response headers.
    pub headers_ms: Option<f64>,
    /// First event, with or without a token.
    pub first_event_ms: Option<f64>,
    /// First token of any kind: reasoning, answer or tool call.
    pub first_token_ms: Option<f64>,
    /// First token of the answer.
    pub first_answer_ms: Option<f64>,
    /// Last event that carried a token.
    pub last_token_ms: Option<f64>,
    /// End of the body, or the moment it was given up.
    pub end_ms: f64,
    /// Gaps between consecutive events that carry tokens (ITL of vLLM; an event may hold several).
    pub gaps_ms: Vec<f64>,
    /// Events that carried tokens of the reasoning.
    pub reasoning_events: u64,
    /// Token counts by the server itself.
    pub usage: Option<Usage>,
    /// Why generation ended.
    pub finish_reason: Option<String>,
    /// The answer.
    pub text: String,
    /// The reasoning.
    pub reasoning: String,
}

/// Tokens and speed of one phase of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PhaseSpeed {
    /// How long.
    pub ms: f64,
    /// Tokens in it, when the server's counts say.
    pub tokens: Option<u64>,
    /// Tokens per second, when both are known.
    pub tokens_per_s: Option<f64>,
}

/// The three phases of an answer; one that did not happen is absent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Phases {
    /// To the first token: the prompt is read.
    pub prefill: Option<PhaseSpeed>,
    /// First token to first token of the answer.
    pub thinking: Option<PhaseSpeed>,
    /// First to last token of the answer.
    pub answer: Option<PhaseSpeed>,
}

impl RequestRecord {
    /// A record of a request that never got an answer.
    #[must_use]
    pub fn failed(kind: FailureKind, message: impl Into<String>, at: Duration) -> Self {
        let mut recorder = Recorder::default();
        recorder.fail(kind, message);
        recorder.finish(at)
    }

    /// Is it complete?
    #[must_use]
    pub const fn is_ok(&self) -> bool {
        matches!(self.outcome, Outcome::Ok)
    }

    /// What went wrong, in words.
    #[must_use]
    pub fn failure_text(&self) -> Option<String> {
        match &self.outcome {
            Outcome::Ok => None,
            Outcome::Failed { message, .. } => Some(message.clone()),
        }
    }

    /// Time to first token: first token of any kind.
    #[must_use]
    pub const fn ttft_ms(&self) -> Option<f64> {
        self.first_token_ms
    }

    /// End-to-end latency as vLLM 0.32 counts it: to the last token, the usage event and `[DONE]` are
    /// not waited for.
    #[must_use]
    pub const fn e2e_ms(&self) -> Option<f64> {
        self.last_token_ms
    }

    /// Output tokens by the server's count.
    #[must_use]
    pub fn output_tokens(&self) -> Option<u64> {
        self.usage.as_ref().map(|usage| usage.completion_tokens)
    }

    /// TPOT = (last token − first token) / (N − 1). `None` for N ≤ 1, without the server's count, or
    /// when everything came in one burst (a buffering proxy): then the time says nothing.
    #[must_use]
    pub fn tpot_ms(&self) -> Option<f64> {
        let tokens = self.output_tokens().filter(|n| *n > 1)?;
        if self.is_burst() {
            return None;
        }
        let span = self.last_token_ms? - self.first_token_ms?;
        (span > 0.0).then(|| span / (tokens - 1) as f64)
    }

    /// Decode speed of this stream: 1 / TPOT.
    #[must_use]
    pub fn decode_tokens_per_s(&self) -> Option<f64> {
        self.tpot_ms().map(|tpot| 1e3 / tpot)
    }

    /// Was the answer cut by `max_tokens` (or by the context window)?
    #[must_use]
    pub fn was_cut(&self) -> bool {
        self.finish_reason.as_deref() == Some("length")
    }

    /// Did more than 8 tokens all arrive within 1 % of the end-to-end latency, at its end?
    #[must_use]
    pub fn is_burst(&self) -> bool {
        match (self.first_token_ms, self.last_token_ms, self.output_tokens()) {
            (Some(first), Some(last), Some(tokens)) => {
                tokens > 8 && last > 0.0 && (last - first) / last < 0.01
            }
            _ => false,
        }
    }

    /// Splits the answer into its phases. Without the server's count of reasoning tokens the split is
    /// known only where one of both is empty.
    #[must_use]
    pub fn phases(&self) -> Phases {
        let speed = |ms: f64, tokens: Option<u64>| PhaseSpeed {
            ms,
            tokens,
            tokens_per_s: tokens.filter(|n| *n > 0 && ms > 0.0).map(|n| n as f64 * 1e3 / ms),
        };
        let total = self.output_tokens();
        let reasoned = match (&self.usage, self.reasoning_events, self.first_answer_ms) {
            (Some(Usage { reasoning_tokens: Some(n), .. }), _, _) => Some(*n),
            (Some(_), 0, _) => Some(0),
            (Some(usage), _, None) => Some(usage.completion_tokens),
            _ => None,
        };
        let prompt = self.usage.as_ref().map(|usage| usage.prompt_tokens);
        let thinking_end = self.first_answer_ms.or(self.last_token_ms);
        let thinking = match (self.reasoning_events, self.first_token_ms, thinking_end) {
            (1.., Some(first), Some(end)) => Some(speed(end - first, reasoned)),
            _ => None,
        };
        let answer = match (self.first_answer_ms, self.last_token_ms) {
            // The first token of the answer belongs to what came before it: N - R tokens after it
            // when something was reasoned, one less when it is the very first of all.
            (Some(first), Some(last)) => {
                let tokens = total.zip(reasoned).map(|(n, r)| n.saturating_sub(r).saturating_sub(1));
                Some(speed(last - first, tokens))
            }
            _ => None,
        };
        Phases { prefill: self.first_token_ms.map(|ms| speed(ms, prompt)), thinking, answer }
    }
}

/// Collects what happens to one request.
#[derive(Debug, Default)]
pub struct Recorder {
    headers: Option<Duration>,
    first_event: Option<Duration>,
    first_token: Option<Duration>,
    first_answer: Option<Duration>,
    last_token: Option<Duration>,
    gaps_ms: Vec<f64>,
    reasoning_events: u64,
    usage: Option<Usage>,
    finish_reason: Option<String>,
    text: String,
    reasoning: String,
    done: bool,
    failure: Option<(FailureKind, String)>,
}

/// Text that is kept of one answer; counts go on beyond it.
const MAX_TEXT: usize = 4 << 20;

impl Recorder {
    /// The response headers have come.
    pub const fn headers(&mut self, at: Duration) {
        self.headers = Some(at);
    }

    /// An event has come; `at` is when its bytes were read.
    pub fn chunk(&mut self, at: Duration, chunk: Chunk) {
        self.first_event.get_or_insert(at);
        if let Some(error) = &chunk.error {
            let code = error.code.map(|code| format!(" (code {code})")).unwrap_or_default();
            self.fail(
                FailureKind::ErrorInStream,
                format!("the server failed in the middle of the answer{code}: {}", error.message),
            );
        }
        if chunk.has_token() {
            self.first_token.get_or_insert(at);
            if !chunk.content.is_empty() || chunk.tool_call {
                self.first_answer.get_or_insert(at);
            } else {
                self.reasoning_events += 1;
            }
            if let Some(last) = self.last_token {
                self.gaps_ms.push(ms(at.saturating_sub(last)));
            }
            self.last_token = Some(at);
        }
        if self.text.len() < MAX_TEXT {
            self.text.push_str(&chunk.content);
        }
        if self.reasoning.len() < MAX_TEXT {
            self.reasoning.push_str(&chunk.reasoning);
        }
        self.usage = chunk.usage.or(self.usage.take());
        self.finish_reason = chunk.finish_reason.or(self.finish_reason.take());
        self.done |= chunk.done;
    }

    /// Has the stream said that it is over?
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.done
    }

    /// Something went wrong; the first thing counts.
    pub fn fail(&mut self, kind: FailureKind, message: impl Into<String>) {
        self.failure.get_or_insert((kind, message.into()));
    }

    /// The stream has ended, or was given up.
    #[must_use]
    pub fn finish(mut self, at: Duration) -> RequestRecord {
        if !self.done && self.finish_reason.is_none() {
            self.fail(FailureKind::CutStream, "the stream ended before the answer did");
        } else if self.finish_reason.is_none() {
            self.fail(FailureKind::BadProtocol, "the answer ended without a finish reason");
        } else if self.first_token.is_none()
            && self.usage.as_ref().is_none_or(|usage| usage.completion_tokens == 0)
        {
            self.fail(FailureKind::Empty, "the answer holds no token");
        } else if self.first_token.is_none() {
            self.fail(FailureKind::Empty, "the server counts tokens but sent no text");
        }
        RequestRecord {
            outcome: match self.failure {
                None => Outcome::Ok,
                Some((kind, message)) => Outcome::Failed { kind, message },
            },
            headers_ms: self.headers.map(ms),
            first_event_ms: self.first_event.map(ms),
            first_token_ms: self.first_token.map(ms),
            first_answer_ms: self.first_answer.map(ms),
            last_token_ms: self.last_token.map(ms),
            end_ms: ms(at),
            gaps_ms: self.gaps_ms,
            reasoning_events: self.reasoning_events,
            usage: self.usage,
            finish_reason: self.finish_reason,
            text: self.text,
            reasoning: self.reasoning,
        }
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn content(text: &str) -> Chunk {
        Chunk { content: text.into(), ..Chunk::default() }
    }

    fn usage(completion_tokens: u64, reasoning_tokens: Option<u64>) -> Chunk {
        let usage = Usage { prompt_tokens: 10, completion_tokens, reasoning_tokens, cached_tokens: None };
        Chunk { usage: Some(usage), ..Chunk::default() }
    }

    fn stop() -> Chunk {
        Chunk { finish_reason: Some("stop".into()), ..Chunk::default() }
    }

    fn done() -> Chunk {
        Chunk { done: true, ..Chunk::default() }
    }

    fn record(chunks: Vec<(u64, Chunk)>) -> RequestRecord {
        let mut recorder = Recorder::default();
        recorder.headers(at(1));
        let end = chunks.last().map_or(0, |(ms, _)| *ms);
        for (ms, chunk) in chunks {
            recorder.chunk(at(ms), chunk);
        }
        recorder.finish(at(end))
    }

    #[test]
    fn the_role_event_is_not_the_first_token() {
        let got = record(vec![
            (50, content("")),
            (100, content("a")),
            (110, content("b")),
            (130, content("c")),
            (130, stop()),
            (131, usage(4, None)),
            (131, done()),
        ]);
        assert!(got.is_ok());
        assert_eq!((got.first_event_ms, got.ttft_ms(), got.e2e_ms()), (Some(50.0), Some(100.0), Some(130.0)));
        assert_eq!(got.gaps_ms, [10.0, 20.0]);
        assert_eq!(got.tpot_ms(), Some(10.0), "tokens from usage, not from events");
        assert_eq!(got.decode_tokens_per_s(), Some(100.0));
        assert_eq!(got.text, "abc");
    }

    #[test]
    fn thinking_is_a_phase_of_its_own() {
        let reasoning = |text: &str| Chunk { reasoning: text.into(), ..Chunk::default() };
        let got = record(vec![
            (100, reasoning("h")),
            (200, reasoning("m")),
            (300, content("x")),
            (400, content("y")),
            (400, stop()),
            (401, usage(12, Some(6))),
            (401, done()),
        ]);
        assert_eq!((got.ttft_ms(), got.first_answer_ms), (Some(100.0), Some(300.0)));
        let phases = got.phases();
        assert_eq!(phases.prefill.and_then(|p| p.tokens_per_s), Some(100.0));
        assert_eq!(
            phases.thinking,
            Some(PhaseSpeed { ms: 200.0, tokens: Some(6), tokens_per_s: Some(30.0) })
        );
        assert_eq!(phases.answer, Some(PhaseSpeed { ms: 100.0, tokens: Some(5), tokens_per_s: Some(50.0) }));
        let unknown = record(vec![
            (1, reasoning("h")),
            (2, content("x")),
            (2, stop()),
            (3, usage(9, None)),
            (3, done()),
        ]);
        assert_eq!(unknown.phases().thinking.and_then(|p| p.tokens), None, "no figure where none is known");
    }

    #[test]
    fn every_way_to_fail_is_a_failure() {
        let kind = |chunks| match record(chunks).outcome {
            Outcome::Ok => None,
            Outcome::Failed { kind, .. } => Some(kind),
        };
        assert_eq!(kind(vec![(1, content("a"))]), Some(FailureKind::CutStream));
        assert_eq!(kind(vec![(1, stop()), (1, done())]), Some(FailureKind::Empty));
        assert_eq!(kind(vec![(1, content("a")), (1, done())]), Some(FailureKind::BadProtocol));
        assert_eq!(kind(vec![(1, stop()), (1, usage(3, None)), (1, done())]), Some(FailureKind::Empty));
        let error = Chunk {
            error: Some(crate::measure::ServerError { message: "m".into(), code: None }),
            ..Chunk::default()
        };
        assert_eq!(kind(vec![(1, content("a")), (2, error), (2, done())]), Some(FailureKind::ErrorInStream));
        assert_eq!(
            kind(vec![(1, content("a")), (1, stop())]),
            None,
            "a clean end with a finish reason is enough"
        );
    }

    #[test]
    fn a_burst_gives_no_decode_speed() {
        let mut chunks: Vec<_> = (0..20).map(|_| (1_000, content("a"))).collect();
        chunks.extend([(1_000, stop()), (1_001, usage(20, None)), (1_001, done())]);
        let got = record(chunks);
        assert!(got.is_ok() && got.is_burst());
        assert_eq!(got.tpot_ms(), None);
    }

    #[test]
    fn one_token_has_no_tpot_and_length_is_a_cut() {
        let cut = Chunk { finish_reason: Some("length".into()), ..content("a") };
        let got = record(vec![(5, cut), (6, usage(1, None)), (6, done())]);
        assert!(got.was_cut());
        assert_eq!(got.tpot_ms(), None);
    }
}
