//! Bounded reads for the readers of this room.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;

use camino::Utf8Path;

/// Opens a file; a FIFO or a device in its place is an error and does not keep the reader waiting.
pub(super) fn open_regular(path: &Utf8Path) -> std::io::Result<File> {
    let nonblocking = nix::fcntl::OFlag::O_NONBLOCK.bits();
    let file = File::options().read(true).custom_flags(nonblocking).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(file)
}

/// Reads a small file whole; `None` when it does not exist.
pub(super) fn read_small(path: &Utf8Path, limit: u64) -> std::io::Result<Option<Vec<u8>>> {
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    // One byte more than allowed tells the parser that there is too much.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Text of a kernel file; `None` when it cannot be read.
pub(super) fn read_kernel(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}
