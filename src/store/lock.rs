//! One kdeploy at a time for each name.

use std::fs::{File, TryLockError};

use camino::Utf8Path;

/// Holds the name until dropped; the kernel lets go when the process dies, however it dies.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("another kdeploy holds `{0}`")]
    Held(camino::Utf8PathBuf),
    /// The lock file cannot be used.
    #[error("cannot lock `{path}`")]
    Io {
        /// The lock file.
        path: camino::Utf8PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl Lock {
    /// Takes the lock file at `path`, creating it when needed. The file is never renamed or
    /// removed, so that two processes always lock the same one.
    ///
    /// # Errors
    /// [`LockError::Held`] when another process has it.
    pub fn try_acquire(path: &Utf8Path) -> Result<Self, LockError> {
        let io = |source| LockError::Io { path: path.to_owned(), source };
        let file = File::options().create(true).truncate(false).write(true).open(path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(LockError::Held(path.to_owned())),
            Err(TryLockError::Error(error)) => Err(io(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Lock, LockError};
    use camino::Utf8Path;

    #[test]
    fn the_second_waits_its_turn() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("lock");
        let first = Lock::try_acquire(&path).unwrap();
        assert!(matches!(Lock::try_acquire(&path), Err(LockError::Held(_))));
        drop(first);
        assert!(Lock::try_acquire(&path).is_ok());
    }
}
