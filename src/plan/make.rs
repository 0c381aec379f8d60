//! Settings and facts to a plan.

use std::collections::BTreeMap;

use camino::Utf8Path;
use serde_json::Value;

use super::command::{Options, listed};
use super::defaults::{default_smoke, default_warmup, fit_budget};
use super::error::PlanError;
use super::fit::{Fit, Layout, chosen_gpus, fit_cpu};
use super::gpu_fit::fit_gpu;
use super::lint::lint;
use super::model::{
    Endpoint, EngineDevice, PLAN_FORMAT, Plan, PlanWarning, PlannedEngine, PlannedModel, PlannedSetting,
    Timeouts, WarmupPlan,
};
use super::named::named_facts;
use super::remedy::{KV_DTYPE_UNSUPPORTED, PlannedOverlay, PlannedPatch, choose_remedies};
use super::rules::{check_made_for, rule_warnings};
use crate::config::{Setting, Settings, Truth};
use crate::facts::{EngineFacts, Facts};
use crate::patch::PatchLibrary;

/// Version whose options are proven here; older engines get only what all versions know.
const PROVEN: (u64, u64) = (0, 32);
/// vLLM's own start bound is put this much above kdeploy's, so that kdeploy's message comes first.
const ENGINE_BOUND_MARGIN_S: u64 = 120;

/// Variables that would hide the stages of the start from the log, or slow each start down.
const UNSET: &[&str] = &[
    "PYTHONDONTWRITEBYTECODE", // each of the three processes would compile all modules again
    "VLLM_LOGGING_LEVEL",
    "VLLM_LOGGING_PREFIX",
    "VLLM_LOGGING_CONFIG_PATH",
    "VLLM_CONFIGURE_LOGGING",
    "VLLM_PROCESS_NAME_PREFIX", // processes are told apart by their titles
    "VLLM_LOGGING_COLOR",
    "FORCE_COLOR",
];

/// Makes the plan. `cache` is where lasting caches and overlays lie.
///
/// # Errors
/// When something is asked for that cannot work with these facts. A plan that does not fit is no
/// error: it says so itself.
pub fn make_plan(
    settings: &Settings,
    facts: &Facts,
    library: &PatchLibrary,
    cache: &Utf8Path,
) -> Result<Plan, PlanError> {
    check_engine(settings, &facts.engine)?;
    let mut warnings = lint(settings, &facts.engine)?;
    let proven = facts.engine.version.is_at_least(PROVEN.0, PROVEN.1);
    let mut options = Options::from_settings(&settings.vllm);
    let gpus = if facts.engine.is_cpu_build { Vec::new() } else { chosen_gpus(settings, facts)? };
    let remedies = choose_remedies(settings, facts, &gpus, library, &mut options, cache)?;
    warnings.extend(check_made_for(settings, &remedies.named)?);
    warnings.extend(rule_warnings(&remedies.named));
    warnings.extend(remedies.warnings);
    // From here on the model is what the engine will see.
    let facts = &Facts { model: remedies.model, ..facts.clone() };
    let device = if facts.engine.is_cpu_build { EngineDevice::Cpu } else { EngineDevice::Cuda };
    let layout = Layout::choose(settings, facts, &options)?;
    let learning_key = learning_key(settings, facts, &layout, &remedies.patches);
    let learned = facts.learned.get(&learning_key);
    let fit = match device {
        EngineDevice::Cpu => fit_cpu(settings, facts, &options, &layout)?,
        EngineDevice::Cuda => fit_gpu(settings, facts, &options, &layout, learned)?,
    };
    warnings.extend(fit.warnings.iter().cloned());
    warnings.extend(settings.notes.iter().map(|note| warning("profile-part-unused", note)));
    warnings.extend(facts.model.notes.iter().map(|note| warning("model-note", note)));

    plan_options(&mut options, settings, facts, &fit, &layout, proven);
    for name in options.yield_to(&settings.passed_names) {
        let text = format!("`--{}` after `--` wins over the planned value", name.replace('_', "-"));
        warnings.push(warning("planned-value-overridden", &text));
    }
    if !proven {
        let text = format!(
            "vLLM {} is older than {}.{}: requests in flight are not finished at a stop",
            facts.engine.version, PROVEN.0, PROVEN.1
        );
        warnings.push(warning("old-engine", &text));
    }
    if settings.host.value != "127.0.0.1"
        && settings.host.value != "localhost"
        && settings.host.value != "::1"
    {
        let text = format!(
            "{} can be reached from other machines; anyone there may use the model",
            settings.host.value
        );
        warnings.push(warning("open-address", &text));
    }

    let path = remedies.overlay.as_ref().map(|overlay| &overlay.path).or(facts.model.path.as_ref());
    let model_argument = path.map_or_else(|| settings.model.value.clone(), ToString::to_string);
    let mut argv = vec![facts.engine.executable.to_string(), "serve".to_owned(), model_argument];
    argv.extend(options.flags()?);
    argv.extend(settings.passed_flags.iter().cloned());

    let endpoint = match facts.model.has_chat_template {
        Some(false) => Endpoint::Completions,
        Some(true) | None => Endpoint::Chat,
    };
    let (env, env_settings) = environment(settings, facts, &fit, &layout, cache);
    let mut listed_settings = kdeploy_settings(settings);
    listed_settings.extend(options.listed());
    listed_settings.extend(sampling_defaults(facts));
    listed_settings.extend(env_settings);
    let mut unset: Vec<String> = UNSET.iter().map(|name| (*name).to_owned()).collect();
    unset.retain(|name| !env.contains_key(name));
    Ok(Plan {
        format: PLAN_FORMAT,
        name: settings.name.value.clone(),
        model: planned_model(settings, facts),
        engine: PlannedEngine {
            executable: facts.engine.executable.clone(),
            version: facts.engine.version.to_string(),
            device,
            found: facts.engine.found.clone(),
        },
        hardware: fit.hardware,
        fits: fit.fits,
        verdict: fit.verdict,
        context: fit.context,
        kv_cache_tokens: fit.kv_cache_tokens,
        settings: listed_settings,
        memory: fit.memory,
        argv,
        env,
        unset_env: unset,
        host: settings.host.value.clone(),
        port: settings.port.value,
        endpoint,
        warmup: warmup(settings, fit.context),
        smoke: settings.smoke.clone().unwrap_or_else(|| default_smoke(endpoint)),
        timeouts: timeouts(settings),
        max_attempts: settings.max_attempts.value.max(1),
        eta_ms: learned
            .map(|learned| learned.ready_ms)
            .or_else(|| settings.expected_load.as_ref().map(|load| whole_ms(load.value))),
        context_min: settings.context_min.as_ref().map(|min| min.value),
        revised: None,
        learning_key,
        warnings,
        changes: fit.changes,
        kv_type: remedies.kv,
        patches: remedies.patches,
        overlay: remedies.overlay,
    })
}

/// The patches of a plan without the rest of it.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedPatches {
    /// Patches in effect.
    pub patches: Vec<PlannedPatch>,
    /// The directory that the engine would be pointed at.
    pub overlay: Option<PlannedOverlay>,
}

/// Chooses and applies patches, whether or not the rest of a plan works out.
///
/// # Errors
/// When a patch does not apply, or settings or facts cannot be used.
pub fn plan_patches(
    settings: &Settings,
    facts: &Facts,
    library: &PatchLibrary,
    cache: &Utf8Path,
) -> Result<PlannedPatches, PlanError> {
    let mut settings = settings.clone();
    settings.forced.push(KV_DTYPE_UNSUPPORTED.to_owned());
    let mut options = Options::from_settings(&settings.vllm);
    let gpus = if facts.engine.is_cpu_build { Vec::new() } else { chosen_gpus(&settings, facts)? };
    let found = choose_remedies(&settings, facts, &gpus, library, &mut options, cache)?;
    Ok(PlannedPatches { patches: found.patches, overlay: found.overlay })
}

/// Whether a patch would apply by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct PatchOutlook {
    /// The patch.
    pub name: String,
    /// Is it needed? `None` when it applies on request only.
    pub needed: Option<Truth>,
}

/// Holds every patch against the facts, before any is in effect.
///
/// # Errors
/// When settings or facts cannot be used.
pub fn patch_outlook(
    settings: &Settings,
    facts: &Facts,
    library: &PatchLibrary,
) -> Result<Vec<PatchOutlook>, PlanError> {
    let options = Options::from_settings(&settings.vllm);
    let gpus = if facts.engine.is_cpu_build { Vec::new() } else { chosen_gpus(settings, facts)? };
    let named = named_facts(settings, facts, &gpus, &options);
    let judge = |patch: &crate::patch::Patch| PatchOutlook {
        name: patch.name.clone(),
        needed: patch.when.as_ref().map(|when| when.judge(&named)),
    };
    Ok(library.patches().iter().map(judge).collect())
}

/// What a start's figures depend on: model, engine, hardware, ranks, and every option but the context.
fn learning_key(settings: &Settings, facts: &Facts, layout: &Layout, patches: &[PlannedPatch]) -> String {
    let model = facts.model.path.as_ref().map_or_else(|| settings.model.value.clone(), ToString::to_string);
    let revision = facts.model.revision.as_deref().unwrap_or_default();
    let gpu = facts.gpus.gpus.first().and_then(|gpu| gpu.name.as_deref()).unwrap_or("CPU");
    let options: Vec<String> =
        settings.vllm.iter().map(|(name, setting)| format!("{name}={}", setting.value)).collect();
    [
        model,
        revision.to_owned(),
        format!("vLLM {}", facts.engine.version),
        format!("{} x {gpu}", layout.ranks()),
        options.join(" "),
        settings.passed_flags.join(" "),
        patches.iter().map(|patch| patch.name.as_str()).collect::<Vec<_>>().join(" "),
    ]
    .join("|")
}

fn check_engine(settings: &Settings, engine: &EngineFacts) -> Result<(), PlanError> {
    match &settings.engine_version {
        Some(wanted) if !wanted.value.is_met_by(&engine.version) => Err(PlanError::EngineVersion {
            version: engine.version.to_string(),
            requirement: wanted.value.to_string(),
            place: wanted.origin.place().to_owned(),
        }),
        _ => Ok(()),
    }
}

fn plan_options(
    options: &mut Options,
    settings: &Settings,
    facts: &Facts,
    fit: &Fit,
    layout: &Layout,
    proven: bool,
) {
    options.set(
        "served_model_name",
        settings.served_name.value.clone(),
        settings.served_name.origin.clone(),
        "",
    );
    options.set("host", settings.host.value.clone(), settings.host.origin.clone(), "");
    options.set("port", settings.port.value, settings.port.origin.clone(), "");
    if let Some(argument) = &fit.max_model_len {
        options.set("max_model_len", argument.value.clone(), argument.origin.clone(), &fit.context_reason);
    }
    if let Some(revision) = settings.revision.as_ref().filter(|_| facts.model.path.is_none()) {
        options.set("revision", revision.value.clone(), revision.origin.clone(), "");
    }
    if settings.trust_remote_code.value {
        options.set("trust_remote_code", true, settings.trust_remote_code.origin.clone(), "");
    }
    if layout.tensor_parallel > 1 {
        options.plan("tensor_parallel_size", layout.tensor_parallel, &layout.reason);
    }
    if proven {
        let drain = settings.deadlines.drain.value.as_secs();
        options.set(
            "shutdown_timeout",
            drain,
            settings.deadlines.drain.origin.clone(),
            "requests in flight are finished at a stop",
        );
        options.plan(
            "disable_access_log_for_endpoints",
            "/health,/metrics,/ping",
            "kdeploy's own probes would fill the log",
        );
    }
}

fn environment(
    settings: &Settings,
    facts: &Facts,
    fit: &Fit,
    layout: &Layout,
    cache: &Utf8Path,
) -> (BTreeMap<String, String>, Vec<PlannedSetting>) {
    let bound = settings.deadlines.start_total.value.as_secs().saturating_add(ENGINE_BOUND_MARGIN_S);
    let mut planned: Vec<(&str, String, &str)> = vec![
        ("VLLM_NO_USAGE_STATS", "1".to_owned(), "nothing is reported to others"),
        ("DO_NOT_TRACK", "1".to_owned(), "nothing is reported to others"),
        (
            "VLLM_ENGINE_READY_TIMEOUT_S",
            bound.to_string(),
            "kdeploy keeps the bound; vLLM's own 600 s would end a slow load",
        ),
        (
            "TORCHINDUCTOR_CACHE_DIR",
            cache.join("torchinductor").to_string(),
            "a lasting place: the temporary directory of a launch is removed",
        ),
    ];
    if facts.model.path.is_some() {
        planned.push(("HF_HUB_OFFLINE", "1".to_owned(), "the model is on this machine; nothing is fetched"));
    }
    if let Some((space, reason)) = &fit.kv_space {
        planned.push(("VLLM_CPU_KVCACHE_SPACE", space.clone(), reason));
    }
    if facts.engine.is_cpu_build {
        planned.push((
            "VLLM_TARGET_DEVICE",
            "cpu".to_owned(),
            "the CPU build, also where a GPU driver is installed",
        ));
        if layout.ranks() > 1 {
            planned.push((
                "VLLM_CPU_OMP_THREADS_BIND",
                "nobind".to_owned(),
                "several workers share one NUMA node",
            ));
        }
    }
    let gpus = settings
        .gpus
        .as_ref()
        .filter(|_| !facts.engine.is_cpu_build)
        .map(|gpus| gpus.value.iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
    if let Some(gpus) = gpus {
        planned.push(("CUDA_VISIBLE_DEVICES", gpus, "the GPUs that were chosen"));
        planned.push(("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned(), "numbers as nvidia-smi shows them"));
    }
    let mut env = BTreeMap::new();
    let mut rows = Vec::new();
    for (name, value, reason) in planned {
        if settings.env.contains_key(name) {
            continue;
        }
        let setting = Setting::new(Value::from(value.clone()), crate::config::Origin::planned(reason));
        rows.push(listed(name, &setting, ""));
        env.insert(name.to_owned(), value);
    }
    for (name, setting) in &settings.env {
        let value = Setting::new(Value::from(setting.value.clone()), setting.origin.clone());
        rows.push(listed(name, &value, ""));
        env.insert(name.clone(), setting.value.clone());
    }
    (env, rows)
}

/// Settings of kdeploy's own, for the list.
fn kdeploy_settings(settings: &Settings) -> Vec<PlannedSetting> {
    let text = |name: &str, value: String, origin: &crate::config::Origin| PlannedSetting {
        name: name.to_owned(),
        value: Value::from(value),
        origin: origin.clone(),
        reason: String::new(),
    };
    let duration = |name: &str, setting: &Setting<std::time::Duration>| {
        text(name, crate::units::format_duration(setting.value), &setting.origin)
    };
    vec![
        text("model", settings.model.value.clone(), &settings.model.origin),
        text("name", settings.name.value.to_string(), &settings.name.origin),
        text("max_attempts", settings.max_attempts.value.to_string(), &settings.max_attempts.origin),
        duration("start_stall", &settings.deadlines.start_stall),
        duration("start_total", &settings.deadlines.start_total),
        duration("warmup", &settings.deadlines.warmup),
    ]
}

/// What a request gets that does not say otherwise: vLLM takes it from the model.
fn sampling_defaults(facts: &Facts) -> impl Iterator<Item = PlannedSetting> + '_ {
    facts.model.sampling_defaults.iter().map(|(name, value)| PlannedSetting {
        name: format!("sampling.{name}"),
        value: value.clone(),
        origin: crate::config::Origin::profile("generation_config.json of the model"),
        reason: "what a request gets that does not say otherwise".to_owned(),
    })
}

fn planned_model(settings: &Settings, facts: &Facts) -> PlannedModel {
    let config = facts.model.config.as_ref();
    PlannedModel {
        id: settings.model.value.clone(),
        path: facts.model.path.clone(),
        served_name: settings.served_name.value.clone(),
        architecture: config.and_then(|config| config.architecture.clone()),
        quantization: config.and_then(|config| Some(config.quantization.as_ref()?.method.clone())),
        revision: facts.model.revision.clone(),
        weights: facts.model.weights,
    }
}

fn warmup(settings: &Settings, context: Option<crate::units::Tokens>) -> WarmupPlan {
    let mut warmup = default_warmup(context);
    if let Some(prompt) = &settings.warmup_prompt {
        warmup.prompt.clone_from(&prompt.value);
    }
    if let Some(budget) = &settings.warmup_max_tokens {
        warmup.max_tokens = fit_budget(budget.value, context);
    }
    warmup
}

fn timeouts(settings: &Settings) -> Timeouts {
    let deadlines = &settings.deadlines;
    Timeouts {
        start_stall_ms: whole_ms(deadlines.start_stall.value),
        start_total_ms: whole_ms(deadlines.start_total.value),
        warmup_ms: whole_ms(deadlines.warmup.value),
        drain_ms: whole_ms(deadlines.drain.value),
        idle_probe_ms: whole_ms(deadlines.idle_probe.value),
        idle_probe_timeout_ms: whole_ms(deadlines.idle_probe_timeout.value),
    }
}

fn whole_ms(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn warning(code: &str, text: &str) -> PlanWarning {
    PlanWarning { code: code.to_owned(), text: text.to_owned() }
}

#[cfg(test)]
pub(in crate::plan) mod tests;
