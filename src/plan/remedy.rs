//! What the checkpoint needs before this engine on this hardware can load it: an option where the
//! engine honours one, otherwise an edited copy of a file, otherwise a refusal with its reasons.

use camino::{Utf8Path, Utf8PathBuf};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::command::Options;
use super::error::{KvRefusal, PlanError};
use super::kv_type::{KvFrom, KvType, PlannedKvType, ask, kv_type, model_dtype};
use super::make::warning;
use super::model::PlanWarning;
use super::named::named_facts;
use crate::config::Settings;
use crate::facts::{
    CheckpointEntry, EngineFacts, FactSet, FactValue, Facts, Gpu, KvSupport, ModelFacts, assemble_config,
};
use crate::patch::{Patch, PatchError, PatchLibrary, PatchedFile, apply_patches, sha256};

/// The code of the check that `--force-preflight` can turn into a warning.
pub const KV_DTYPE_UNSUPPORTED: &str = "kv-dtype-unsupported";

/// How a patch is put into effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PatchKind {
    /// An option of the engine does the same.
    Flag,
    /// Edited copies in an overlay.
    Overlay,
}

/// A patch of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedPatch {
    /// Its name.
    pub name: String,
    /// How it is put into effect.
    pub kind: PatchKind,
    /// Why it is needed.
    pub why: String,
    /// Where that is from.
    pub links: Vec<String>,
    /// When the need ends, when that is known.
    #[serde(default)]
    pub until: Option<String>,
    /// The option, for `flag`.
    #[serde(default)]
    pub flag: Option<String>,
    /// Regular expressions that a line of the engine's log must match.
    #[serde(default)]
    pub log: Vec<String>,
    /// Regular expressions that no line may match.
    #[serde(default)]
    pub never: Vec<String>,
}

/// A directory of links to a checkpoint, with edited copies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedOverlay {
    /// Where it is made.
    #[schemars(with = "String")]
    pub path: Utf8PathBuf,
    /// The checkpoint.
    #[schemars(with = "String")]
    pub source: Utf8PathBuf,
    /// SHA-256 over the checkpoint's listing and the edits: another checkpoint gets another overlay.
    pub digest: String,
    /// Edited files.
    pub files: Vec<PatchedFile>,
}

/// What was decided.
#[derive(Debug, Default)]
pub(super) struct Remedies {
    /// The model as the engine will see it.
    pub model: ModelFacts,
    pub patches: Vec<PlannedPatch>,
    pub overlay: Option<PlannedOverlay>,
    pub kv: Option<PlannedKvType>,
    pub warnings: Vec<PlanWarning>,
    /// Facts as they are with everything in effect.
    pub named: FactSet,
}

/// Chooses and applies the patches; an option that does the same is set in `options`.
pub(super) fn choose_remedies(
    settings: &Settings,
    facts: &Facts,
    gpus: &[&Gpu],
    library: &PatchLibrary,
    options: &mut Options,
    cache: &Utf8Path,
) -> Result<Remedies, PlanError> {
    let mut found = Remedies { model: facts.model.clone(), ..Remedies::default() };
    let mut named = named_facts(settings, facts, gpus, options);
    let mut chosen: Vec<(&Patch, Option<&str>)> = Vec::new();
    for wanted in &settings.patches.value.named {
        let place = settings.patches.origin.place();
        let patch = library.get(&wanted.name).ok_or_else(|| PlanError::NoSuchPatch {
            place: place.to_owned(),
            name: wanted.name.clone(),
            nearest: library.nearest(&wanted.name),
        })?;
        let argument = argument_of(patch, wanted.argument.as_deref(), library, place)?;
        if let Some(truth) =
            patch.when.as_ref().map(|when| when.judge(&named)).filter(|truth| !truth.is_true())
        {
            let text = format!(
                "patch `{}` was asked for; by itself it would not apply: {}",
                patch.name,
                truth.because()
            );
            found.warnings.push(warning("patch-not-needed", &text));
        }
        chosen.push((patch, argument));
    }
    for patch in library.patches() {
        if chosen.iter().any(|(known, _)| known.name == patch.name) || !is_called_for(patch, &named) {
            continue;
        }
        if !settings.patches.value.auto {
            let text = format!(
                "patch `{}` is called for and left out by {}",
                patch.name,
                settings.patches.origin.place()
            );
            found.warnings.push(warning("patch-left-out", &text));
            continue;
        }
        if let Some(flag) = set_flag(patch, settings, facts, gpus, &named, options) {
            found.patches.push(planned(patch, PatchKind::Flag, Some(flag)));
            named = named_facts(settings, facts, gpus, options);
        } else {
            chosen.push((patch, None));
        }
    }
    if !chosen.is_empty() {
        apply(&mut found, &chosen, &named, cache)?;
    }
    let patched = Facts { model: found.model.clone(), ..facts.clone() };
    found.named = named_facts(settings, &patched, gpus, options);
    judge_kv_type(&mut found, settings, facts, &patched, gpus, options)?;
    Ok(found)
}

/// Do the facts call for a patch, by itself?
pub(super) fn is_called_for(patch: &Patch, facts: &FactSet) -> bool {
    let needed = patch.when.as_ref().is_some_and(|when| when.judge(facts).is_true());
    let ended = patch.until.as_ref().is_some_and(|until| until.judge(facts).is_true());
    needed && !ended
}

fn argument_of<'a>(
    patch: &Patch,
    given: Option<&str>,
    library: &'a PatchLibrary,
    place: &str,
) -> Result<Option<&'a str>, PlanError> {
    let bad = |message: String| PlanError::PatchArgument {
        place: place.to_owned(),
        name: patch.name.clone(),
        message,
    };
    match (&patch.argument, given) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(bad("takes no file".to_owned())),
        (Some(what), None) => Err(bad(format!("takes a file, {what}: `{}=FILE`", patch.name))),
        (Some(_), Some(file)) => library
            .argument(file)
            .map(Some)
            .ok_or_else(|| bad(format!("takes a file, and `{file}` was not read"))),
    }
}

/// Sets the option that does what the patch does, where the engine honours it; says which.
fn set_flag(
    patch: &Patch,
    settings: &Settings,
    facts: &Facts,
    gpus: &[&Gpu],
    named: &FactSet,
    options: &mut Options,
) -> Option<String> {
    let flag = patch.flag.as_ref()?;
    let engine: &EngineFacts = &facts.engine;
    let value = match named.get(&flag.from)? {
        FactValue::Nothing => return None,
        value => value.to_string(),
    };
    let taken = options.text(&flag.option).is_some_and(|given| given != "auto")
        || settings.passed_names.contains(&flag.option);
    if taken || !engine.schema.knows_option(&flag.option) {
        return None;
    }
    if flag.option == "kv_cache_dtype" {
        let config = facts.model.config.as_ref()?;
        let (_, support) = ask(config, facts, gpus, options, &value)?;
        if !matches!(support, KvSupport::Works { .. }) {
            return None;
        }
    }
    let reason = format!("{}: {}", patch.name, first_sentence(&patch.why));
    options.set(&flag.option, value.clone(), crate::config::Origin::planned(reason), "");
    Some(format!("--{} {value}", flag.option.replace('_', "-")))
}

fn first_sentence(text: &str) -> &str {
    text.split_inclusive(". ").next().unwrap_or(text).trim_end()
}

fn planned(patch: &Patch, kind: PatchKind, flag: Option<String>) -> PlannedPatch {
    PlannedPatch {
        name: patch.name.clone(),
        kind,
        why: patch.why.clone(),
        links: patch.links.clone(),
        until: patch.until.as_ref().map(ToString::to_string),
        flag,
        log: patch.evidence.log.clone(),
        never: patch.evidence.never.clone(),
    }
}

fn apply(
    found: &mut Remedies,
    chosen: &[(&Patch, Option<&str>)],
    named: &FactSet,
    cache: &Utf8Path,
) -> Result<(), PlanError> {
    let Some(source) = found.model.path.clone() else {
        let patch = chosen.first().map(|(patch, _)| patch.name.clone()).unwrap_or_default();
        return Err(PlanError::Patch(PatchError::NoFile { patch, file: "config.json".to_owned() }));
    };
    let (texts, files) = apply_patches(chosen, named, &found.model.texts).map_err(PlanError::Patch)?;
    let (config, tokenizer) = assemble_config(&texts).map_err(|broken| PlanError::PatchedBroken {
        patches: chosen.iter().map(|(patch, _)| patch.name.clone()).collect(),
        reason: broken.to_string(),
    })?;
    let digest = overlay_digest(&found.model.entries, &source, &files);
    let short = digest.get(..32).unwrap_or(&digest);
    found.overlay = Some(PlannedOverlay { path: cache.join("overlays").join(short), source, digest, files });
    found.model.config = Some(config);
    let template = ["chat_template.jinja", "chat_template.json"].iter().any(|name| texts.contains_key(*name));
    found.model.has_chat_template =
        Some(template || tokenizer.is_some_and(|tokenizer| tokenizer.has_chat_template));
    found.model.texts = texts;
    found.patches.extend(chosen.iter().map(|(patch, _)| planned(patch, PatchKind::Overlay, None)));
    Ok(())
}

/// What an overlay stands for: another listing or other edits are another overlay.
pub(crate) fn overlay_digest(
    entries: &[CheckpointEntry],
    source: &Utf8Path,
    files: &[PatchedFile],
) -> String {
    let mut text = format!("kdeploy overlay 1\n{source}\n");
    for entry in entries {
        let line = format!(
            "{}\0{}\0{}\0{}\0{}\n",
            entry.name, entry.target, entry.is_dir, entry.size, entry.modified_ns
        );
        text.push_str(&line);
    }
    for file in files {
        text.push_str(&format!("{}\0{}\n", file.path, file.sha256_after));
    }
    sha256(text.as_bytes())
}

/// Refuses, warns or lets pass; and keeps what the engine has to confirm.
fn judge_kv_type(
    found: &mut Remedies,
    settings: &Settings,
    facts: &Facts,
    patched: &Facts,
    gpus: &[&Gpu],
    options: &Options,
) -> Result<(), PlanError> {
    let Some(config) = &patched.model.config else { return Ok(()) };
    let Some(now) = kv_type(config, patched, gpus, options) else { return Ok(()) };
    let before = facts.model.config.as_ref().and_then(|config| kv_type(config, facts, gpus, options));
    let own = model_dtype(config, options);
    let remedied = found
        .patches
        .iter()
        .any(|patch| patch.flag.as_ref().is_some_and(|flag| flag.starts_with("--kv-cache-dtype")))
        || before.is_some_and(|before| before.dtype != now.dtype);
    found.kv = Some(now.planned(own.as_deref(), remedied));
    match &now.support {
        KvSupport::Works { .. } => {}
        KvSupport::Unknown { why } => {
            // The model's own type is what every backend is made for: worth a line in the plan only.
            if now.dtype != "auto" && !matches!(&now.from, KvFrom::Option { planned: true, .. }) {
                let text = format!("whether {} works is not known: {why}", now.subject());
                found.warnings.push(warning("kv-dtype-unknown", &text));
            }
        }
        KvSupport::Doubtful { reason, .. } => {
            let text = format!("{}: {reason}", now.subject());
            found.warnings.push(warning("kv-dtype-doubtful", &text));
        }
        KvSupport::Unsupported { .. } => {
            let refusal = refusal(&now, facts, gpus, options, own.as_deref());
            if !settings.forced.iter().any(|code| code == KV_DTYPE_UNSUPPORTED) {
                return Err(PlanError::KvTypeUnsupported(Box::new(refusal)));
            }
            let text = format!("{}, and --force-preflight lets it pass", refusal.summary());
            found.warnings.push(warning(KV_DTYPE_UNSUPPORTED, &text));
        }
    }
    Ok(())
}

fn refusal(now: &KvType, facts: &Facts, gpus: &[&Gpu], options: &Options, own: Option<&str>) -> KvRefusal {
    let KvSupport::Unsupported { reasons, sources, works_from, note } = &now.support else {
        return KvRefusal::default();
    };
    let source = match &now.from {
        KvFrom::Option { place, .. } => Some(place.clone()),
        KvFrom::Checkpoint { place } => Some(place.clone()),
        KvFrom::Model => None,
    };
    let works = |dtype: &str| {
        let config = facts.model.config.as_ref()?;
        let (_, support) = ask(config, facts, gpus, options, dtype)?;
        matches!(support, KvSupport::Works { .. }).then(|| dtype.to_owned())
    };
    KvRefusal {
        dtype: now.dtype.clone(),
        subject: now.subject(),
        version: facts.engine.version.to_string(),
        source,
        from_checkpoint: matches!(now.from, KvFrom::Checkpoint { .. }),
        reasons: reasons.clone(),
        sources: sources.clone(),
        works_from: works_from.clone(),
        note: note.clone(),
        other_dtype: own.and_then(works).filter(|other| *other != now.dtype),
    }
}

#[cfg(test)]
mod tests;
