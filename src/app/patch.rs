//! `kdeploy patch`: patches shown, tried, made and taken back.

mod changes;

pub(super) use changes::diffs;

use std::fmt::Write as _;

use super::context::App;
use super::explain_inputs::plan_error;
use super::inputs::{self, Elsewhere, Inputs};
use super::patch_library::load_library;
use crate::cli::{PatchCommand, PatchModelArgs};
use crate::config::Truth;
use crate::patch::{Patch, PatchLibrary};
use crate::plan::{PatchKind, PatchOutlook, PlannedPatch, patch_outlook, plan_patches};
use crate::report::schema::{PatchBody, PatchInfo};
use crate::report::{Diagnostic, ErrorCode, Exit, plain_table};

/// Shows, makes or takes back edits of a checkpoint.
///
/// # Errors
/// When the model cannot be read, a patch does not apply, or files cannot be written.
pub async fn patch(app: &App, command: &PatchCommand) -> Result<Exit, Diagnostic> {
    match command {
        PatchCommand::List(args) => list(app, args).await,
        PatchCommand::Show { name } => show(app, name),
        PatchCommand::Diff(args) => changes::diff(app, args).await,
        PatchCommand::Apply(args) => changes::apply(app, args).await,
        PatchCommand::Revert(args) => changes::revert(app, args),
        PatchCommand::Status(args) => changes::status(app, args),
    }
}

/// Everything about a model; engine and weights may be missing.
async fn read(app: &App, args: &PatchModelArgs) -> Result<Inputs, Diagnostic> {
    let elsewhere = Elsewhere {
        facts: args.facts.clone(),
        engine_version: args.engine_version.clone(),
        weights_optional: true,
        engine_optional: true,
        ..Elsewhere::default()
    };
    inputs::read(app, &args.launch, elsewhere).await
}

fn names_a_model(app: &App, args: &PatchModelArgs) -> bool {
    args.launch.model.is_some()
        || args.launch.profile.is_some()
        || app.env.contains_key(crate::config::env_vars::PROFILE)
}

async fn list(app: &App, args: &PatchModelArgs) -> Result<Exit, Diagnostic> {
    let mut body = PatchBody { action: "list", ..PatchBody::default() };
    if !names_a_model(app, args) {
        let library = load_library(app)?;
        let rows: Vec<Vec<String>> =
            library.patches().iter().map(|patch| vec![patch.name.clone(), first_sentence(patch)]).collect();
        app.ui.answer(&format!(
            "{}\n\nNext: kdeploy patch list MODEL    kdeploy patch show NAME",
            plain_table(&["PATCH", "WHAT FOR"], &rows, &[])
        ));
        body.patches = library.patches().iter().map(info).collect();
        app.ui.document(body, Exit::Done);
        return Ok(Exit::Done);
    }
    let inputs = read(app, args).await?;
    let fail = |error| plan_error(&error, &inputs.facts);
    let outlook = patch_outlook(&inputs.settings, &inputs.facts, &inputs.library).map_err(fail)?;
    let planned = plan_patches(&inputs.settings, &inputs.facts, &inputs.library, &app.dirs.cache);
    let planned = planned.map_err(fail)?.patches;
    let mut rows = Vec::new();
    for entry in &outlook {
        let Some(patch) = inputs.library.get(&entry.name) else { continue };
        let effect = planned.iter().find(|planned| planned.name == entry.name);
        rows.push(vec![entry.name.clone(), word(entry, effect), reason(entry, effect)]);
        body.patches.push(with_outlook(info(patch), entry, effect));
    }
    app.ui.answer(&format!(
        "{} on vLLM {}\n\n{}",
        inputs.facts.model.id,
        inputs.facts.engine.version,
        plain_table(&["PATCH", "NEEDED", "WHY"], &rows, &[])
    ));
    body.model = Some(inputs.facts.model.id.clone());
    app.ui.document(body, Exit::Done);
    Ok(Exit::Done)
}

fn word(outlook: &PatchOutlook, effect: Option<&PlannedPatch>) -> String {
    let word = match (&outlook.needed, effect.map(|planned| planned.kind)) {
        (_, Some(PatchKind::Flag)) => "yes, as an option",
        (_, Some(PatchKind::Overlay)) => "yes",
        (Some(Truth::True), None) => "yes, left out",
        (Some(Truth::False(_)), None) => "no",
        (Some(Truth::Unknown(_)), None) => "unknown",
        (None, None) => "on request",
    };
    word.to_owned()
}

fn reason(outlook: &PatchOutlook, effect: Option<&PlannedPatch>) -> String {
    match (effect.and_then(|planned| planned.flag.clone()), &outlook.needed) {
        (Some(flag), _) => format!("{flag} does it"),
        (None, Some(truth)) => truth.because().to_owned(),
        (None, None) => String::new(),
    }
}

fn info(patch: &Patch) -> PatchInfo {
    PatchInfo {
        name: patch.name.clone(),
        why: patch.why.clone(),
        when: patch.when.as_ref().map(ToString::to_string),
        until: patch.until.as_ref().map(ToString::to_string),
        links: patch.links.clone(),
        ..PatchInfo::default()
    }
}

fn with_outlook(info: PatchInfo, outlook: &PatchOutlook, effect: Option<&PlannedPatch>) -> PatchInfo {
    let (needed, because) = match &outlook.needed {
        Some(Truth::True) => (Some(true), None),
        Some(Truth::False(why)) => (Some(false), Some(why.clone())),
        Some(Truth::Unknown(why)) => (None, Some(why.clone())),
        None => (Some(false), Some("it applies on request only".to_owned())),
    };
    PatchInfo {
        needed,
        because,
        effect: effect.map(|planned| planned.kind),
        flag: effect.and_then(|planned| planned.flag.clone()),
        ..info
    }
}

fn first_sentence(patch: &Patch) -> String {
    patch.why.split_inclusive(". ").next().unwrap_or(&patch.why).trim_end().to_owned()
}

fn show(app: &App, name: &str) -> Result<Exit, Diagnostic> {
    let library = load_library(app)?;
    let patch = library.get(name).ok_or_else(|| not_found(&library, name))?;
    let mut out = String::new();
    let _ = writeln!(out, "{name}, from {}\n", patch.file);
    let width = textwrap::Options::new(90).initial_indent("  ").subsequent_indent("  ");
    let _ = writeln!(out, "{}\n", textwrap::fill(&patch.why, width));
    let mut row = |label: &str, value: &str| {
        let _ = writeln!(out, "  {label:<9} {value}");
    };
    match &patch.when {
        Some(when) => row("when", &when.to_string()),
        None => row("when", "on request only"),
    }
    if let Some(until) = &patch.until {
        row("until", &until.to_string());
    }
    if let Some(argument) = &patch.argument {
        row("takes", &format!("{argument}: --patches {name}=FILE"));
    }
    if let Some(flag) = &patch.flag {
        let text =
            format!("--{} <{}>, where the engine honours it", flag.option.replace('_', "-"), flag.from);
        row("first", &text);
    }
    for file in &patch.files {
        let what =
            if file.replaced { "replaced".to_owned() } else { format!("{} operations", file.ops.len()) };
        row("edits", &format!("{} ({what})", file.path));
    }
    for pattern in &patch.copy {
        row("copies", pattern);
    }
    for pattern in &patch.evidence.log {
        row("evidence", &format!("a line of the log matches {pattern}"));
    }
    for pattern in &patch.evidence.never {
        row("", &format!("no line matches {pattern}"));
    }
    for link in &patch.links {
        row("see", link);
    }
    app.ui.answer(out.trim_end());
    let body = PatchBody { action: "show", patches: vec![info(patch)], ..PatchBody::default() };
    app.ui.document(body, Exit::Done);
    Ok(Exit::Done)
}

fn not_found(library: &PatchLibrary, name: &str) -> Diagnostic {
    let known: Vec<&str> = library.patches().iter().map(|patch| patch.name.as_str()).collect();
    let diagnostic = Diagnostic::new(ErrorCode::PatchNotFound, format!("there is no patch `{name}`"))
        .fact("known", known.join(", "));
    match library.nearest(name) {
        Some(near) => diagnostic.command("did you mean", format!("kdeploy patch show {near}")),
        None => diagnostic.command("see all", "kdeploy patch list"),
    }
}
