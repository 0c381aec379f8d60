//! From a plan's overlay to the directory that the engine is pointed at.

use std::collections::BTreeSet;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use super::context::{io_error, store_error};
use super::explain_inputs::model_error;
use super::explain_patches::patch_failed;
use crate::facts::{CheckpointEntry, MAX_CONFIG_BYTES};
use crate::patch::PatchError;
use crate::plan::{PatchKind, Plan, PlannedOverlay, overlay_digest};
use crate::report::Diagnostic;
use crate::store::{BACKUP_DIR, OverlayContent, OverlayHold, make_overlay, read_bounded};

/// Python files of a directory deeper than this, or more of them, are linked with it.
const MAX_DEPTH: u32 = 4;
const MAX_ENTRIES: usize = 4096;
/// Largest `*.py` that is copied.
const MAX_CODE_BYTES: u64 = 16 << 20;

/// File in an overlay that says what it is.
pub(super) const OVERLAY_RECORD: &str = ".kdeploy-overlay.json";

/// What an overlay is.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OverlayRecord {
    /// Version of this form.
    pub format: u32,
    /// The checkpoint.
    pub source: Utf8PathBuf,
    /// Patches in it.
    pub patches: Vec<String>,
    /// SHA-256 over the checkpoint's listing and the edits.
    pub digest: String,
}

/// Makes the overlay of a plan, when it has one, and holds it.
///
/// # Errors
/// When the checkpoint is not the one that was planned for, or the overlay cannot be written.
pub(super) fn prepare_overlay(plan: &Plan) -> Result<Option<OverlayHold>, Diagnostic> {
    let Some(overlay) = &plan.overlay else { return Ok(None) };
    let in_it = plan.patches.iter().filter(|patch| patch.kind == PatchKind::Overlay);
    let names: Vec<String> = in_it.map(|patch| patch.name.clone()).collect();
    make(overlay, &names, &plan.model.id).map(Some)
}

/// Makes an overlay and holds it.
pub(super) fn make(
    overlay: &PlannedOverlay,
    patches: &[String],
    id: &str,
) -> Result<OverlayHold, Diagnostic> {
    let entries = crate::probe::list_checkpoint(&overlay.source).map_err(|error| model_error(&error, id))?;
    let found = overlay_digest(&entries, &overlay.source, &overlay.files);
    // First the files: they say more exactly what changed.
    let mut content = content(overlay, &entries, id)?;
    if found != overlay.digest {
        let drift = PatchError::Drift {
            file: overlay.source.to_string(),
            expected: overlay.digest.clone(),
            found: Some(found),
        };
        return Err(patch_failed(&drift, id, overlay.source.as_str()));
    }
    let record = OverlayRecord {
        format: 1,
        source: overlay.source.clone(),
        patches: patches.to_vec(),
        digest: overlay.digest.clone(),
    };
    let bytes = serde_json::to_vec_pretty(&record).map_err(|error| io_error(&error.into()))?;
    content.files.push((OVERLAY_RECORD.to_owned(), bytes));
    make_overlay(&overlay.path, &content).map_err(|error| store_error(&error))
}

/// Links to everything, edited copies of the patched files, copies of Python code.
fn content(
    overlay: &PlannedOverlay,
    entries: &[CheckpointEntry],
    id: &str,
) -> Result<OverlayContent, Diagnostic> {
    let mut content = OverlayContent { links: Vec::new(), files: Vec::new() };
    let mut edited = BTreeSet::new();
    for file in &overlay.files {
        let original = read_bounded(&overlay.source.join(&file.path), MAX_CONFIG_BYTES)
            .map_err(|error| store_error(&error))?;
        let made = file
            .make(original.as_deref())
            .map_err(|error| patch_failed(&error, id, overlay.source.as_str()))?;
        content.files.push((file.path.clone(), made));
        edited.insert(file.path.as_str());
    }
    for entry in entries.iter().filter(|entry| !edited.contains(entry.name.as_str())) {
        if entry.name == BACKUP_DIR {
            continue;
        }
        if !entry.is_dir && entry.name.ends_with(".py") {
            content.files.push((entry.name.clone(), code(&entry.target)?));
        } else if entry.is_dir && has_code(&entry.target, 0) {
            add_directory(&mut content, &entry.name, &entry.target, 0)?;
        } else {
            content.links.push((entry.name.clone(), entry.target.clone()));
        }
    }
    Ok(content)
}

fn code(path: &Utf8Path) -> Result<Vec<u8>, Diagnostic> {
    let bytes = read_bounded(path, MAX_CODE_BYTES).map_err(|error| store_error(&error))?;
    bytes.ok_or_else(|| io_error(&std::io::Error::other(format!("`{path}` is gone"))))
}

/// Is there Python code in it? Links to directories are not followed.
fn has_code(path: &Utf8Path, depth: u32) -> bool {
    let Ok(entries) = path.read_dir_utf8() else { return false };
    depth < MAX_DEPTH
        && entries.flatten().take(MAX_ENTRIES).any(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => has_code(entry.path(), depth + 1),
            _ => entry.file_name().ends_with(".py"),
        })
}

/// A directory with code in it: real directories, links, and copies of the code.
fn add_directory(
    content: &mut OverlayContent,
    name: &str,
    path: &Utf8Path,
    depth: u32,
) -> Result<(), Diagnostic> {
    let io = |error: std::io::Error| io_error(&error).cause(format!("`{path}`: {error}"));
    for entry in path.read_dir_utf8().map_err(io)? {
        let entry = entry.map_err(io)?;
        let below = format!("{name}/{}", entry.file_name());
        let kind = entry.file_type().map_err(io)?;
        let target = entry.path().canonicalize_utf8().map_err(io)?;
        if kind.is_dir() && depth < MAX_DEPTH && has_code(entry.path(), depth + 1) {
            add_directory(content, &below, entry.path(), depth + 1)?;
        } else if entry.file_name().ends_with(".py") && target.is_file() {
            content.files.push((below, code(&target)?));
        } else {
            content.links.push((below, target));
        }
    }
    Ok(())
}
