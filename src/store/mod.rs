//! What lies on disk: directories, launch records, locks, atomic files, captured logs.
//!
//! Effects. Nothing here decides; records are read leniently forwards and refused clearly when a
//! newer kdeploy wrote them.

mod atomic;
mod attempts;
mod dirs;
mod in_place;
mod learned;
mod lock;
mod logfile;
mod overlay;
mod record;

pub use atomic::{read_bounded, read_given, write_atomic, write_atomic_as};
pub use attempts::AttemptDir;
pub use dirs::{Dirs, create_private_dir};
pub use in_place::{
    BACKUP_DIR, InPlaceError, InPlaceFile, InPlaceRecord, NewContent, apply_in_place, read_in_place,
    revert_in_place,
};
pub use learned::{add_learned, read_learned};
pub use lock::{Lock, LockError};
pub use logfile::{LogSink, tail_lines};
pub use overlay::{
    OverlayContent, OverlayHold, OverlayRemoval, make_overlay, overlay_in_use, remove_overlay,
};
pub use record::{ColdFigures, LaunchRecord, LaunchState, RECORD_FORMAT};

/// Why the store could not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file operation failed; the message names the path.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A record is not what this kdeploy can read.
    #[error("`{path}` cannot be read: {reason}")]
    Unreadable {
        /// The file.
        path: camino::Utf8PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A record was written by a newer kdeploy.
    #[error("`{path}` has format {found}; this kdeploy reads up to {known}")]
    Newer {
        /// The file.
        path: camino::Utf8PathBuf,
        /// Format in the file.
        found: u64,
        /// Newest format known here.
        known: u32,
    },
    /// There is no home to keep things in.
    #[error("neither HOME nor {variable} is set")]
    NoHome {
        /// The variable that would do.
        variable: String,
    },
    /// A directory that must be ours alone is not.
    #[error("`{path}` cannot be used: {reason}")]
    Untrusted {
        /// The directory.
        path: camino::Utf8PathBuf,
        /// Why not.
        reason: String,
    },
}
