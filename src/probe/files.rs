//! Bounded reads for the readers of this room.

use std::io::Read as _;

use camino::Utf8Path;

/// Reads a small file whole; `None` when it does not exist.
pub(super) fn read_small(path: &Utf8Path, limit: u64) -> std::io::Result<Option<Vec<u8>>> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    // One byte more than allowed tells the parser that there is too much.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Text of a kernel file; `None` when it cannot be read.
pub(super) fn read_kernel(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}
