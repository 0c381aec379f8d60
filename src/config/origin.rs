//! Where a value comes from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Kind of source, lowest priority first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OriginKind {
    /// Built into kdeploy.
    Default,
    /// Decided by the planner.
    Planned,
    /// A profile.
    Profile,
    /// An environment variable.
    Env,
    /// The command line.
    Flag,
}

/// Where a value comes from: kind, and `file:line`, variable name, flag name or reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Origin {
    /// Kind of source.
    pub kind: OriginKind,
    /// `profiles/quickstart.toml:12`, `KDEPLOY_PORT`, `--port`, …
    pub detail: String,
}

impl Origin {
    /// Built into kdeploy.
    #[must_use]
    pub const fn default_value() -> Self {
        Self { kind: OriginKind::Default, detail: String::new() }
    }

    /// Decided by the planner, for this reason.
    #[must_use]
    pub fn planned(reason: impl Into<String>) -> Self {
        Self { kind: OriginKind::Planned, detail: reason.into() }
    }

    /// A profile, at `file:line`.
    #[must_use]
    pub fn profile(place: impl Into<String>) -> Self {
        Self { kind: OriginKind::Profile, detail: place.into() }
    }

    /// An environment variable.
    #[must_use]
    pub fn env(name: impl Into<String>) -> Self {
        Self { kind: OriginKind::Env, detail: name.into() }
    }

    /// The command line.
    #[must_use]
    pub fn flag(name: impl Into<String>) -> Self {
        Self { kind: OriginKind::Flag, detail: name.into() }
    }

    /// As messages name it: `profiles/quickstart.toml:12`, `KDEPLOY_PORT`, `--port`.
    #[must_use]
    pub fn place(&self) -> &str {
        match self.kind {
            OriginKind::Default => "kdeploy's default",
            OriginKind::Planned => "the plan",
            OriginKind::Profile | OriginKind::Env | OriginKind::Flag => &self.detail,
        }
    }
}

/// A resolved value with its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Where it comes from.
    pub origin: Origin,
}

impl<T> Setting<T> {
    /// A value from somewhere.
    pub const fn new(value: T, origin: Origin) -> Self {
        Self { value, origin }
    }

    /// A value built into kdeploy.
    pub const fn default_value(value: T) -> Self {
        Self { value, origin: Origin::default_value() }
    }

    /// Changes the value, keeps the origin.
    ///
    /// # Errors
    /// What `change` says.
    pub fn try_map<U, E>(self, change: impl FnOnce(T, &Origin) -> Result<U, E>) -> Result<Setting<U>, E> {
        let value = change(self.value, &self.origin)?;
        Ok(Setting { value, origin: self.origin })
    }
}
