//! Edits themselves: as diffs, in an overlay, in the checkpoint, and taken back.

use camino::Utf8Path;

use super::read;
use crate::app::context::{App, store_error};
use crate::app::explain_inputs::plan_error;
use crate::app::explain_patches::patch_failed;
use crate::app::inputs::{Inputs, model_directory};
use crate::app::overlay::{OVERLAY_RECORD, OverlayRecord, make};
use crate::cli::{PatchApplyArgs, PatchModelArgs};
use crate::facts::MAX_CONFIG_BYTES;
use crate::patch::unified_diff;
use crate::plan::{PatchKind, PlannedOverlay, PlannedPatch, PlannedPatches, plan_patches};
use crate::report::schema::{InPlaceBody, OverlayBody, PatchBody, PatchDiff, PatchInfo};
use crate::report::{Diagnostic, ErrorCode, Exit};
use crate::store::{
    InPlaceError, InPlaceRecord, NewContent, OverlayRemoval, apply_in_place, overlay_in_use, read_bounded,
    read_in_place, remove_overlay, revert_in_place,
};

/// What would be done for this model.
async fn planned(app: &App, args: &PatchModelArgs) -> Result<(Inputs, PlannedPatches), Diagnostic> {
    let inputs = read(app, args).await?;
    let planned = plan_patches(&inputs.settings, &inputs.facts, &inputs.library, &app.dirs.cache)
        .map_err(|error| plan_error(&error, &inputs.facts))?;
    Ok((inputs, planned))
}

pub(super) async fn diff(app: &App, args: &PatchModelArgs) -> Result<Exit, Diagnostic> {
    let (inputs, planned) = planned(app, args).await?;
    let id = &inputs.facts.model.id;
    let files = match &planned.overlay {
        Some(overlay) => diffs(overlay, id)?,
        None => Vec::new(),
    };
    let text: String = files.iter().map(|file| file.diff.as_str()).collect();
    if text.is_empty() {
        app.ui.answer(&nothing_edited(&planned.patches));
    } else {
        app.ui.answer(text.trim_end());
    }
    let body = PatchBody {
        action: "diff",
        model: Some(id.clone()),
        patches: infos(&planned.patches),
        files,
        ..PatchBody::default()
    };
    app.ui.document(body, Exit::Done);
    Ok(Exit::Done)
}

fn nothing_edited(patches: &[PlannedPatch]) -> String {
    match patches.iter().find_map(|patch| patch.flag.clone().map(|flag| (patch, flag))) {
        Some((patch, flag)) => format!(
            "no file is edited: {flag} does what `{name}` would; see its edits with --patches {name}",
            name = patch.name
        ),
        None => "no file is edited".to_owned(),
    }
}

/// Diffs of the files of an overlay.
pub(in crate::app) fn diffs(overlay: &PlannedOverlay, id: &str) -> Result<Vec<PatchDiff>, Diagnostic> {
    let mut found = Vec::new();
    for content in contents(overlay, id)? {
        let Some(file) = overlay.files.iter().find(|file| file.path == content.path) else { continue };
        let before = String::from_utf8_lossy(content.before.as_deref().unwrap_or_default()).into_owned();
        let diff = unified_diff(&content.path, &before, &String::from_utf8_lossy(&content.after));
        found.push(PatchDiff { file: file.clone(), diff });
    }
    Ok(found)
}

/// Files before and afterwards.
fn contents(overlay: &PlannedOverlay, id: &str) -> Result<Vec<NewContent>, Diagnostic> {
    let read = |file: &crate::patch::PatchedFile| {
        let before = read_bounded(&overlay.source.join(&file.path), MAX_CONFIG_BYTES)
            .map_err(|error| store_error(&error))?;
        let after = file
            .make(before.as_deref())
            .map_err(|error| patch_failed(&error, id, overlay.source.as_str()))?;
        Ok(NewContent { path: file.path.clone(), before, after })
    };
    overlay.files.iter().map(read).collect()
}

fn infos(patches: &[PlannedPatch]) -> Vec<PatchInfo> {
    let info = |patch: &PlannedPatch| PatchInfo {
        name: patch.name.clone(),
        needed: Some(true),
        effect: Some(patch.kind),
        flag: patch.flag.clone(),
        why: patch.why.clone(),
        until: patch.until.clone(),
        links: patch.links.clone(),
        ..PatchInfo::default()
    };
    patches.iter().map(info).collect()
}

pub(super) async fn apply(app: &App, args: &PatchApplyArgs) -> Result<Exit, Diagnostic> {
    let (inputs, planned) = planned(app, &args.model).await?;
    let id = inputs.facts.model.id.clone();
    let mut body = PatchBody {
        action: "apply",
        model: Some(id.clone()),
        patches: infos(&planned.patches),
        ..PatchBody::default()
    };
    let names: Vec<String> = planned
        .patches
        .iter()
        .filter(|patch| patch.kind == PatchKind::Overlay)
        .map(|patch| patch.name.clone())
        .collect();
    let Some(overlay) = &planned.overlay else {
        app.ui.answer(&nothing_edited(&planned.patches));
        app.ui.document(body, Exit::Done);
        return Ok(Exit::Done);
    };
    body.files = diffs(overlay, &id)?;
    if args.in_place {
        if overlay.files.is_empty() {
            return Err(Diagnostic::new(
                ErrorCode::PatchDoesNotApply,
                format!("{} edits no file: it only has an effect in an overlay", names.join(", ")),
            ));
        }
        let record = apply_in_place(&overlay.source, &names, &contents(overlay, &id)?)
            .map_err(|error| in_place_error(&error, &id))?;
        app.ui.answer(&format!(
            "`{}` is patched in place: {} ({})\nNext: kdeploy patch revert {id}",
            overlay.source,
            files_of(&record).join(", "),
            names.join(", ")
        ));
        body.in_place = Some(in_place_body(&overlay.source, &record));
    } else {
        drop(make(overlay, &names, &id)?);
        app.ui.answer(&format!("{}\n  {} of `{}`", overlay.path, names.join(", "), overlay.source));
        body.overlays.push(OverlayBody {
            path: overlay.path.to_string(),
            source: overlay.source.to_string(),
            patches: names,
            in_use: false,
        });
    }
    app.ui.document(body, Exit::Done);
    Ok(Exit::Done)
}

/// Takes back what was done to a checkpoint: edits in it, and overlays of it that nobody uses.
pub(super) fn revert(app: &App, args: &PatchModelArgs) -> Result<Exit, Diagnostic> {
    let (id, path) = model_directory(app, &args.launch)?;
    let mut body = PatchBody { action: "revert", model: Some(id.clone()), ..PatchBody::default() };
    let mut lines = Vec::new();
    match revert_in_place(&path) {
        Ok(record) => {
            lines.push(format!("`{path}` is as it was: {}", files_of(&record).join(", ")));
            body.in_place = Some(in_place_body(&path, &record));
        }
        Err(InPlaceError::Nothing { .. }) => {}
        Err(error) => return Err(in_place_error(&error, &id)),
    }
    for overlay in overlays(app, Some(&path))? {
        match remove_overlay(Utf8Path::new(&overlay.path)).map_err(|error| store_error(&error))? {
            OverlayRemoval::Removed => {
                lines.push(format!("removed {}", overlay.path));
                body.overlays.push(overlay);
            }
            OverlayRemoval::InUse => {
                lines.push(format!("{} stays: a launch uses it", overlay.path));
                body.overlays.push(OverlayBody { in_use: true, ..overlay });
            }
            OverlayRemoval::Absent => {}
        }
    }
    if lines.is_empty() {
        lines.push(format!("there is nothing to take back for `{id}`"));
    }
    app.ui.answer(&lines.join("\n"));
    app.ui.document(body, Exit::Done);
    Ok(Exit::Done)
}

pub(super) fn status(app: &App, args: &PatchModelArgs) -> Result<Exit, Diagnostic> {
    let mut body = PatchBody { action: "status", ..PatchBody::default() };
    let mut lines = Vec::new();
    let mut only = None;
    if super::names_a_model(app, args) {
        let (id, path) = model_directory(app, &args.launch)?;
        if let Some(record) = read_in_place(&path).map_err(|error| store_error(&error))? {
            lines.push(format!(
                "patched in place on {}: {} ({})",
                record.at,
                files_of(&record).join(", "),
                record.patches.join(", ")
            ));
            body.in_place = Some(in_place_body(&path, &record));
        }
        body.model = Some(id);
        only = Some(path);
    }
    body.overlays = overlays(app, only.as_deref())?;
    for overlay in &body.overlays {
        let used = if overlay.in_use { ", in use" } else { "" };
        lines.push(format!(
            "{}\n  {} of `{}`{used}",
            overlay.path,
            overlay.patches.join(", "),
            overlay.source
        ));
    }
    if lines.is_empty() {
        lines.push("no overlay, and nothing patched in place".to_owned());
    }
    app.ui.answer(&lines.join("\n"));
    app.ui.document(body, Exit::Done);
    Ok(Exit::Done)
}

/// Overlays in the cache, of one checkpoint or of all.
fn overlays(app: &App, of: Option<&Utf8Path>) -> Result<Vec<OverlayBody>, Diagnostic> {
    let base = app.dirs.cache.join("overlays");
    let entries = match base.read_dir_utf8() {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(store_error(&error.into())),
    };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let bytes = read_bounded(&path.join(OVERLAY_RECORD), 1 << 20).map_err(|error| store_error(&error))?;
        let record = bytes.and_then(|bytes| serde_json::from_slice::<OverlayRecord>(&bytes).ok());
        let Some(record) = record.filter(|record| of.is_none_or(|of| of == record.source)) else { continue };
        found.push(OverlayBody {
            path: path.to_string(),
            source: record.source.to_string(),
            patches: record.patches,
            in_use: overlay_in_use(path),
        });
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn files_of(record: &InPlaceRecord) -> Vec<String> {
    record.files.iter().map(|file| file.path.clone()).collect()
}

fn in_place_body(path: &Utf8Path, record: &InPlaceRecord) -> InPlaceBody {
    InPlaceBody {
        path: path.to_string(),
        at: record.at.clone(),
        patches: record.patches.clone(),
        files: files_of(record),
    }
}

fn in_place_error(error: &InPlaceError, id: &str) -> Diagnostic {
    match error {
        InPlaceError::Store(error) => store_error(error),
        InPlaceError::Link { .. } | InPlaceError::HardLink { .. } | InPlaceError::Cache { .. } => {
            Diagnostic::new(
                ErrorCode::PatchDoesNotApply,
                "the checkpoint is shared and is not edited in place",
            )
            .cause(error.to_string())
            .did("changed nothing")
            .command("use an overlay instead", format!("kdeploy patch apply {id}"))
        }
        InPlaceError::Already { .. } => Diagnostic::new(ErrorCode::PatchDoesNotApply, error.to_string())
            .did("changed nothing")
            .command("take them back first", format!("kdeploy patch revert {id}")),
        InPlaceError::Nothing { .. } => Diagnostic::new(ErrorCode::PatchNotFound, error.to_string()),
        InPlaceError::Drift { path, expected, found } => {
            Diagnostic::new(ErrorCode::PatchDoesNotApply, error.to_string())
                .fact(path.as_str(), format!("SHA-256 {found}, expected {expected}"))
                .did("changed nothing")
                .advice("put the file back as it was, or compare it with the original in `.kdeploy-patched`")
        }
    }
}
