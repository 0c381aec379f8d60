//! Edits in a checkpoint itself, made only on request: originals kept beside it, taken back exactly.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::{Duration, SystemTime};

use camino::{Utf8Path, Utf8PathBuf};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::StoreError;
use super::atomic::{read_bounded, write_atomic};

/// Directory in a patched checkpoint that keeps the originals.
pub const BACKUP_DIR: &str = ".kdeploy-patched";

const FORMAT: u32 = 1;
const MAX_MANIFEST: u64 = 16 << 20;
const MAX_FILE: u64 = 64 << 20;

/// What was done to a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InPlaceRecord {
    /// Version of this form.
    pub format: u32,
    /// When, RFC 3339.
    pub at: String,
    /// Patches applied.
    pub patches: Vec<String>,
    /// Files changed.
    pub files: Vec<InPlaceFile>,
}

/// A file that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InPlaceFile {
    /// Its name.
    pub path: String,
    /// SHA-256 before; absent when there was no such file.
    pub sha256_before: Option<String>,
    /// SHA-256 afterwards.
    pub sha256_after: String,
    /// Its mode before.
    pub mode: u32,
    /// When it was last written before: seconds since 1970 and nanoseconds.
    pub modified: (i64, i64),
}

/// Why a checkpoint is not changed or not restored.
#[derive(Debug, thiserror::Error)]
pub enum InPlaceError {
    /// A link would be written through.
    #[error("`{path}` is a link to `{target}`: the file behind it may belong to others")]
    Link {
        /// The link.
        path: Utf8PathBuf,
        /// Where it leads.
        target: Utf8PathBuf,
    },
    /// Several names lead to the same file.
    #[error("`{path}` is one of {names} names of the same file: the others would change too")]
    HardLink {
        /// The file.
        path: Utf8PathBuf,
        /// Its names.
        names: u64,
    },
    /// The checkpoint is part of a shared model cache.
    #[error("`{path}` is a snapshot of a model cache, which other programs use too")]
    Cache {
        /// The directory.
        path: Utf8PathBuf,
    },
    /// It was changed before.
    #[error("`{path}` holds patches already: {}", patches.join(", "))]
    Already {
        /// The directory.
        path: Utf8PathBuf,
        /// The patches.
        patches: Vec<String>,
    },
    /// There is nothing to take back.
    #[error("`{path}` holds no patches of kdeploy's")]
    Nothing {
        /// The directory.
        path: Utf8PathBuf,
    },
    /// A file was changed since.
    #[error("`{path}` was changed since it was patched")]
    Drift {
        /// The file.
        path: Utf8PathBuf,
        /// SHA-256 expected.
        expected: String,
        /// SHA-256 found.
        found: String,
    },
    /// A file operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<std::io::Error> for InPlaceError {
    fn from(error: std::io::Error) -> Self {
        Self::Store(error.into())
    }
}

/// A file with what it becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewContent {
    /// Its name.
    pub path: String,
    /// Its bytes before; absent when there is no such file.
    pub before: Option<Vec<u8>>,
    /// Its bytes afterwards.
    pub after: Vec<u8>,
}

/// What was done to a checkpoint, when something was.
///
/// # Errors
/// When the record cannot be read.
pub fn read_in_place(directory: &Utf8Path) -> Result<Option<InPlaceRecord>, StoreError> {
    let path = directory.join(BACKUP_DIR).join("record.json");
    let Some(bytes) = read_bounded(&path, MAX_MANIFEST)? else { return Ok(None) };
    let record: InPlaceRecord = serde_json::from_slice(&bytes)
        .map_err(|error| StoreError::Unreadable { path: path.clone(), reason: error.to_string() })?;
    if record.format > FORMAT {
        return Err(StoreError::Newer { path, found: u64::from(record.format), known: FORMAT });
    }
    Ok(Some(record))
}

/// Changes files of a checkpoint; their originals are kept in [`BACKUP_DIR`].
///
/// # Errors
/// When a file is a link, has other names, lies in a model cache, or cannot be written; everything is as
/// it was then.
pub fn apply_in_place(
    directory: &Utf8Path,
    patches: &[String],
    files: &[NewContent],
) -> Result<InPlaceRecord, InPlaceError> {
    let directory = directory.canonicalize_utf8()?;
    if let Some(known) = read_in_place(&directory)? {
        return Err(InPlaceError::Already { path: directory, patches: known.patches });
    }
    refuse_shared(&directory, files)?;
    let mut record = InPlaceRecord {
        format: FORMAT,
        at: jiff::Timestamp::now().to_string(),
        patches: patches.to_vec(),
        files: Vec::new(),
    };
    let backup = directory.join(BACKUP_DIR);
    // Left by one that was killed before its record was written: nothing was changed then.
    if backup.is_dir() {
        std::fs::remove_dir_all(&backup)?;
    }
    let undo = |done: &[InPlaceFile]| {
        for file in done {
            if let Err(error) = restore(&directory, &backup, file) {
                tracing::warn!("{}: {error}", file.path);
            }
        }
        let _ = std::fs::remove_dir_all(&backup);
    };
    let kept = fs_err::create_dir(&backup).map_err(InPlaceError::from).and_then(|()| {
        for file in files {
            record.files.push(keep(&directory, &backup, file)?);
        }
        let bytes = serde_json::to_vec_pretty(&record).map_err(std::io::Error::from)?;
        Ok(write_atomic(&backup.join("record.json"), &bytes)?)
    });
    if let Err(error) = kept {
        undo(&[]);
        return Err(error);
    }
    for (index, (file, kept)) in files.iter().zip(&record.files).enumerate() {
        let path = directory.join(&file.path);
        let mode = if file.before.is_some() { kept.mode } else { 0o644 };
        if let Err(error) = replace(&path, &file.after, mode, None) {
            undo(record.files.get(..=index).unwrap_or_default());
            return Err(error);
        }
    }
    Ok(record)
}

/// Puts the originals back: bytes, modes, times; the record goes.
///
/// # Errors
/// When there is nothing to take back, or a file was changed since.
pub fn revert_in_place(directory: &Utf8Path) -> Result<InPlaceRecord, InPlaceError> {
    let directory = directory.canonicalize_utf8()?;
    let record =
        read_in_place(&directory)?.ok_or_else(|| InPlaceError::Nothing { path: directory.clone() })?;
    let backup = directory.join(BACKUP_DIR);
    for file in &record.files {
        let path = directory.join(&file.path);
        let found = read_bounded(&path, MAX_FILE)?.map(|bytes| digest(&bytes));
        // Killed in the middle: some are patched, some not yet.
        if found.as_ref() != Some(&file.sha256_after) && found != file.sha256_before {
            return Err(InPlaceError::Drift {
                path,
                expected: file.sha256_after.clone(),
                found: found.unwrap_or_else(|| "no file".to_owned()),
            });
        }
    }
    for file in &record.files {
        restore(&directory, &backup, file)?;
    }
    std::fs::remove_dir_all(&backup)?;
    Ok(record)
}

fn refuse_shared(directory: &Utf8Path, files: &[NewContent]) -> Result<(), InPlaceError> {
    let parts: Vec<&str> = directory.components().map(|part| part.as_str()).collect();
    let in_cache = parts.windows(2).any(|pair| pair[0].starts_with("models--") && pair[1] == "snapshots");
    if in_cache {
        return Err(InPlaceError::Cache { path: directory.to_owned() });
    }
    for file in files {
        let path = directory.join(&file.path);
        let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
        if meta.file_type().is_symlink() {
            let target = path.read_link_utf8().unwrap_or_default();
            return Err(InPlaceError::Link { path, target });
        }
        if meta.nlink() > 1 {
            return Err(InPlaceError::HardLink { path, names: meta.nlink() });
        }
    }
    Ok(())
}

/// Copies the original into the backup.
fn keep(directory: &Utf8Path, backup: &Utf8Path, file: &NewContent) -> Result<InPlaceFile, InPlaceError> {
    let path = directory.join(&file.path);
    let found = read_bounded(&path, MAX_FILE)?;
    if found != file.before {
        return Err(InPlaceError::Drift {
            path,
            expected: file.before.as_ref().map_or_else(|| "no file".to_owned(), |bytes| digest(bytes)),
            found: found.map_or_else(|| "no file".to_owned(), |bytes| digest(&bytes)),
        });
    }
    let (mut mode, mut modified) = (0, (0, 0));
    if let Some(bytes) = &found {
        let meta = fs_err::metadata(&path)?;
        (mode, modified) = (meta.mode() & 0o7777, (meta.mtime(), meta.mtime_nsec()));
        write_atomic(&backup.join(&file.path), bytes)?;
    }
    Ok(InPlaceFile {
        path: file.path.clone(),
        sha256_before: found.as_ref().map(|bytes| digest(bytes)),
        sha256_after: digest(&file.after),
        mode,
        modified,
    })
}

/// Puts one original back.
fn restore(directory: &Utf8Path, backup: &Utf8Path, file: &InPlaceFile) -> Result<(), InPlaceError> {
    let path = directory.join(&file.path);
    let Some(expected) = &file.sha256_before else {
        return match fs_err::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        };
    };
    let kept = backup.join(&file.path);
    let bytes = read_bounded(&kept, MAX_FILE)?.unwrap_or_default();
    let found = digest(&bytes);
    if found != *expected {
        return Err(InPlaceError::Drift { path: kept, expected: expected.clone(), found });
    }
    let (seconds, nanoseconds) = file.modified;
    let since = Duration::new(seconds.unsigned_abs(), u32::try_from(nanoseconds).unwrap_or(0));
    let time = if seconds < 0 { SystemTime::UNIX_EPOCH - since } else { SystemTime::UNIX_EPOCH + since };
    replace(&path, &bytes, file.mode, Some(time))
}

/// Replaces a file whole, with its mode, its owner and, when given, its time.
fn replace(
    path: &Utf8Path,
    bytes: &[u8],
    mode: u32,
    modified: Option<SystemTime>,
) -> Result<(), InPlaceError> {
    let parent = path.parent().unwrap_or(Utf8Path::new("."));
    let owner = fs_err::metadata(path).ok().map(|meta| (meta.uid(), meta.gid()));
    let mut file = tempfile::Builder::new().prefix(".kdeploy-").tempfile_in(parent)?;
    file.write_all(bytes)?;
    let own = file.as_file().metadata()?;
    if let Some((user, group)) = owner.filter(|owner| *owner != (own.uid(), own.gid())) {
        std::os::unix::fs::fchown(file.as_file(), Some(user), Some(group))?;
    }
    file.as_file().set_permissions(std::fs::Permissions::from_mode(mode))?;
    if let Some(time) = modified {
        file.as_file().set_modified(time)?;
    }
    file.as_file().sync_all()?;
    file.persist(path)
        .map_err(|error| std::io::Error::new(error.error.kind(), format!("`{path}`: {}", error.error)))?;
    Ok(File::open(parent).and_then(|directory| directory.sync_all())?)
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{BACKUP_DIR, InPlaceError, NewContent, apply_in_place, read_in_place, revert_in_place};
    use camino::{Utf8Path, Utf8PathBuf};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    fn content(path: &str, before: Option<&str>, after: &str) -> NewContent {
        NewContent {
            path: path.to_owned(),
            before: before.map(|text| text.as_bytes().to_vec()),
            after: after.as_bytes().to_vec(),
        }
    }

    fn model(root: &Utf8Path, name: &str) -> Utf8PathBuf {
        let path = root.join(name);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("config.json"), "one").unwrap();
        std::fs::set_permissions(path.join("config.json"), std::fs::Permissions::from_mode(0o640)).unwrap();
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_600_000_000, 123_456_789);
        std::fs::File::open(path.join("config.json")).unwrap().set_modified(time).unwrap();
        path
    }

    #[test]
    fn what_is_applied_is_taken_back_to_the_nanosecond() {
        let dir = tempfile::tempdir().unwrap();
        let path = model(Utf8Path::from_path(dir.path()).unwrap(), "m");
        let names = ["p".to_owned()];
        let files = [content("config.json", Some("one"), "two"), content("new.jinja", None, "x")];
        apply_in_place(&path, &names, &files).unwrap();
        assert_eq!(std::fs::read_to_string(path.join("config.json")).unwrap(), "two");
        assert_eq!(path.join("config.json").metadata().unwrap().mode() & 0o777, 0o640);
        assert_eq!(read_in_place(&path).unwrap().unwrap().patches, names);
        assert!(matches!(apply_in_place(&path, &names, &files), Err(InPlaceError::Already { .. })));
        revert_in_place(&path).unwrap();
        let meta = path.join("config.json").metadata().unwrap();
        assert_eq!(
            (meta.mtime(), meta.mtime_nsec(), meta.mode() & 0o777),
            (1_600_000_000, 123_456_789, 0o640)
        );
        assert_eq!(std::fs::read_to_string(path.join("config.json")).unwrap(), "one");
        assert!(!path.join("new.jinja").exists() && !path.join(BACKUP_DIR).exists());
        assert!(matches!(revert_in_place(&path), Err(InPlaceError::Nothing { .. })));
    }

    #[test]
    fn shared_files_are_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap();
        let files = [content("config.json", Some("one"), "two")];
        let linked = model(root, "linked");
        std::fs::rename(linked.join("config.json"), root.join("blob")).unwrap();
        std::os::unix::fs::symlink(root.join("blob"), linked.join("config.json")).unwrap();
        assert!(matches!(apply_in_place(&linked, &[], &files), Err(InPlaceError::Link { .. })));
        let hard = model(root, "hard");
        std::fs::hard_link(hard.join("config.json"), root.join("other")).unwrap();
        assert!(matches!(apply_in_place(&hard, &[], &files), Err(InPlaceError::HardLink { names: 2, .. })));
        let cached = model(root, "models--a--b/snapshots/c");
        assert!(matches!(apply_in_place(&cached, &[], &files), Err(InPlaceError::Cache { .. })));
        for path in [root.join("blob"), hard.join("config.json"), cached.join("config.json")] {
            assert_eq!(std::fs::read_to_string(path).unwrap(), "one");
        }
        assert!(!hard.join(BACKUP_DIR).exists());
    }

    #[test]
    fn what_others_changed_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = model(Utf8Path::from_path(dir.path()).unwrap(), "m");
        let wrong = [content("config.json", Some("other"), "two")];
        assert!(matches!(apply_in_place(&path, &[], &wrong), Err(InPlaceError::Drift { .. })));
        assert!(!path.join(BACKUP_DIR).exists());
        apply_in_place(&path, &[], &[content("config.json", Some("one"), "two")]).unwrap();
        std::fs::write(path.join("config.json"), "three").unwrap();
        assert!(matches!(revert_in_place(&path), Err(InPlaceError::Drift { .. })));
        assert_eq!(std::fs::read_to_string(path.join("config.json")).unwrap(), "three");
        // Killed before anything was replaced: the original is there, and that is no drift.
        std::fs::write(path.join("config.json"), "one").unwrap();
        revert_in_place(&path).unwrap();
        assert_eq!(std::fs::read_to_string(path.join("config.json")).unwrap(), "one");
    }
}
