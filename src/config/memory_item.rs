//! Rows of the memory table that can be given.

use std::str::FromStr;

/// A row of the memory table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryItem {
    /// Weights of a rank.
    Weights,
    /// Activations at their peak.
    Activations,
    /// CUDA graphs.
    Graphs,
    /// Memory outside PyTorch.
    Outside,
}

/// Why a row could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no row of the memory table; write weights, activations, graphs or outside")]
pub struct ParseMemoryItemError {
    given: String,
}

impl FromStr for MemoryItem {
    type Err = ParseMemoryItemError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "weights" => Self::Weights,
            "activations" => Self::Activations,
            "graphs" | "cuda-graphs" => Self::Graphs,
            "outside" | "non-torch" => Self::Outside,
            _ => return Err(ParseMemoryItemError { given: text.chars().take(40).collect() }),
        })
    }
}
