//! `attempts/<n>/`: everything about one start of an engine; the last ten are kept.

use camino::{Utf8Path, Utf8PathBuf};

use super::StoreError;
use super::dirs::create_private_dir;

/// How many attempts are kept.
const KEPT: usize = 10;

/// The directory of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptDir {
    /// Its number, growing over all launches of a name.
    pub number: u64,
    /// The directory.
    pub path: Utf8PathBuf,
}

impl AttemptDir {
    /// Creates the next attempt of the deployment in `deployment` and removes those beyond the last
    /// ten.
    ///
    /// # Errors
    /// When a directory cannot be made or read.
    pub fn create_next(deployment: &Utf8Path) -> Result<Self, StoreError> {
        let existing = Self::list(deployment)?;
        let number = existing.last().map_or(1, |last| last.number + 1);
        for old in existing.iter().rev().skip(KEPT - 1) {
            fs_err::remove_dir_all(&old.path)?;
        }
        let path = deployment.join("attempts").join(number.to_string());
        create_private_dir(&path)?;
        Ok(Self { number, path })
    }

    /// All attempts, oldest first. A deployment without any has none: that is no error.
    ///
    /// # Errors
    /// When the directory exists and cannot be read.
    pub fn list(deployment: &Utf8Path) -> Result<Vec<Self>, StoreError> {
        let root = deployment.join("attempts");
        let entries = match fs_err::read_dir(&root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut found = Vec::new();
        for entry in entries {
            if let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
                found.push(Self { number, path: root.join(format!("{number}")) });
            }
        }
        found.sort_by_key(|attempt| attempt.number);
        Ok(found)
    }

    /// The engine's raw output.
    #[must_use]
    pub fn engine_log(&self) -> Utf8PathBuf {
        self.path.join("engine.log")
    }

    /// What the supervisor said, one JSON object a line.
    #[must_use]
    pub fn events(&self) -> Utf8PathBuf {
        self.path.join("events.jsonl")
    }
}

#[cfg(test)]
mod tests {
    use super::AttemptDir;
    use camino::Utf8Path;

    #[test]
    fn numbers_grow_and_ten_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap();
        assert!(AttemptDir::list(root).unwrap().is_empty());
        for expected in 1..=12 {
            assert_eq!(AttemptDir::create_next(root).unwrap().number, expected);
        }
        std::fs::create_dir(root.join("attempts/notes")).unwrap();
        let numbers: Vec<u64> = AttemptDir::list(root).unwrap().iter().map(|a| a.number).collect();
        assert_eq!(numbers, (3..=12).collect::<Vec<_>>());
    }
}
