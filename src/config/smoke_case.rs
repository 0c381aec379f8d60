//! What a smoke check asks and expects.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::Tokens;

/// One question with what its answer must hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SmokeCase {
    /// Short kebab-case name, unique in its suite.
    pub id: String,
    /// The user's message.
    pub prompt: String,
    /// Output budget of the request.
    pub max_tokens: Tokens,
    /// What the answer must be.
    pub expect: Expectation,
}

/// What an answer must be. An answer is also wrong when it is empty, was cut by `max_tokens`
/// (unless `may_be_cut`), or ended without a finish reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Expectation {
    /// Texts of which each must occur, case ignored.
    pub contains: Vec<String>,
    /// The answer may end at `max_tokens`.
    pub may_be_cut: bool,
}
