//! `kdeploy/bench`: measured speed with everything needed to compare it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::measure::{Phases, RequestRecord, Summary, percentile};
use crate::report::Document;

/// Conditions of the measurement.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct EnvironmentBody {
    /// Deployment or address.
    pub name: String,
    /// Model as it is served.
    pub model: String,
    /// Hardware, when it is this host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware: Option<String>,
    /// vLLM version, when it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Command line of the engine, when it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Model revision, when it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Requests running on the server before the measurement began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_before: Option<u64>,
}

/// What was asked.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct WorkloadBody {
    /// The prompt.
    pub prompt: String,
    /// Output budget.
    pub max_tokens: u64,
    /// 0: the same answer every time.
    pub temperature: f64,
    /// Requests in flight at once.
    pub concurrency: u32,
    /// No randomness is used.
    pub seed: Option<u64>,
}

/// Requests by fate.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub struct CountsBody {
    /// Sent.
    pub sent: usize,
    /// Complete.
    pub ok: usize,
    /// Failed; never part of a latency.
    pub failed: usize,
}

/// Figures over the complete requests of a run; formulas in `formulas`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct MetricsBody {
    /// Time to first token.
    pub ttft_ms: Option<Summary>,
    /// Time per output token after the first.
    pub tpot_ms: Option<Summary>,
    /// Gaps between events that carry tokens, pooled: median.
    pub itl_p50_ms: Option<f64>,
    /// Longest of those gaps.
    pub itl_max_ms: Option<f64>,
    /// End-to-end latency.
    pub e2el_ms: Option<Summary>,
    /// Decode speed of a stream: 1 / TPOT.
    pub decode_tokens_per_s: Option<Summary>,
    /// Tokens of the prompt, by the server's count.
    pub prompt_tokens: Option<u64>,
    /// Tokens of output, by the server's count.
    pub output_tokens: Option<Summary>,
    /// Tokens of output that were reasoning, when the server says.
    pub reasoning_tokens: Option<u64>,
    /// Phases of the median request.
    pub phases: Option<Phases>,
}

/// One run.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct RunBody {
    /// `cold` (the first request after the start) or `warm` (alone, after it).
    pub mode: &'static str,
    /// Fates.
    pub counts: CountsBody,
    /// Figures.
    pub metrics: MetricsBody,
    /// Finish reasons and how often each occurred.
    pub finish_reasons: BTreeMap<String, usize>,
    /// What went wrong, one line a failed request.
    pub failures: Vec<String>,
}

impl RunBody {
    /// Sums up the records of a run.
    #[must_use]
    pub fn of(mode: &'static str, records: &[RequestRecord]) -> Self {
        let ok: Vec<&RequestRecord> = records.iter().filter(|record| record.is_ok()).collect();
        let gaps: Vec<f64> = ok.iter().flat_map(|record| record.gaps_ms.iter().copied()).collect();
        let mut finish_reasons = BTreeMap::new();
        for record in &ok {
            let reason = record.finish_reason.clone().unwrap_or_else(|| "none".to_owned());
            *finish_reasons.entry(reason).or_insert(0) += 1;
        }
        let usage = ok.first().and_then(|record| record.usage.as_ref());
        let mut by_latency: Vec<&&RequestRecord> = ok.iter().collect();
        by_latency.sort_by(|a, b| a.end_ms.total_cmp(&b.end_ms));
        Self {
            mode,
            counts: CountsBody { sent: records.len(), ok: ok.len(), failed: records.len() - ok.len() },
            metrics: MetricsBody {
                ttft_ms: Summary::of(ok.iter().filter_map(|r| r.ttft_ms())),
                tpot_ms: Summary::of(ok.iter().filter_map(|r| r.tpot_ms())),
                itl_p50_ms: percentile(&gaps, 50.0),
                itl_max_ms: percentile(&gaps, 100.0),
                e2el_ms: Summary::of(ok.iter().filter_map(|r| r.e2e_ms())),
                decode_tokens_per_s: Summary::of(ok.iter().filter_map(|r| r.decode_tokens_per_s())),
                prompt_tokens: usage.map(|usage| usage.prompt_tokens),
                output_tokens: Summary::of(ok.iter().filter_map(|r| r.output_tokens()).map(|n| n as f64)),
                reasoning_tokens: usage.and_then(|usage| usage.reasoning_tokens),
                phases: by_latency.get(by_latency.len().saturating_sub(1) / 2).map(|record| record.phases()),
            },
            finish_reasons,
            failures: records.iter().filter_map(RequestRecord::failure_text).collect(),
        }
    }
}

/// The outcome of `bench`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BenchBody {
    /// Conditions.
    pub environment: EnvironmentBody,
    /// What was asked.
    pub workload: WorkloadBody,
    /// Cold when there was a fresh server, then warm.
    pub runs: Vec<RunBody>,
    /// What could mislead, in words.
    pub notes: Vec<String>,
    /// How each figure is computed.
    pub formulas: BTreeMap<&'static str, &'static str>,
    /// File with every request's record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records: Option<String>,
}

impl BenchBody {
    /// The formulas behind the figures; other tools use the same words for other things.
    #[must_use]
    pub fn formulas() -> BTreeMap<&'static str, &'static str> {
        BTreeMap::from([
            ("ttft", "first token of any kind - send; vLLM's empty role event does not count"),
            ("tpot", "(last token - first token) / (output tokens by usage - 1), per request"),
            ("itl", "gap between events that carry tokens; an event may hold several"),
            ("e2el", "last token - send"),
            ("decode_tokens_per_s", "1 / tpot"),
            ("ci95", "Student's t on the means of requests"),
        ])
    }
}

impl Document for BenchBody {
    const SCHEMA: &'static str = "kdeploy/bench";
    const VERSION: u32 = 1;
}
