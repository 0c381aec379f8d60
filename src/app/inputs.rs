//! Flags, environment, profile and facts to a plan: the way that `up`, `plan` and `quickstart` share.

use camino::{Utf8Path, Utf8PathBuf};

use super::context::{App, io_error, store_error};
use super::explain_inputs::{config_error, engine_error, model_error, plan_error};
use super::patch_library::{load_library, read_arguments};
use crate::cli::LaunchArgs;
use crate::config::{
    EMBEDDED_PROFILES, LaunchFlags, MemoryItem, NamedProfile, Origin, Setting, Settings, env_vars, nearest,
    parse_profile, resolve,
};
use crate::facts::{
    BUILTIN_HARDWARE, EngineFacts, EngineSchema, EngineVersion, Facts, GpuFacts, HostFacts, LearnedBook,
    ModelFacts, ParseVersionError, parse_hardware,
};
use crate::patch::PatchLibrary;
use crate::plan::{Plan, make_plan};
use crate::probe::{self, EngineFindError, EnginePlaces, ModelError, ModelPlaces, PortState};
use crate::report::{Diagnostic, ErrorCode, Retry};
use crate::store::read_learned;
use crate::units::Bytes;

/// Largest profile that is read.
const MAX_PROFILE_BYTES: u64 = 1 << 20;

/// Largest facts file that is read.
const MAX_FACTS_BYTES: u64 = 16 << 20;

/// Variables of the engine that a plan depends on: the caller's environment wins over a profile.
const PLANNED_VARIABLES: &[&str] = &[
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    "TORCHINDUCTOR_CACHE_DIR",
];

/// Variables of other programs that decide which model, GPUs or memory a plan is made for: a service
/// needs them too.
pub(super) const ENGINE_VARIABLES: &[&str] = &[
    "CUDA_VISIBLE_DEVICES",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
];

/// A machine or an engine that is planned for instead of what is here.
#[derive(Debug, Clone, Default)]
pub(super) struct Elsewhere {
    /// A facts file, or `builtin:NAME`.
    pub facts: Option<String>,
    /// Version of the engine.
    pub engine_version: Option<String>,
    /// Rows of the memory table that are taken as known.
    pub assumed: Vec<(MemoryItem, Bytes)>,
    /// May the weights be missing? Then they are computed.
    pub weights_optional: bool,
    /// May the engine be missing? Then the newest known one is taken.
    pub engine_optional: bool,
}

/// Everything that a plan is made of.
#[derive(Debug)]
pub(super) struct Inputs {
    pub settings: Settings,
    pub facts: Facts,
    pub library: PatchLibrary,
}

/// Reads everything and makes the plan.
///
/// # Errors
/// When a setting is wrong, or model or engine cannot be used.
pub(super) async fn plan(app: &App, args: &LaunchArgs, elsewhere: Elsewhere) -> Result<Plan, Diagnostic> {
    let inputs = read(app, args, elsewhere).await?;
    make_plan(&inputs.settings, &inputs.facts, &inputs.library, &app.dirs.cache)
        .map_err(|error| plan_error(&error, &inputs.facts))
}

/// Reads everything.
///
/// # Errors
/// When a setting is wrong, or model or engine cannot be used.
pub(super) async fn read(app: &App, args: &LaunchArgs, elsewhere: Elsewhere) -> Result<Inputs, Diagnostic> {
    let mut settings = settings(app, args)?;
    settings.assumed = elsewhere.assumed.iter().copied().collect();
    let mut library = load_library(app)?;
    read_arguments(&mut library, &settings)?;
    let env = app.env.clone();
    let (engines, models) = (app.dirs.engines(), app.dirs.models());
    let wanted = settings.clone();
    let online = !app.offline && env.get("HF_HUB_OFFLINE").is_none_or(|value| value == "0");
    // Files, NVML and /proc block.
    let mut facts =
        tokio::task::spawn_blocking(move || gather(&wanted, &env, (&engines, &models), online, &elsewhere))
            .await
            .map_err(|error| {
                Diagnostic::new(ErrorCode::Bug, "reading the facts broke off").cause_chain(&error)
            })??;
    facts.learned = read_learned(&app.dirs.state).map_err(|error| store_error(&error))?;
    Ok(Inputs { settings, facts, library })
}

fn settings(app: &App, args: &LaunchArgs) -> Result<Settings, Diagnostic> {
    let profile_name = args.profile.clone().or_else(|| app.env.get(env_vars::PROFILE).cloned());
    let profile = profile_name.map(|name| load_profile(app, &name)).transpose()?;
    let mut settings = resolve(profile, &app.env, &flags(args)).map_err(|error| config_error(&error))?;
    for name in PLANNED_VARIABLES.iter().copied().chain(settings.env.clone().keys().map(String::as_str)) {
        if let Some(value) = app.env.get(name) {
            settings.env.insert(name.to_owned(), Setting::new(value.clone(), Origin::env(name)));
        }
    }
    Ok(settings)
}

fn flags(args: &LaunchArgs) -> LaunchFlags {
    LaunchFlags {
        model: args.model.clone(),
        name: args.name.clone(),
        context: args.context.clone(),
        trust_remote_code: args.trust_remote_code,
        tp: args.tp,
        pp: args.pp,
        gpus: args.gpus.clone(),
        engine: args.engine.clone(),
        port: args.port,
        host: args.host.clone(),
        kv_cache_dtype: args.kv_cache_dtype.clone(),
        set: args.set.clone(),
        max_attempts: args.max_attempts,
        patches: args.patches.clone(),
        force_preflight: args.force_preflight.clone(),
        no_smoke: args.no_smoke,
        vllm_flags: args.vllm_flags.clone(),
    }
}

/// A profile by path, or by name: the user's own first, then those that come with kdeploy.
fn load_profile(app: &App, given: &str) -> Result<NamedProfile, Diagnostic> {
    let read = |path: &Utf8Path| {
        crate::store::read_given(path, MAX_PROFILE_BYTES).map_err(|error| store_error(&error))
    };
    let parse = |name: &str, file: &str, text: &str| {
        let profile = parse_profile(file, text).map_err(|error| config_error(&error))?;
        Ok(NamedProfile { name: name.to_owned(), profile })
    };
    let as_text = |path: &Utf8Path, bytes: Vec<u8>| {
        String::from_utf8(bytes).map_err(|error| {
            Diagnostic::new(ErrorCode::ProfileInvalid, format!("`{path}` is not UTF-8 text"))
                .cause(format!("the first wrong byte is at {}", error.utf8_error().valid_up_to()))
        })
    };
    if given.contains('/') || given.ends_with(".toml") {
        let path = Utf8Path::new(given);
        let Some(bytes) = read(path)? else { return Err(no_profile(app, given, None)) };
        return parse(path.file_stem().unwrap_or(given), given, &as_text(path, bytes)?);
    }
    let own = profile_dir(app).join(format!("{given}.toml"));
    if let Some(bytes) = read(&own)? {
        return parse(given, own.as_str(), &as_text(&own, bytes)?);
    }
    match EMBEDDED_PROFILES.iter().find(|(name, ..)| *name == given) {
        Some((name, file, text)) => parse(name, file, text),
        None => {
            let near = nearest(given, EMBEDDED_PROFILES.iter().map(|(name, ..)| *name));
            Err(no_profile(app, given, near))
        }
    }
}

/// Where a profile that was asked for lies, for commands that are run from elsewhere: the user's own
/// file, or the name of one that comes with kdeploy.
pub(super) fn profile_place(app: &App, given: &str) -> String {
    let own = profile_dir(app).join(format!("{given}.toml"));
    if !given.contains('/') && own.is_file() { own.to_string() } else { given.to_owned() }
}

fn profile_dir(app: &App) -> Utf8PathBuf {
    app.dirs.config.join("profiles")
}

fn no_profile(app: &App, given: &str, near: Option<String>) -> Diagnostic {
    let known = EMBEDDED_PROFILES.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join(", ");
    let diagnostic = Diagnostic::new(ErrorCode::ProfileNotFound, format!("there is no profile `{given}`"))
        .fact("own profiles", profile_dir(app))
        .fact("come with kdeploy", known);
    match near {
        Some(near) => diagnostic.advice(format!("did you mean `{near}`?")),
        None => diagnostic.advice("give the name of one of these, or the path of a TOML file"),
    }
}

/// Name and directory of the model; it need not be whole.
///
/// # Errors
/// When a setting is wrong, or the model is not on this machine.
pub(super) fn model_directory(app: &App, args: &LaunchArgs) -> Result<(String, Utf8PathBuf), Diagnostic> {
    let settings = settings(app, args)?;
    let (models, working_dir) = (app.dirs.models(), working_dir()?);
    let places =
        ModelPlaces { managed: &models, env: &app.env, working_dir: &working_dir, weights_optional: true };
    let id = settings.model.value;
    let revision = settings.revision.as_ref().map(|revision| revision.value.as_str());
    let (path, _) = probe::find_model(&id, revision, places).map_err(|error| model_error(&error, &id))?;
    Ok((id, path))
}

fn working_dir() -> Result<Utf8PathBuf, Diagnostic> {
    std::env::current_dir()
        .and_then(|dir| {
            Utf8PathBuf::from_path_buf(dir).map_err(|_| std::io::Error::other("its path is not UTF-8"))
        })
        .map_err(|error| io_error(&error).cause(format!("the working directory: {error}")))
}

fn gather(
    settings: &Settings,
    env: &std::collections::BTreeMap<String, String>,
    (engines, models): (&Utf8Path, &Utf8Path),
    online: bool,
    elsewhere: &Elsewhere,
) -> Result<Facts, Diagnostic> {
    let working_dir = working_dir()?;
    let revision = settings.revision.as_ref().map(|revision| revision.value.as_str());
    let places = ModelPlaces {
        managed: models,
        env,
        working_dir: &working_dir,
        weights_optional: elsewhere.weights_optional,
    };
    let id = &settings.model.value;
    let model = match probe::read_model(id, revision, places) {
        Ok(model) => model,
        // `org/name` can be fetched by the engine; what that costs is not known here.
        Err(ModelError::NotCached { .. }) if online && id.matches('/').count() == 1 => ModelFacts {
            id: id.clone(),
            notes: vec![format!(
                "`{id}` is not on this machine: the engine fetches it while it starts, unplanned"
            )],
            ..ModelFacts::default()
        },
        Err(error) => return Err(model_error(&error, id)),
    };
    let version = elsewhere.engine_version.as_deref().map(parse_version).transpose()?;
    if let Some(facts) = &elsewhere.facts {
        let gpus = other_hardware(facts)?;
        let engine = assumed_engine(version);
        return Ok(Facts { host: HostFacts::default(), gpus, model, engine, learned: LearnedBook::new() });
    }
    let given = settings.engine.as_ref().map(|engine| (engine.origin.place(), engine.value.as_str()));
    let engine = probe::find_engine(EnginePlaces { given, managed: engines, env, working_dir: &working_dir });
    let mut engine = match engine {
        Ok(engine) => engine,
        Err(EngineFindError::NotFound { .. }) if elsewhere.engine_optional => {
            let mut assumed = assumed_engine(version.clone());
            "none is installed; taken as this version".clone_into(&mut assumed.found);
            assumed
        }
        Err(error) => return Err(engine_error(&error)),
    };
    if let Some(version) = version {
        engine.found = format!("{}, planned as another version", engine.found);
        engine.version = version;
    }
    let gpus = probe::read_gpus(env.get(env_vars::NVML_LIBRARY).map(String::as_str));
    Ok(Facts { host: probe::read_host(), gpus, model, engine, learned: LearnedBook::new() })
}

fn parse_version(text: &str) -> Result<EngineVersion, Diagnostic> {
    text.parse().map_err(|error: ParseVersionError| {
        Diagnostic::new(ErrorCode::Usage, "--engine-version cannot be read").cause(error.to_string())
    })
}

/// The engine that a plan for another machine stands on.
fn assumed_engine(version: Option<EngineVersion>) -> EngineFacts {
    let version = version.unwrap_or_else(|| {
        crate::plan::install::VLLM_VERSION
            .parse()
            .unwrap_or_else(|_| unreachable!("a constant that is a version"))
    });
    EngineFacts {
        executable: "vllm".into(),
        python: None,
        is_cpu_build: version.is_cpu_build(),
        version,
        has_vllm_metadata: true,
        found: "--facts, not on this machine".to_owned(),
        looked_in: Vec::new(),
        schema: EngineSchema::default(),
    }
}

/// GPUs of a facts file, or of a recording that comes with kdeploy.
fn other_hardware(given: &str) -> Result<GpuFacts, Diagnostic> {
    if let Some(name) = given.strip_prefix("builtin:") {
        let names: Vec<&str> = BUILTIN_HARDWARE.iter().map(|(name, _)| *name).collect();
        let Some((_, text)) = BUILTIN_HARDWARE.iter().find(|(known, _)| *known == name) else {
            let near = nearest(name, names.iter().copied());
            let advice = near.map_or_else(
                || "give one of these".to_owned(),
                |near| format!("did you mean `builtin:{near}`?"),
            );
            return Err(Diagnostic::new(ErrorCode::Usage, format!("there are no built-in facts `{name}`"))
                .fact("come with kdeploy", names.join(", "))
                .advice(advice));
        };
        return parse_hardware(text.as_bytes()).map_err(|error| {
            Diagnostic::new(ErrorCode::Bug, "built-in facts cannot be read").cause_chain(&error)
        });
    }
    let path = Utf8Path::new(given);
    let bytes =
        crate::store::read_given(path, MAX_FACTS_BYTES).map_err(|error| store_error(&error))?.ok_or_else(
            || Diagnostic::new(ErrorCode::ModelNotFound, format!("there is no facts file `{path}`")),
        )?;
    parse_hardware(&bytes).map_err(|error| {
        Diagnostic::new(ErrorCode::SettingInvalid, format!("`{path}` cannot be used")).cause_chain(&error)
    })
}

/// The plan says itself that it does not fit; this is how the command ends then.
pub(super) fn does_not_fit(plan: &Plan) -> Diagnostic {
    let mut diagnostic =
        Diagnostic::new(ErrorCode::ContextDoesNotFit, format!("`{}` does not fit", plan.model.id))
            .cause(plan.verdict.clone());
    for row in &plan.memory {
        diagnostic = diagnostic.fact(row.item.clone(), format!("{} ({})", row.bytes, row.source));
    }
    for change in plan.changes.iter().take(2) {
        diagnostic = diagnostic
            .command(change.effect.clone(), format!("kdeploy up {} {}", plan.model.id, change.flag));
    }
    diagnostic
        .command("see the whole plan", format!("kdeploy plan {} --all", plan.model.id))
        .advice("give it more memory: end other programs, or use a smaller model")
}

/// The port must be free before a load of minutes is begun.
pub(super) fn check_port(plan: &Plan) -> Result<(), Diagnostic> {
    match probe::check_port(&plan.host, plan.port) {
        PortState::Free | PortState::Lingering => Ok(()),
        PortState::Taken { holder } => {
            let holder = holder.unwrap_or_else(|| {
                "a process that this user may not see, or one that has not opened it yet".to_owned()
            });
            Err(Diagnostic::new(ErrorCode::PortBusy, format!("port {} is taken", plan.port))
                .fact("held by", holder)
                .command(
                    "use another",
                    format!("kdeploy up {} --port {}", plan.model.id, u32::from(plan.port) + 1),
                )
                .retry(Retry::Later))
        }
        PortState::Unusable { reason } => Err(Diagnostic::new(
            ErrorCode::SettingInvalid,
            format!("`{}` port {} cannot be listened on", plan.host, plan.port),
        )
        .cause(reason)
        .advice("use an address of this machine: --host 127.0.0.1")),
    }
}
