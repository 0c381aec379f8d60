//! Where a model lies: a directory, or a snapshot of the model cache; and what is in it.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use camino::{Utf8Path, Utf8PathBuf};

use super::files::read_small;
use super::model::ModelError;
use crate::facts::CheckpointEntry;

/// Does the text mean a path, never an id?
pub(super) fn is_path(model: &str) -> bool {
    model.starts_with(['/', '.', '~']) || model.ends_with('/') || model.matches('/').count() > 1
}

pub(super) type Snapshot = (Option<(Utf8PathBuf, String)>, Option<Utf8PathBuf>);

/// The snapshot of an id in the model cache: `models--ORG--NAME/snapshots/COMMIT`, where the commit
/// is given, or named by `refs/REVISION` (`refs/main`).
pub(super) fn find_snapshot(
    id: &str,
    revision: Option<&str>,
    env: &BTreeMap<String, String>,
) -> Result<Snapshot, ModelError> {
    let Some(hub) = hub_cache(env) else { return Ok((None, None)) };
    let root = hub.join(format!("models--{}", id.replace('/', "--")));
    let revision = revision.unwrap_or("main");
    if revision.contains("..") || revision.starts_with('/') {
        return Ok((None, Some(root)));
    }
    let reference = root.join("refs").join(revision);
    let commit = read_small(&reference, 1024)
        .map_err(|source| ModelError::Io { path: reference, source })?
        .map_or_else(|| revision.to_owned(), |bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
    let snapshot = root.join("snapshots").join(&commit);
    let usable = !commit.is_empty() && !commit.contains('/') && snapshot.is_dir();
    Ok((usable.then_some((snapshot, commit)), Some(root)))
}

pub(super) fn hub_cache(env: &BTreeMap<String, String>) -> Option<Utf8PathBuf> {
    let get = |name: &str| env.get(name).filter(|value| !value.is_empty()).map(Utf8PathBuf::from);
    get("HF_HUB_CACHE")
        .or_else(|| get("HF_HOME").map(|home| home.join("hub")))
        .or_else(|| get("XDG_CACHE_HOME").map(|cache| cache.join("huggingface/hub")))
        .or_else(|| get("HOME").map(|home| home.join(".cache/huggingface/hub")))
}

pub(super) fn absolute(path: &Utf8Path) -> Result<Utf8PathBuf, ModelError> {
    camino::absolute_utf8(path).map_err(|source| ModelError::Io { path: path.to_owned(), source })
}

/// What is in a checkpoint's directory, links followed.
///
/// # Errors
/// When it cannot be read, or a link leads nowhere.
pub fn list_checkpoint(path: &Utf8Path) -> Result<Vec<CheckpointEntry>, ModelError> {
    let io = |source| ModelError::Io { path: path.to_owned(), source };
    let mut entries = Vec::new();
    for entry in path.read_dir_utf8().map_err(io)? {
        let entry = entry.map_err(io)?;
        let at = entry.path();
        let io = |source| ModelError::Io { path: at.to_owned(), source };
        let is_link = entry.file_type().map_err(io)?.is_symlink();
        let meta = match at.metadata() {
            Ok(meta) => meta,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let target = at.read_link_utf8().map_or_else(|_| "nowhere".to_owned(), |t| t.to_string());
                return Err(ModelError::DanglingLink { link: at.to_owned(), target });
            }
            Err(source) => return Err(io(source)),
        };
        if !meta.is_file() && !meta.is_dir() {
            continue;
        }
        entries.push(CheckpointEntry {
            name: entry.file_name().to_owned(),
            target: at.canonicalize_utf8().map_err(io)?,
            is_dir: meta.is_dir(),
            is_link,
            size: if meta.is_file() { meta.len() } else { 0 },
            modified_ns: i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec()),
        });
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}
