//! Which engine versions a profile was made for: `>=0.15.1,<0.40`.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use crate::facts::EngineVersion;

/// Conditions on a vLLM version, all of which must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionRequirement {
    text: String,
    conditions: Vec<(Comparison, EngineVersion)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    AtLeast,
    AtMost,
    Above,
    Below,
    Equal,
    Not,
}

/// Why a requirement could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a version requirement; write `>=0.15.1` or `>=0.15.1,<0.40`")]
pub struct ParseRequirementError {
    given: String,
}

impl VersionRequirement {
    /// Does this version meet every condition?
    #[must_use]
    pub fn is_met_by(&self, version: &EngineVersion) -> bool {
        self.conditions.iter().all(|(comparison, bound)| {
            let order = version.cmp(bound);
            match comparison {
                Comparison::AtLeast => order != Ordering::Less,
                Comparison::AtMost => order != Ordering::Greater,
                Comparison::Above => order == Ordering::Greater,
                Comparison::Below => order == Ordering::Less,
                Comparison::Equal => order == Ordering::Equal,
                Comparison::Not => order != Ordering::Equal,
            }
        })
    }
}

impl FromStr for VersionRequirement {
    type Err = ParseRequirementError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseRequirementError { given: text.chars().take(80).collect() };
        let condition = |part: &str| {
            let part = part.trim();
            // The longer signs first: `>` is a prefix of `>=`.
            let signs = [
                (">=", Comparison::AtLeast),
                ("<=", Comparison::AtMost),
                ("==", Comparison::Equal),
                ("!=", Comparison::Not),
                (">", Comparison::Above),
                ("<", Comparison::Below),
            ];
            let (comparison, version) = signs
                .into_iter()
                .find_map(|(sign, comparison)| Some((comparison, part.strip_prefix(sign)?)))
                .ok_or_else(fail)?;
            Ok((comparison, version.trim().parse().map_err(|_| fail())?))
        };
        let conditions = text.split(',').map(condition).collect::<Result<_, _>>()?;
        Ok(Self { text: text.trim().to_owned(), conditions })
    }
}

impl fmt::Display for VersionRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::VersionRequirement;

    #[test]
    fn all_conditions_must_hold() {
        for (requirement, good, bad) in [
            (">=0.15.1", "0.32.0+cpu", "0.15.0"),
            (">=0.15.1, <0.32", "0.31.9", "0.32.0"),
            ("==0.32", "0.32.0+cpu", "0.32.1"),
            ("!=0.20", "0.21", "0.20.0"),
            (">0.1,<=0.3", "0.3", "0.1"),
        ] {
            let requirement: VersionRequirement = requirement.parse().expect(requirement);
            assert!(requirement.is_met_by(&good.parse().expect(good)), "{requirement} {good}");
            assert!(!requirement.is_met_by(&bad.parse().expect(bad)), "{requirement} {bad}");
        }
        for bad in ["", "0.15", ">=", ">=x", ">=0.1,"] {
            assert!(bad.parse::<VersionRequirement>().is_err(), "{bad}");
        }
    }
}
