//! What a request did: stream decoding, records, statistics, verdicts on answers.
//!
//! Pure: bytes and time stamps come in as values. Definitions follow vLLM's (`vllm bench serve`
//! 0.32) where it has one, and say so where they differ.

mod chunk;
mod models;
mod prometheus;
mod record;
mod smoke;
mod sse;
mod stats;

pub use chunk::{Chunk, ChunkError, ServerError, Usage, parse_chunk, parse_server_error};
pub use models::{ModelsError, ServedModel, parse_models};
pub use prometheus::{Sample, ServerLoad, parse_samples, sum_of};
pub use record::{FailureKind, Outcome, PhaseSpeed, Phases, Recorder, RequestRecord};
pub use smoke::{Verdict, judge};
pub use sse::{SseDecoder, SseError};
pub use stats::{Summary, percentile};
