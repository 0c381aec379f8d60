//! Counts of tokens.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A count of tokens: a context window, a KV cache capacity, an output length. Printed with
/// thousands separators, as vLLM does.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Tokens(u64);

impl Tokens {
    /// Wraps a plain count.
    #[must_use]
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// The plain count.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The largest multiple of `step` that is not above this count. A `step` of zero changes nothing.
    #[must_use]
    pub const fn round_down_to(self, step: u64) -> Self {
        match self.0.checked_rem(step) {
            Some(rest) => Self(self.0 - rest),
            None => self,
        }
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut out = String::with_capacity(digits.len() * 4 / 3);
        for (i, digit) in digits.chars().enumerate() {
            if i > 0 && (digits.len() - i).is_multiple_of(3) {
                out.push(',');
            }
            out.push(digit);
        }
        f.pad(&out)
    }
}

/// Why a count of tokens could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a count of tokens; write a whole number, such as `131072`, `131,072` or `128K`")]
pub struct ParseTokensError {
    given: String,
}

impl FromStr for Tokens {
    type Err = ParseTokensError;

    /// Reads `131072`, `131,072`, and vLLM's suffixes: capitals binary (`128K` = 131,072), small
    /// letters decimal (`128k` = 128,000); vLLM 0.32 `vllm/engine/arg_utils.py`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseTokensError { given: text.to_owned() };
        let plain: String = text.trim().chars().filter(|c| *c != ',' && *c != '_').collect();
        let (number, factor) = match plain.char_indices().last() {
            Some((at, 'k')) => (&plain[..at], 1_000),
            Some((at, 'K')) => (&plain[..at], 1_024),
            Some((at, 'm')) => (&plain[..at], 1_000_000),
            Some((at, 'M')) => (&plain[..at], 1_048_576),
            _ => (plain.as_str(), 1),
        };
        let count: u64 = number.parse().map_err(|_| fail())?;
        match count.checked_mul(factor) {
            Some(count) if count > 0 && !number.starts_with('+') => Ok(Self(count)),
            _ => Err(fail()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Tokens;

    #[test]
    fn parses_what_people_and_vllm_write() {
        assert_eq!("131072".parse(), Ok(Tokens::new(131_072)));
        assert_eq!("131,072".parse(), Ok(Tokens::new(131_072)));
        assert_eq!("128K".parse(), Ok(Tokens::new(131_072)));
        assert_eq!("128k".parse(), Ok(Tokens::new(128_000)));
        for bad in ["", "0", "-1", "+3", "k", "12.5k", "é", "99999999999999999999"] {
            assert!(bad.parse::<Tokens>().is_err(), "{bad} was taken");
        }
    }

    #[test]
    fn prints_thousands_and_rounds_down() {
        assert_eq!(Tokens::new(262_144).to_string(), "262,144");
        assert_eq!(Tokens::new(999).to_string(), "999");
        assert_eq!(Tokens::new(46_600).round_down_to(1024), Tokens::new(46_080));
        assert_eq!(Tokens::new(7).round_down_to(0), Tokens::new(7));
    }
}
