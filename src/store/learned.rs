//! What starts taught, kept for the next plan.

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use super::atomic::{read_bounded, write_atomic};
use super::{Lock, LockError, StoreError};
use crate::facts::{Learned, LearnedBook};

const FORMAT: u32 = 1;
const MAX_BYTES: u64 = 16 << 20;
/// Entries kept; the oldest go.
const MOST: usize = 500;

#[derive(Debug, Default, Serialize, Deserialize)]
struct File {
    format: u32,
    #[serde(default)]
    starts: LearnedBook,
}

fn path(state: &Utf8Path) -> Utf8PathBuf {
    state.join("learned.json")
}

/// Reads the book. One that is torn, or from a newer kdeploy, counts as empty: it holds nothing that
/// the next start does not teach again.
///
/// # Errors
/// When the file exists and cannot be read.
pub fn read_learned(state: &Utf8Path) -> Result<LearnedBook, StoreError> {
    let Some(bytes) = read_bounded(&path(state), MAX_BYTES)? else { return Ok(LearnedBook::new()) };
    match serde_json::from_slice::<File>(&bytes) {
        Ok(file) if file.format <= FORMAT => Ok(file.starts),
        Ok(_) | Err(_) => {
            tracing::warn!("learned.json cannot be used and is passed over");
            Ok(LearnedBook::new())
        }
    }
}

/// Adds what a start taught.
///
/// # Errors
/// When the book cannot be read or written.
pub fn add_learned(state: &Utf8Path, key: &str, learned: Learned) -> Result<(), StoreError> {
    // Two deployments may become ready at once; the later one waits for its turn a moment.
    let lock_path = state.join("learned.lock");
    let _lock = match Lock::try_acquire(&lock_path) {
        Ok(lock) => Some(lock),
        Err(LockError::Held(_)) => return Ok(()),
        Err(LockError::Io { source, .. }) => return Err(source.into()),
    };
    let mut starts = read_learned(state)?;
    starts.insert(key.to_owned(), learned);
    while starts.len() > MOST {
        let oldest = starts.iter().min_by(|a, b| a.1.at.cmp(&b.1.at)).map(|(key, _)| key.clone());
        oldest.and_then(|key| starts.remove(&key));
    }
    let bytes = serde_json::to_vec_pretty(&File { format: FORMAT, starts })
        .map_err(|error| StoreError::Unreadable { path: path(state), reason: error.to_string() })?;
    write_atomic(&path(state), &bytes)
}

#[cfg(test)]
mod tests {
    use super::{add_learned, read_learned};
    use crate::facts::Learned;
    use camino::Utf8Path;

    #[test]
    fn starts_are_kept_by_key_and_a_torn_book_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let state = Utf8Path::from_path(dir.path()).unwrap();
        assert!(read_learned(state).unwrap().is_empty());
        for (key, ready_ms) in [("a", 1), ("b", 2), ("a", 3)] {
            add_learned(state, key, Learned { ready_ms, ..Learned::default() }).unwrap();
        }
        let book = read_learned(state).unwrap();
        assert_eq!((book.len(), book["a"].ready_ms), (2, 3));
        std::fs::write(state.join("learned.json"), "{\"format\": 1, \"sta").unwrap();
        assert!(read_learned(state).unwrap().is_empty());
        std::fs::write(state.join("learned.json"), "{\"format\": 9}").unwrap();
        assert!(read_learned(state).unwrap().is_empty());
    }
}
