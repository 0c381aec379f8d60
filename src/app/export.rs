//! `kdeploy export`: a deployment as a file for another tool.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};

use super::context::{App, io_error, store_error};
use super::inputs::{self, ENGINE_VARIABLES, Elsewhere};
use crate::cli::{ExportArgs, ExportFormat, ExportSystemdArgs, LaunchArgs};
use crate::config::env_vars;
use crate::export::{ServiceUnit, UnwritableWord, write_unit};
use crate::plan::Plan;
use crate::report::schema::ExportBody;
use crate::report::{Diagnostic, ErrorCode, Exit};
use crate::store::write_atomic_as;
use crate::units::Bytes;

/// Rings of the engine core, and of each worker (apparent sizes, which vLLM 0.32 checks for).
const SHM_CORE: Bytes = Bytes::from_mib(160);
const SHM_WORKER: Bytes = Bytes::from_mib(240);
/// NCCL's own buffers for each rank, and room for what else there may be.
const SHM_NCCL: Bytes = Bytes::from_mib(128);
const SHM_SPARE: Bytes = Bytes::from_mib(512);

/// Variables of kdeploy that change a plan and have no place among the flags that are written out.
const CARRIED: &[&str] = &[
    env_vars::CONTEXT,
    env_vars::GPUS,
    env_vars::HOST,
    env_vars::KV_CACHE_DTYPE,
    env_vars::MAX_ATTEMPTS,
    env_vars::NVML_LIBRARY,
    env_vars::OFFLINE,
    env_vars::PATCHES,
    env_vars::PORT,
    env_vars::PP,
    env_vars::SET,
    env_vars::TP,
];

/// Writes the file.
///
/// # Errors
/// When the plan cannot be made or does not fit, or the file cannot be written.
pub async fn export(app: &App, args: &ExportArgs) -> Result<Exit, Diagnostic> {
    match &args.format {
        ExportFormat::Systemd(args) => systemd(app, args).await,
    }
}

async fn systemd(app: &App, args: &ExportSystemdArgs) -> Result<Exit, Diagnostic> {
    let plan = inputs::plan(app, &args.launch, Elsewhere::default()).await?;
    if !plan.fits {
        return Err(inputs::does_not_fit(&plan));
    }
    for warning in &plan.warnings {
        app.ui.warn(&format!("{} [{}]", warning.text, warning.code));
    }
    let unit = service_unit(app, args, &plan)?;
    let text = write_unit(&unit).map_err(|error| unwritable(&error))?;
    let to_stdout = args.output == "-";
    if to_stdout {
        app.ui.answer(&text);
    } else {
        put(app, &args.output, &text)?;
        app.ui.answer(&format!("wrote {}\nNext: {}", args.output, next(&args.output, args.user)));
    }
    let file = (!to_stdout).then(|| args.output.to_string());
    app.ui.document(ExportBody { name: plan.name.to_string(), format: "systemd", file, text }, Exit::Done);
    Ok(Exit::Done)
}

fn next(file: &Utf8Path, user: bool) -> String {
    let unit = file.file_name().unwrap_or_default();
    if user {
        format!("systemctl --user daemon-reload && systemctl --user enable --now {unit}")
    } else {
        format!("systemctl daemon-reload && systemctl enable --now {unit}")
    }
}

/// A file that somebody else may have edited is replaced only after asking.
fn put(app: &App, file: &Utf8Path, text: &str) -> Result<(), Diagnostic> {
    let exists = std::fs::symlink_metadata(file).is_ok();
    if exists {
        let same = std::fs::read_to_string(file).is_ok_and(|old| old == text);
        if same {
            return Ok(());
        }
        let question = format!("Replace `{file}`, which exists and is different?");
        if !app.confirm(&question, "the same command with --yes")? {
            return Err(Diagnostic::new(ErrorCode::Interrupted, format!("`{file}` was left as it is")));
        }
    }
    // Units are read by the manager and by people.
    write_atomic_as(file, text.as_bytes(), 0o644).map_err(|error| store_error(&error))
}

fn service_unit(app: &App, args: &ExportSystemdArgs, plan: &Plan) -> Result<ServiceUnit, Diagnostic> {
    let kdeploy = std::env::current_exe().map_err(|error| io_error(&error))?;
    let kdeploy = Utf8PathBuf::from_path_buf(kdeploy).map_err(|path| {
        Diagnostic::new(ErrorCode::SettingInvalid, "kdeploy's own path is not UTF-8 text")
            .fact("path", path.display().to_string())
    })?;
    let name = plan.name.to_string();
    let mut exec = vec![kdeploy.to_string(), "up".to_owned()];
    exec.extend(launch_words(app, &args.launch, plan)?);
    let home = app.env.get("HOME").cloned().unwrap_or_else(|| "/root".to_owned());
    let secrets_file = if args.user {
        format!("{home}/.config/kdeploy/{name}.env")
    } else {
        format!("/etc/kdeploy/{name}.env")
    };
    let mut read_only: Vec<Utf8PathBuf> = plan.model.path.iter().cloned().collect();
    // The engine's installation: above bin/.
    read_only.extend(plan.engine.executable.parent().and_then(Utf8Path::parent).map(Utf8Path::to_owned));
    read_only.retain(|path| !path.starts_with("/usr") && !path.starts_with("/bin"));
    Ok(ServiceUnit {
        description: format!("kdeploy: {name}, {} served by vLLM", plan.model.served_name),
        exec,
        reap: vec![kdeploy.to_string(), "reap".to_owned(), name.clone()],
        environment: environment(app, args.user),
        secrets_file: secrets_file.into(),
        name,
        user: (!args.user).then(|| args.run_as.clone()),
        read_only,
        start_bound: plan.timeouts.start_total() + plan.timeouts.warmup(),
        drain: plan.timeouts.drain(),
        shared_memory: shared_memory(plan),
    })
}

fn environment(app: &App, user: bool) -> BTreeMap<String, String> {
    let own_places: &[&str] = if user { &[env_vars::STATE_DIR, env_vars::CACHE_DIR] } else { &[] };
    CARRIED
        .iter()
        .chain(ENGINE_VARIABLES)
        .chain(own_places)
        .filter_map(|name| Some(((*name).to_owned(), app.env.get(*name)?.clone())))
        .collect()
}

/// The arguments of `up` as they were typed, with what depends on this place made absolute.
fn launch_words(app: &App, args: &LaunchArgs, plan: &Plan) -> Result<Vec<String>, Diagnostic> {
    let mut words = Vec::new();
    if let Some(model) = &args.model {
        let path = Utf8Path::new(model);
        words.push(if path.exists() { absolute(path)? } else { model.clone() });
    }
    let mut flag = |name: &str, value: Option<String>| {
        words.extend(value.map(|value| format!("--{name}={value}")));
    };
    flag("name", Some(plan.name.to_string()));
    let profile = args.profile.clone().or_else(|| app.env.get(env_vars::PROFILE).cloned());
    flag(
        "profile",
        profile
            .map(|name| inputs::profile_place(app, &name))
            .map(|name| {
                let path = Utf8Path::new(&name);
                if path.is_file() { absolute(path) } else { Ok(name) }
            })
            .transpose()?,
    );
    flag("engine", Some(plan.engine.executable.to_string()));
    flag("context", args.context.clone());
    flag("tp", args.tp.map(|n| n.to_string()));
    flag("pp", args.pp.map(|n| n.to_string()));
    flag("gpus", args.gpus.clone());
    flag("port", args.port.map(|n| n.to_string()));
    flag("host", args.host.clone());
    flag("kv-cache-dtype", args.kv_cache_dtype.clone());
    flag("patches", args.patches.clone());
    flag("max-attempts", args.max_attempts.map(|n| n.to_string()));
    for code in &args.force_preflight {
        flag("force-preflight", Some(code.clone()));
    }
    for (key, value) in &args.set {
        flag("set", Some(format!("{key}={value}")));
    }
    for (on, name) in [(args.trust_remote_code, "--trust-remote-code"), (args.no_smoke, "--no-smoke")] {
        words.extend(on.then(|| name.to_owned()));
    }
    if !args.vllm_flags.is_empty() {
        words.push("--".to_owned());
        words.extend(args.vllm_flags.iter().cloned());
    }
    Ok(words)
}

fn absolute(path: &Utf8Path) -> Result<String, Diagnostic> {
    let path = std::path::absolute(path).map_err(|error| io_error(&error))?;
    Ok(path.to_string_lossy().into_owned())
}

/// Size of the engine's own /dev/shm; what is not used is not taken.
fn shared_memory(plan: &Plan) -> Bytes {
    let size = |name: &str| {
        let setting = plan.settings.iter().find(|setting| setting.name == name);
        setting.and_then(|setting| setting.value.as_u64()).unwrap_or(1).max(1)
    };
    let replicas = size("data_parallel_size");
    let ranks = size("tensor_parallel_size") * size("pipeline_parallel_size") * replicas;
    let times = |bytes: Bytes, n: u64| Bytes::new(bytes.as_u64().saturating_mul(n));
    [times(SHM_CORE, replicas), times(SHM_WORKER, ranks), times(SHM_NCCL, ranks), SHM_SPARE].into_iter().sum()
}

fn unwritable(error: &UnwritableWord) -> Diagnostic {
    Diagnostic::new(ErrorCode::SettingInvalid, "this deployment cannot be written as a unit")
        .cause(error.to_string())
}
