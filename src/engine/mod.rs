//! Processes of an engine: spawned, watched, signalled, cleaned up after.
//!
//! Effects. It never decides to end anything (`lifecycle` does); it proves that what it touches
//! belongs to the launch, and does nothing when it cannot.

mod cgroup;
pub mod install;
mod kill_tree;
mod notify;
mod runtime_dir;
mod shm;
mod signal;
mod spawn;
mod tree;
mod unrecorded;
mod watch;

pub use cgroup::Cgroup;
pub use kill_tree::{KilledTree, kill_tree};
pub use notify::NotifySocket;
pub use runtime_dir::{create_runtime_dir, remove_runtime_dir};
pub use shm::{ShmCleaning, clean_shm, list_shm_of};
use signal::{freeze, thaw};
pub use signal::{is_alive, kill, terminate};
pub use spawn::{Spawned, become_subreaper, spawn};
pub use tree::{Member, Tree, current_process, identify};
pub use unrecorded::find_unrecorded;
pub use watch::Watch;

/// Why the operating system did not do it.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The program could not be started.
    #[error("cannot start `{program}`")]
    Spawn {
        /// The program.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// /proc cannot be read.
    #[error("cannot read /proc")]
    Proc(#[from] procfs::ProcError),
    /// A system call failed.
    #[error("{what}")]
    System {
        /// What was tried.
        what: String,
        /// Why not.
        source: std::io::Error,
    },
}
