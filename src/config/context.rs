//! The context window that is wanted.

use std::str::FromStr;

use crate::units::{ParseTokensError, Tokens};

/// How long a context is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContextWanted {
    /// As long as fits, up to the model's own length.
    #[default]
    Auto,
    /// Exactly this.
    Exactly(Tokens),
}

impl FromStr for ContextWanted {
    type Err = ParseTokensError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.eq_ignore_ascii_case("auto") || text == "-1" {
            return Ok(Self::Auto);
        }
        text.parse().map(Self::Exactly)
    }
}
