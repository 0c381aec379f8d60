//! The engine's private temporary directory.

use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};

use camino::Utf8Path;

use super::EngineError;
use crate::facts::RuntimeDir;

/// Makes a new, empty directory at `path`, mode 0700, inside a base that is this user's alone (the
/// caller checked it). A leftover of an earlier launch of the same name is removed first: the caller
/// holds the name's lock and has ended that launch.
///
/// # Errors
/// When it cannot be made.
pub fn create_runtime_dir(path: &Utf8Path) -> Result<RuntimeDir, EngineError> {
    let failed = |source| EngineError::System { what: format!("cannot create `{path}`"), source };
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(path).map_err(failed)?,
        Ok(_) => std::fs::remove_file(path).map_err(failed)?,
        Err(_) => {}
    }
    std::fs::DirBuilder::new().mode(0o700).create(path).map_err(failed)?;
    let meta = std::fs::symlink_metadata(path).map_err(failed)?;
    Ok(RuntimeDir { path: path.to_owned(), device: meta.dev(), inode: meta.ino() })
}

/// Removes the directory that was made, and nothing that took its place. `false` when it is gone.
///
/// # Errors
/// When something else lies there now, or it cannot be removed.
pub fn remove_runtime_dir(dir: &RuntimeDir) -> Result<bool, EngineError> {
    let failed = |source| EngineError::System { what: format!("cannot remove `{}`", dir.path), source };
    let meta = match std::fs::symlink_metadata(&dir.path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed(error)),
    };
    let same = meta.is_dir()
        && (meta.dev(), meta.ino()) == (dir.device, dir.inode)
        && meta.uid() == nix::unistd::geteuid().as_raw();
    if !same {
        return Err(failed(std::io::Error::other("something else has taken its place")));
    }
    std::fs::remove_dir_all(&dir.path).map_err(failed)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::{create_runtime_dir, remove_runtime_dir};
    use camino::Utf8Path;

    #[test]
    fn only_the_very_directory_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(root.path()).unwrap().join("kimi");
        let dir = create_runtime_dir(&path).unwrap();
        std::fs::write(path.join("socket"), "").unwrap();
        assert!(remove_runtime_dir(&dir).unwrap());
        assert!(!remove_runtime_dir(&dir).unwrap());
        std::fs::create_dir(root.path().join("precious")).unwrap();
        std::fs::write(root.path().join("precious/data"), "x").unwrap();
        std::os::unix::fs::symlink(root.path().join("precious"), &path).unwrap();
        assert!(remove_runtime_dir(&dir).is_err());
        let again = create_runtime_dir(&path).unwrap();
        assert!(remove_runtime_dir(&again).unwrap());
        assert!(root.path().join("precious/data").exists());
    }
}
