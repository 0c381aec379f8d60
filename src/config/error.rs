//! Mistakes in settings, each with its place and what would be right.

/// A mistake in a profile, a variable or a flag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A profile is not TOML.
    #[error("{place}: {message}")]
    Syntax {
        /// `file:line`.
        place: String,
        /// What the parser says.
        message: String,
    },
    /// A key that kdeploy does not know.
    #[error("{place}: unknown key `{key}`{}", suggestion(nearest.as_deref()))]
    UnknownKey {
        /// `file:line`.
        place: String,
        /// The key with its section.
        key: String,
        /// The nearest known key.
        nearest: Option<String>,
        /// All keys that are known there.
        known: Vec<String>,
    },
    /// A value of the wrong type or out of range.
    #[error("{place}: `{key}` {message}")]
    BadValue {
        /// `file:line`, variable or flag.
        place: String,
        /// The key.
        key: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// A secret where it would be written down.
    #[error("{place}: `{key}` is a secret and does not belong here")]
    Secret {
        /// `file:line`, variable or flag.
        place: String,
        /// The key.
        key: String,
    },
    /// Nothing says what to serve.
    #[error("nothing says which model to serve")]
    NoModel,
    /// There is no profile of that name.
    #[error("there is no profile `{name}`")]
    NoProfile {
        /// As given.
        name: String,
        /// The nearest known name.
        nearest: Option<String>,
    },
    /// A profile was written for a newer kdeploy.
    #[error("{place}: schema {found} is newer than this kdeploy, which reads {known}")]
    NewerSchema {
        /// `file:line`.
        place: String,
        /// What the file says.
        found: u64,
        /// What is known here.
        known: u64,
    },
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|nearest| format!("; did you mean `{nearest}`?")).unwrap_or_default()
}

/// The known name most like the given one, when it is like it at all.
pub(crate) fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    known
        .into_iter()
        .map(|name| (strsim::jaro_winkler(given, name), name))
        .filter(|(likeness, _)| *likeness >= 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name.to_owned())
}

/// Names of values that must never be written into a profile or a command line.
pub(crate) fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase().replace('-', "_");
    let ends = ["_key", "_token", "_secret", "_password", "_passwd"];
    // Counts and token ids are not credentials.
    let harmless = ["max_num_batched_token", "block_hash_key", "special_token", "pad_token", "eos_token"];
    (key == "api_key" || key == "password" || ends.iter().any(|end| key.ends_with(end)))
        && !harmless.iter().any(|name| key.ends_with(name))
}
