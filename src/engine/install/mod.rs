//! Managed installations: a vLLM and a small model in kdeploy's own cache.
//!
//! Every step runs in its own session, writes to a log and can be ended at any time. What is half
//! made has no marker and is made again: the marker is written last, by the caller.

mod python;
mod run;
mod smollm2;
mod vllm;

use std::process::ExitStatus;

use camino::{Utf8Path, Utf8PathBuf};

use crate::plan::install::InstallTrouble;
use crate::units::Bytes;

pub use python::{Python, Pythons, find_program, find_pythons};
pub use run::Workshop;
pub use smollm2::make_smollm2;
pub use vllm::{Installer, install_vllm};

/// Why an installation did not come about.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A step ended with an error.
    #[error("`{what}` failed: {status}")]
    Step {
        /// What it was to do.
        what: &'static str,
        /// Its command line, without credentials.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What its words mean.
        trouble: InstallTrouble,
        /// The log.
        log: Utf8PathBuf,
        /// Last lines with their numbers in the log.
        tail: Vec<(u64, String)>,
    },
    /// A program could not be started.
    #[error("cannot start `{program}`")]
    Spawn {
        /// The program.
        program: Utf8PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file operation failed.
    #[error("`{path}` cannot be read or written")]
    Io {
        /// The file.
        path: Utf8PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The steps succeeded and something is missing all the same.
    #[error("{what} is missing after the installation")]
    NotWhole {
        /// What is missing.
        what: String,
    },
    /// The user ended it.
    #[error("ended on request")]
    Cancelled,
}

/// Removes a directory of ours with all that is in it; a link in its place is refused.
///
/// # Errors
/// When it is a link, or cannot be removed.
pub fn remove_tree(path: &Utf8Path) -> Result<(), InstallError> {
    let io = |source| InstallError::Io { path: path.to_owned(), source };
    match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io(error)),
        Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(path).map_err(io),
        Ok(_) => Err(io(std::io::Error::new(
            std::io::ErrorKind::NotADirectory,
            "it is not a directory, and kdeploy removes only directories that it made",
        ))),
    }
}

/// Free space of the file system that a directory lies on, or will.
///
/// # Errors
/// When no part of the path exists or it cannot be examined.
pub fn free_space(path: &Utf8Path) -> Result<Bytes, InstallError> {
    let existing = path.ancestors().find(|part| part.exists()).unwrap_or(path);
    let found = nix::sys::statvfs::statvfs(existing.as_std_path())
        .map_err(|errno| InstallError::Io { path: existing.to_owned(), source: errno.into() })?;
    Ok(Bytes::new(found.blocks_available().saturating_mul(found.fragment_size())))
}
