//! The engine's output as raw bytes on disk, and reading its end again.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};

use super::StoreError;

/// Writes the engine's output. A disk that fills up must not stop the engine, so bytes that cannot
/// be written are counted and dropped while draining goes on.
#[derive(Debug)]
pub struct LogSink {
    file: File,
    lost: u64,
}

impl LogSink {
    /// Creates the log of an attempt, mode 0600.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn create(path: &Utf8Path) -> Result<Self, StoreError> {
        let file =
            File::options().create(true).append(true).mode(0o600).open(path).map_err(|error| {
                std::io::Error::new(error.kind(), format!("cannot create `{path}`: {error}"))
            })?;
        Ok(Self { file, lost: 0 })
    }

    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        if self.file.write_all(bytes).is_err() {
            self.lost = self.lost.saturating_add(bytes.len() as u64);
        }
    }

    /// Bytes that could not be written.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }
}

/// Reads the last `lines` lines of a file, or all with `None`, returning the bytes and the offset
/// after them. Reads backwards in blocks, so a log of gigabytes costs nothing.
///
/// # Errors
/// When the file cannot be read.
pub fn tail_lines(path: &Utf8Path, lines: Option<usize>) -> Result<(Vec<u8>, u64), StoreError> {
    const BLOCK: u64 = 64 * 1024;
    let mut file = fs_err::File::open(Utf8PathBuf::from(path))?;
    let end = file.seek(SeekFrom::End(0))?;
    let mut from = end;
    let mut bytes: Vec<u8> = Vec::new();
    while from > 0 {
        let size = BLOCK.min(from);
        from -= size;
        file.seek(SeekFrom::Start(from))?;
        let mut block = Vec::new();
        std::io::Read::by_ref(&mut file).take(size).read_to_end(&mut block)?;
        block.extend_from_slice(&bytes);
        bytes = block;
        let Some(wanted) = lines else { continue };
        let ends_with_newline = bytes.last() == Some(&b'\n');
        let needed = wanted + usize::from(ends_with_newline);
        let mut feeds = bytes.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
        if let Some(at) = feeds.nth(needed.saturating_sub(1)) {
            return Ok((bytes.split_off(at + 1), end));
        }
    }
    Ok((bytes, end))
}

#[cfg(test)]
mod tests {
    use super::{LogSink, tail_lines};
    use camino::Utf8Path;

    #[test]
    fn the_end_is_read_whatever_the_length() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("engine.log");
        let mut sink = LogSink::create(&path).unwrap();
        for i in 0..20_000 {
            sink.write(format!("line {i} \u{e9}\n").as_bytes());
        }
        sink.write(b"\xff no line end");
        assert_eq!(sink.lost(), 0);
        let text = |lines| tail_lines(&path, lines).unwrap().0;
        assert_eq!(text(Some(2)), "line 19999 é\n".bytes().chain(*b"\xff no line end").collect::<Vec<_>>());
        assert_eq!(text(Some(15_000)).iter().filter(|b| **b == b'\n').count(), 14_999);
        assert_eq!(text(None), std::fs::read(&path).unwrap());
        assert_eq!(text(Some(1_000_000)), std::fs::read(&path).unwrap());
        sink.write(b"\n");
        assert_eq!(text(Some(1)), b"\xff no line end\n");
    }
}
