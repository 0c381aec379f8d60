//! Files that are either the old ones or the new ones, never half.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};

use camino::Utf8Path;

use super::StoreError;

/// Writes `bytes` to `path` through a temporary file in the same directory, mode 0600, synced
/// before and after the rename.
///
/// # Errors
/// When the directory cannot be written, is full, or the rename fails; the old file is untouched then.
pub fn write_atomic(path: &Utf8Path, bytes: &[u8]) -> Result<(), StoreError> {
    write_atomic_as(path, bytes, 0o600)
}

/// The same with another mode, less what the umask takes: for files that others are to read.
///
/// # Errors
/// As [`write_atomic`].
pub fn write_atomic_as(path: &Utf8Path, bytes: &[u8], mode: u32) -> Result<(), StoreError> {
    let parent = path.parent().filter(|parent| !parent.as_str().is_empty()).unwrap_or(Utf8Path::new("."));
    let named =
        |error: std::io::Error| std::io::Error::new(error.kind(), format!("cannot write `{path}`: {error}"));
    let mut file = tempfile::Builder::new()
        .prefix(".kdeploy-")
        .permissions(std::fs::Permissions::from_mode(mode))
        .tempfile_in(parent)
        .map_err(named)?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(named)?;
    file.persist(path).map_err(|error| named(error.error))?;
    fs_err::File::open(parent).and_then(|directory| directory.sync_all())?;
    Ok(())
}

/// Reads a file whole, at most `limit` bytes of it; `None` when it does not exist. A FIFO or a device
/// in its place is an error and does not keep the reader waiting.
///
/// # Errors
/// When it cannot be read, is longer, or is not a regular file.
pub fn read_bounded(path: &Utf8Path, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
    let nonblocking = nix::fcntl::OFlag::O_NONBLOCK.bits();
    let Some(file) = found(File::options().read(true).custom_flags(nonblocking).open(path), path)? else {
        return Ok(None);
    };
    if !file.metadata().map_err(|error| named(&error, path))?.is_file() {
        let reason = "it is not a regular file".to_owned();
        return Err(StoreError::Unreadable { path: path.to_owned(), reason });
    }
    read(file, path, limit).map(Some)
}

/// The same for a file that somebody names to kdeploy, which may also be a pipe: `--plan <(…)`.
///
/// # Errors
/// When it cannot be read or is longer.
pub fn read_given(path: &Utf8Path, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
    match found(File::open(path), path)? {
        Some(file) => read(file, path, limit).map(Some),
        None => Ok(None),
    }
}

fn found(opened: std::io::Result<File>, path: &Utf8Path) -> Result<Option<File>, StoreError> {
    match opened {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(named(&error, path).into()),
    }
}

fn read(file: File, path: &Utf8Path, limit: u64) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|error| named(&error, path))?;
    if bytes.len() as u64 > limit {
        let reason = format!("it is longer than {}", crate::units::Bytes::new(limit));
        return Err(StoreError::Unreadable { path: path.to_owned(), reason });
    }
    Ok(bytes)
}

fn named(error: &std::io::Error, path: &Utf8Path) -> std::io::Error {
    std::io::Error::new(error.kind(), format!("`{path}`: {error}"))
}

#[cfg(test)]
mod tests {
    use super::{read_bounded, read_given, write_atomic};
    use camino::Utf8Path;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_write_replaces_the_whole_file_privately() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("x.json");
        write_atomic(&path, b"one, and long").unwrap();
        write_atomic(&path, b"two").unwrap();
        assert_eq!(read_bounded(&path, 10).unwrap().as_deref(), Some(&b"two"[..]));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("no/such/dir/x");
        let message = write_atomic(&path, b"x").unwrap_err().to_string();
        assert!(message.contains("no/such/dir"), "{message}");
        assert!(read_bounded(&path, 10).unwrap().is_none());
    }

    #[test]
    fn a_pipe_in_the_place_of_a_file_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("fifo");
        nix::unistd::mkfifo(path.as_std_path(), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(read_bounded(&path, 10).unwrap_err().to_string().contains("regular file"));
        let writer = path.clone();
        let written = std::thread::spawn(move || std::fs::write(writer, "given"));
        assert_eq!(read_given(&path, 10).unwrap().as_deref(), Some(&b"given"[..]));
        written.join().unwrap().unwrap();
        assert!(read_bounded(Utf8Path::from_path(dir.path()).unwrap(), 10).is_err(), "a directory");
    }

    #[test]
    fn reading_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("x");
        std::fs::write(&path, [0; 11]).unwrap();
        assert!(read_bounded(&path, 10).is_err());
    }
}
