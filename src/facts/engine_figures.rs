//! What engines said of themselves, and what was kept of it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Tokens};

/// Figures of one start. Of several ranks the one that binds: the largest need, the smallest rest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EngineFigures {
    /// Weights of a rank.
    pub weights: Option<Bytes>,
    /// Seconds that loading took.
    pub load_seconds: Option<f64>,
    /// Memory left for the KV cache; never negative here.
    pub available: Option<Bytes>,
    /// Tokens that it holds, as printed.
    pub tokens: Option<Tokens>,
    /// Requests of full length at once, as printed.
    pub concurrency: Option<f64>,
    /// CUDA graphs, as captured.
    pub graphs: Option<Bytes>,
    /// CUDA graphs, as estimated before.
    pub graphs_estimate: Option<Bytes>,
    /// Activations at their peak.
    pub activations: Option<Bytes>,
    /// Memory outside PyTorch.
    pub non_torch: Option<Bytes>,
    /// Context window in use.
    pub context: Option<Tokens>,
    /// Data type of the KV cache, when the engine names one.
    pub kv_dtype: Option<String>,
    /// Ranks of the engine.
    pub world_size: Option<u64>,
    /// Context window that was refused.
    pub refused_context: Option<Tokens>,
    /// Memory that it would need.
    pub refused_needs: Option<Bytes>,
    /// Context window that the engine says would fit.
    pub named_context: Option<Tokens>,
}

/// What a start taught, for the next plan of the same model, engine, hardware and options.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Learned {
    /// When, RFC 3339.
    pub at: String,
    /// Time from start to ready, in milliseconds.
    pub ready_ms: u64,
    /// Weights of a rank.
    pub weights: Option<Bytes>,
    /// Everything that a GPU holds beside weights and KV cache.
    pub beside: Option<Bytes>,
}

/// What was learned, by the key of a plan.
pub type LearnedBook = BTreeMap<String, Learned>;
