//! Names of deployments.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name of a deployment: `[A-Za-z0-9_.-]{1,63}`, not `.` or `..`, since it becomes a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct DeploymentName(String);

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{given}` is not a deployment name; use 1 to 63 letters, digits, `_`, `.` or `-`, starting with a letter or digit"
)]
pub struct NameError {
    given: String,
}

impl DeploymentName {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Makes a name from a model id or path: its last part, lower case, other characters as `-`.
    #[must_use]
    pub fn from_model(model: &str) -> Self {
        let last = model.trim_end_matches('/').rsplit('/').next().unwrap_or(model);
        let mut name: String = last
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-') {
                    c.to_ascii_lowercase()
                } else {
                    '-'
                }
            })
            .take(63)
            .collect();
        name = name.trim_start_matches(['.', '-', '_']).to_owned();
        name.parse().unwrap_or_else(|_| Self("model".to_owned()))
    }
}

impl FromStr for DeploymentName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        let first = text.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
        if first && text.len() <= 63 && text.chars().all(allowed) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError { given: text.chars().take(80).collect() })
        }
    }
}

impl TryFrom<String> for DeploymentName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<DeploymentName> for String {
    fn from(name: DeploymentName) -> Self {
        name.0
    }
}

impl fmt::Display for DeploymentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::DeploymentName;

    #[test]
    fn names_cannot_leave_their_directory() {
        for good in ["kimi", "Qwen3-8B", "a", "a.b_c-d", &"x".repeat(63)] {
            assert!(good.parse::<DeploymentName>().is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "-x", ".hidden", "a b", "é", "a\n", &"x".repeat(64)] {
            assert!(bad.parse::<DeploymentName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_model_gives_a_name() {
        for (model, name) in [
            ("nvidia/Kimi-K2.5-NVFP4", "kimi-k2.5-nvfp4"),
            ("/data/models/My Model/", "my-model"),
            ("...", "model"),
            ("/", "model"),
        ] {
            assert_eq!(DeploymentName::from_model(model).as_str(), name);
        }
    }
}
