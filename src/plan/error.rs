//! Why no plan can be made. A plan that was made and does not fit is no error.

use crate::units::Tokens;

/// Why no plan can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The profile asks for another engine version.
    #[error("vLLM {version} was found; {place} asks for {requirement}")]
    EngineVersion {
        /// Version found.
        version: String,
        /// What is asked for.
        requirement: String,
        /// `file:line`.
        place: String,
    },
    /// An option has a value that cannot work.
    #[error("{place}: `{key}` {message}")]
    BadOption {
        /// Where it was given.
        place: String,
        /// The option.
        key: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// The engine has no such option.
    #[error("{place}: `{key}` is no option of vLLM {version}{}", nearest.as_ref().map(|near| format!("; did you mean `{near}`?")).unwrap_or_default())]
    UnknownOption {
        /// Where it was given.
        place: String,
        /// The option as it was given.
        key: String,
        /// Version of the engine.
        version: String,
        /// The nearest that it has.
        nearest: Option<String>,
    },
    /// The context window is longer than the model's own.
    #[error("{place}: a context of {wanted} tokens is longer than the model's own {max}")]
    ContextAboveModel {
        /// Where it was given.
        place: String,
        /// Tokens wanted.
        wanted: Tokens,
        /// The model's own length.
        max: Tokens,
    },
    /// A GPU that is not there.
    #[error("{place}: there is no GPU {index}; {found}")]
    NoSuchGpu {
        /// Where it was given.
        place: String,
        /// Its index.
        index: u32,
        /// What there is.
        found: String,
    },
    /// A CUDA build and no GPU.
    #[error("this vLLM is a CUDA build and {reason}")]
    NoGpu {
        /// Why there is none.
        reason: String,
    },
}
