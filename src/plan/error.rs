//! Why no plan can be made. A plan that was made and does not fit is no error.

use crate::patch::PatchError;
use crate::units::Tokens;

/// Why a KV cache type is refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KvRefusal {
    /// The type; `auto` is the model's own.
    pub dtype: String,
    /// `a KV cache of fp8 with MLA on SM120`.
    pub subject: String,
    /// Version of the engine.
    pub version: String,
    /// Who asks for it: file and key, or flag; nobody for the model's own type.
    pub source: Option<String>,
    /// Is it the checkpoint that asks?
    pub from_checkpoint: bool,
    /// Why not, one for each backend.
    pub reasons: Vec<String>,
    /// Where that is from.
    pub sources: Vec<String>,
    /// First version read that stores it.
    pub works_from: Option<String>,
    /// What else is to be said.
    pub note: Option<String>,
    /// A type that would work.
    pub other_dtype: Option<String>,
}

impl KvRefusal {
    /// One line.
    #[must_use]
    pub fn summary(&self) -> String {
        match (&self.source, self.from_checkpoint) {
            (Some(_), true) => format!(
                "the checkpoint asks for an {} KV cache; vLLM {} has no attention backend for {}",
                self.dtype, self.version, self.subject
            ),
            _ => format!("vLLM {} has no attention backend for {}", self.version, self.subject),
        }
    }
}

/// Why no plan can be made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
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
    /// No attention backend stores the KV cache type.
    #[error("{}", .0.summary())]
    KvTypeUnsupported(Box<KvRefusal>),
    /// There is no patch of that name.
    #[error("{place}: there is no patch `{name}`{}", nearest.as_ref().map(|near| format!("; did you mean `{near}`?")).unwrap_or_default())]
    NoSuchPatch {
        /// Where it was given.
        place: String,
        /// As given.
        name: String,
        /// The nearest known name.
        nearest: Option<String>,
    },
    /// A patch needs a file, or takes none.
    #[error("{place}: patch `{name}` {message}")]
    PatchArgument {
        /// Where it was given.
        place: String,
        /// The patch.
        name: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// A patch does not apply.
    #[error(transparent)]
    Patch(PatchError),
    /// The patched files cannot be used.
    #[error("after the patches {}: {reason}", patches.join(", "))]
    PatchedBroken {
        /// The patches.
        patches: Vec<String>,
        /// The file and why.
        reason: String,
    },
    /// A strict profile on something else than it was made for.
    #[error("{place}: the profile was made for something else: {why}")]
    ProfileMismatch {
        /// `file:line`.
        place: String,
        /// The condition that does not hold.
        why: String,
    },
    /// A CUDA build and no GPU.
    #[error("this vLLM is a CUDA build and {reason}")]
    NoGpu {
        /// Why there is none.
        reason: String,
    },
}
