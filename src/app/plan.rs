//! `kdeploy plan`: what `up` would do, and why; touches nothing.

use std::fmt::Write as _;
use std::time::Duration;

use super::context::App;
use super::inputs::{self, Elsewhere};
use crate::cli::PlanArgs;
use crate::config::OriginKind;
use crate::plan::{PatchKind, Plan, PlannedSetting};
use crate::report::schema::PlanBody;
use crate::report::{Diagnostic, ErrorCode, Exit};
use crate::units::{Bytes, format_duration};

/// Width of the longest bar in the memory table.
const BAR: u64 = 30;

/// Prints the plan; a plan that does not fit is printed too, with exit 78.
///
/// # Errors
/// When facts cannot be read or settings cannot be used.
pub async fn plan(app: &App, args: &PlanArgs) -> Result<Exit, Diagnostic> {
    let plan = inputs::plan(app, &args.launch, Elsewhere::from(args)).await?;
    let exit = if plan.fits { Exit::Done } else { Exit::Config };
    if args.argv {
        app.ui.answer(&command_line(&plan)?);
    } else {
        app.ui.answer(&text(&plan, args.all));
        if args.show_patches {
            app.ui.answer(&shown_patches(&plan)?);
        }
        app.ui.document(PlanBody::from(&plan), exit);
    }
    Ok(exit)
}

/// Unified diffs of the edited files.
fn shown_patches(plan: &Plan) -> Result<String, Diagnostic> {
    let Some(overlay) = &plan.overlay else {
        return Ok("\nno file of the checkpoint is edited".to_owned());
    };
    let files = super::patch::diffs(overlay, &plan.model.id)?;
    Ok(files.iter().fold("\n".to_owned(), |text, file| text + &file.diff).trim_end().to_owned())
}

impl From<&PlanArgs> for Elsewhere {
    fn from(args: &PlanArgs) -> Self {
        Self {
            facts: args.facts.clone(),
            engine_version: args.engine_version.clone(),
            assumed: args.assume.clone(),
            weights_optional: true,
            engine_optional: false,
        }
    }
}

/// The command line with its environment, ready to paste.
fn command_line(plan: &Plan) -> Result<String, Diagnostic> {
    let unquotable = |_| {
        Diagnostic::new(ErrorCode::SettingInvalid, "the command line cannot be quoted")
            .cause("a value holds a NUL byte")
    };
    let env: Vec<String> = plan.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let words = std::iter::once("env".to_owned())
        .chain(plan.unset_env.iter().flat_map(|name| ["-u".to_owned(), name.clone()]))
        .chain(env)
        .chain(plan.argv.iter().cloned());
    let words: Vec<String> = words.collect();
    shlex::try_join(words.iter().map(String::as_str)).map_err(unquotable)
}

/// The plan as a person reads it.
pub(super) fn text(plan: &Plan, all: bool) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "Plan for {} on {}\n", plan.model.id, plan.hardware);
    let mut row = |label: &str, value: &str| {
        let _ = writeln!(out, "  {label:<10} {value}");
    };
    row("fits", &format!("{}, {}", if plan.fits { "yes" } else { "no" }, plan.verdict));
    row("engine", &format!("vLLM {}, found through {}", plan.engine.version, plan.engine.found));
    row("address", &format!("{}:{}", plan.host, plan.port));
    if let Some(setting) = plan.settings.iter().find(|setting| setting.name == "tensor_parallel_size") {
        row("layout", &format!("{:<10} origin: {}", format!("TP {}", setting.value), origin_of(setting)));
    }
    if let Some(kv) = &plan.kv_type {
        let setting = plan.settings.iter().find(|setting| setting.name == "kv_cache_dtype");
        let origin = setting.map_or_else(|| kv.source.clone(), origin_of);
        row("KV type", &format!("{:<10} origin: {origin}", kv.dtype));
        row("", &kv.support);
    }
    if !plan.patches.is_empty() {
        row("patches", &patches(plan));
    }
    if let Some(eta) = plan.eta_ms {
        row("start", &format!("about {}", format_duration(Duration::from_millis(eta))));
    }
    if let Some(tokens) = plan.kv_cache_tokens {
        let times = plan.context.map(|context| tokens.as_u64() as f64 / context.as_u64().max(1) as f64);
        let times = times.map(|n| format!(", {n:.2} requests of full length at once")).unwrap_or_default();
        row("KV cache", &format!("{tokens} tokens{times}"));
    }
    memory(&mut out, plan);
    if all {
        let _ = writeln!(out, "\n  settings");
        for setting in &plan.settings {
            let origin = origin_of(setting);
            let value = match &setting.value {
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let _ = writeln!(out, "    {:<26} {value:<28} {origin}", setting.name);
        }
        let _ = writeln!(out, "\n  environment");
        for (name, value) in &plan.env {
            let _ = writeln!(out, "    {name}={value}");
        }
        for name in &plan.unset_env {
            let _ = writeln!(out, "    {name} is taken out");
        }
    }
    if !plan.warnings.is_empty() {
        out.push('\n');
    }
    for warning in &plan.warnings {
        let _ = writeln!(out, "  warning  {} [{}]", warning.text, warning.code);
    }
    if !plan.changes.is_empty() {
        let _ = writeln!(out, "\n  more fits with");
    }
    for change in &plan.changes {
        let _ = writeln!(out, "    {:<42} {}", change.flag, change.effect);
    }
    // A plan for another machine names no engine that is here.
    if plan.fits && plan.engine.executable.is_absolute() {
        let _ = writeln!(out, "\nNext: kdeploy up {}", plan.model.id);
    }
    out
}

/// Patches in one line: `drop-fp8-kv-cache (--kv-cache-dtype bfloat16)`, `… (2 files in an overlay)`.
fn patches(plan: &Plan) -> String {
    let mut parts: Vec<String> = plan
        .patches
        .iter()
        .filter_map(|patch| Some(format!("{} ({})", patch.name, patch.flag.as_ref()?)))
        .collect();
    if let Some(overlay) = &plan.overlay {
        let in_it = plan.patches.iter().filter(|patch| patch.kind == PatchKind::Overlay);
        let names: Vec<&str> = in_it.map(|patch| patch.name.as_str()).collect();
        let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let values = overlay.files.iter().map(|file| file.changes.len()).sum();
        parts.push(format!(
            "{}: {} in an overlay, {}; --show-patches prints the diffs",
            names.join(", "),
            count(overlay.files.len(), "file"),
            count(values, "value")
        ));
    }
    parts.join("; ")
}

/// Where a value comes from, and why.
fn origin_of(setting: &PlannedSetting) -> String {
    let origin = match setting.origin.kind {
        OriginKind::Default => "default".to_owned(),
        OriginKind::Planned => "planned".to_owned(),
        OriginKind::Profile | OriginKind::Env | OriginKind::Flag => setting.origin.detail.clone(),
    };
    if setting.reason.is_empty() { origin } else { format!("{origin} ({})", setting.reason) }
}

fn memory(out: &mut String, plan: &Plan) {
    let largest = plan.memory.iter().map(|row| row.bytes).max().unwrap_or_default();
    if plan.memory.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n  memory");
    for row in &plan.memory {
        let share = row.bytes.as_u64().saturating_mul(BAR).checked_div(largest.as_u64()).unwrap_or(0);
        let bar =
            "#".repeat(usize::try_from(if row.bytes > Bytes::ZERO { share.max(1) } else { 0 }).unwrap_or(0));
        let _ =
            writeln!(out, "    {:<30} {:>10}   {bar:<30}  {}", row.item, row.bytes.to_string(), row.source);
    }
}
