//! KV cache types and patches in words.

use crate::facts::Facts;
use crate::patch::PatchError;
use crate::plan::{KvRefusal, PlannedKvType};
use crate::report::{Diagnostic, ErrorCode, Retry};

/// No attention backend stores the KV cache type.
pub(super) fn kv_type_refused(refusal: &KvRefusal, facts: &Facts) -> Diagnostic {
    let id = &facts.model.id;
    let mut diagnostic =
        Diagnostic::new(ErrorCode::KvDtypeUnsupported, refusal.summary()).retry(Retry::AfterChange);
    if let Some(source) = &refusal.source {
        let what = if refusal.from_checkpoint { "asked for by the checkpoint" } else { "asked for" };
        diagnostic = diagnostic.fact(source.clone(), format!("{what}: {}", refusal.dtype));
    }
    for reason in &refusal.reasons {
        diagnostic = diagnostic.fact("support table", reason.clone());
    }
    if let Some(note) = &refusal.note {
        diagnostic = diagnostic.fact("support table", note.clone());
    }
    for source in &refusal.sources {
        diagnostic = diagnostic.fact("source", source.clone());
    }
    diagnostic = diagnostic.did("started nothing: the engine would load and then fail");
    if refusal.from_checkpoint {
        diagnostic =
            diagnostic.command("let kdeploy choose another type", format!("kdeploy up {id} --patches auto"));
    }
    if let Some(other) = &refusal.other_dtype {
        diagnostic = diagnostic.command(
            format!("store {other}, at more bytes a token"),
            format!("kdeploy up {id} --kv-cache-dtype {other}"),
        );
    }
    if let Some(version) = &refusal.works_from {
        diagnostic = diagnostic.advice(format!("or use vLLM {version} or newer, which stores it"));
    }
    if !refusal.from_checkpoint && refusal.other_dtype.is_none() && refusal.dtype != "auto" {
        diagnostic = diagnostic
            .command("or with the model's own type", format!("kdeploy up {id} --kv-cache-dtype auto"));
    }
    diagnostic
}

/// The same, after the engine was started and failed of it.
pub(super) fn kv_type_failed(kv: Option<&PlannedKvType>, id: &str) -> Diagnostic {
    let dtype = kv.map_or("this", |kv| kv.dtype.as_str());
    let mut diagnostic = Diagnostic::new(
        ErrorCode::KvDtypeUnsupported,
        format!("the attention backend cannot use a KV cache of {dtype}"),
    )
    .retry(Retry::Never);
    if let Some(kv) = kv {
        diagnostic = diagnostic
            .cause(format!("{dtype} is asked for by {}", kv.source))
            .fact(kv.source.clone(), format!("KV cache type {dtype}"))
            .fact("support table", kv.support.clone());
    }
    diagnostic.command(
        "let kdeploy choose another type",
        format!("kdeploy up {id} --kv-cache-dtype auto --patches auto"),
    )
}

/// A patch that does not apply.
pub(super) fn patch_error(error: &PatchError, facts: &Facts) -> Diagnostic {
    patch_failed(
        error,
        &facts.model.id,
        facts.model.path.as_ref().map_or("the checkpoint", |path| path.as_str()),
    )
}

/// A patch that does not apply to this checkpoint.
pub(super) fn patch_failed(error: &PatchError, id: &str, checkpoint: &str) -> Diagnostic {
    let mut diagnostic = Diagnostic::new(ErrorCode::PatchDoesNotApply, error.to_string())
        .fact(checkpoint, "left as it is".to_owned())
        .did("changed nothing");
    if let PatchError::Drift { expected, found, file } = error {
        let found = found.clone().unwrap_or_else(|| "no file".to_owned());
        diagnostic = diagnostic
            .fact(file.clone(), format!("SHA-256 {found}, expected {expected}"))
            .command("make the plan anew", format!("kdeploy plan {id}"));
    }
    if let PatchError::NoFile { .. } = error {
        diagnostic = diagnostic.advice("a patch needs the checkpoint on this machine: fetch it first");
    }
    diagnostic
        .command("see which patches fit", format!("kdeploy patch list {id}"))
        .command("or serve it as it is", format!("kdeploy up {id} --patches none"))
}
