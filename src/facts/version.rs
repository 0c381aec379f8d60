//! The version of an installed vLLM, compared by its numbers.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// A vLLM version. Only the leading dotted numbers order it: `0.15.2rc1.dev3+g12ab` counts as
/// 0.15.2, because a development build has the options of the release it leads to; the local part
/// after `+` never counts.
#[derive(Debug, Clone)]
pub struct EngineVersion {
    text: String,
    numbers: Vec<u64>,
}

/// Why a version could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a version; write numbers with dots, such as `0.15.1`")]
pub struct ParseVersionError {
    given: String,
}

impl EngineVersion {
    /// The text as its installation records it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Is it at least `major.minor`?
    #[must_use]
    pub fn is_at_least(&self, major: u64, minor: u64) -> bool {
        compare_numbers(&self.numbers, &[major, minor]) != Ordering::Less
    }

    /// Does the local part (after `+`) name the CPU build?
    #[must_use]
    pub fn is_cpu_build(&self) -> bool {
        self.text.split_once('+').is_some_and(|(_, local)| local.split(['.', '-', '_']).any(|p| p == "cpu"))
    }
}

fn compare_numbers(left: &[u64], right: &[u64]) -> Ordering {
    let longest = left.len().max(right.len());
    let part = |numbers: &[u64], at: usize| numbers.get(at).copied().unwrap_or(0);
    (0..longest)
        .map(|at| part(left, at).cmp(&part(right, at)))
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}

impl PartialEq for EngineVersion {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for EngineVersion {}

impl PartialOrd for EngineVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for EngineVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        compare_numbers(&self.numbers, &other.numbers)
    }
}

impl FromStr for EngineVersion {
    type Err = ParseVersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseVersionError { given: text.chars().take(80).collect() };
        let trimmed = text.trim();
        let public = trimmed.split('+').next().unwrap_or(trimmed);
        let public = public.strip_prefix('v').unwrap_or(public);
        let mut numbers = Vec::new();
        for part in public.split('.') {
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            let (digits, rest) = part.split_at(end);
            if digits.is_empty() {
                break;
            }
            numbers.push(digits.parse().map_err(|_| fail())?);
            if !rest.is_empty() {
                break;
            }
        }
        if numbers.is_empty() || trimmed.chars().any(char::is_whitespace) {
            return Err(fail());
        }
        Ok(Self { text: trimmed.to_owned(), numbers })
    }
}

impl fmt::Display for EngineVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::EngineVersion;

    fn version(text: &str) -> EngineVersion {
        text.parse().expect(text)
    }

    #[test]
    fn numbers_order_versions() {
        for (older, newer) in [("0.9.2", "0.10"), ("0.15.1", "0.15.2rc1"), ("0.32", "0.32.1"), ("0.32", "1")]
        {
            assert!(version(older) < version(newer), "{older} {newer}");
        }
        for (left, right) in [("0.32.0", "0.32"), ("0.32.0+cpu", "0.32.0"), ("v0.32", "0.32.0.dev1+g1")] {
            assert_eq!(version(left), version(right), "{left} {right}");
        }
        assert!(version("0.32.0").is_at_least(0, 32) && !version("0.31.9").is_at_least(0, 32));
    }

    #[test]
    fn the_local_part_names_the_build() {
        assert!(version("0.32.0+cpu").is_cpu_build());
        assert!(!version("0.32.0+cu130").is_cpu_build());
        assert!(!version("0.32.0").is_cpu_build());
    }

    #[test]
    fn what_is_no_version_is_refused() {
        for bad in ["", "dev", "+cpu", ".1", "99999999999999999999999", "0.1 0.2"] {
            assert!(bad.parse::<EngineVersion>().is_err(), "{bad:?}");
        }
    }
}
