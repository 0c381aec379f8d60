//! `kdeploy quickstart`: the newcomer's whole way with a small real model. It installs what is
//! missing and then does what `up -d`, `smoke`, `bench` and `down` do, through the same functions.

use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::context::{App, io_error};
use super::provision::{ensure_engine, ensure_model};
use super::supervise::StopRequest;
use super::target::Target;
use super::up::{Waited, detach, prepare, stop_on_signals};
use super::{bench, down, smoke};
use crate::cli::{DownArgs, LaunchArgs, QuickstartArgs};
use crate::config::{DeploymentName, env_vars};
use crate::facts::StopReport;
use crate::measure::Verdict;
use crate::probe::{self, EnginePlaces};
use crate::report::schema::{BenchBody, InstalledBody, PartBody, QuickstartBody, ReadyBody};
use crate::report::{Diagnostic, ErrorCode, Exit, Retry, stop_line};
use crate::units::{format_duration, three_digits};

/// Profile and name of the deployment.
const QUICKSTART: &str = "quickstart";
/// Warm requests that are measured.
const WARM_REQUESTS: u32 = 5;

/// What is to be run, and the user's word to end it.
struct Way<'a> {
    name: &'a DeploymentName,
    engine: &'a Utf8Path,
    model: &'a Utf8Path,
    cancel: &'a CancellationToken,
}

/// What the running model showed.
struct Shown {
    ready: ReadyBody,
    cases: Vec<Verdict>,
    bench: BenchBody,
}

/// Times of the parts.
#[derive(Default)]
struct Parts(Vec<PartBody>);

impl Parts {
    fn add(&mut self, part: &'static str, began: Instant) {
        let elapsed_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.push(PartBody { part, elapsed_ms });
    }
}

/// Walks the whole way; whatever happens after the start, what was started is taken down again.
///
/// # Errors
/// When a part fails or the user ends it.
pub async fn quickstart(app: &App, args: &QuickstartArgs) -> Result<Exit, Diagnostic> {
    let name: DeploymentName = QUICKSTART.parse().map_err(|error: crate::config::NameError| {
        Diagnostic::new(ErrorCode::Bug, "the name").cause_chain(&error)
    })?;
    let cancel = cancel_on_signals()?;
    // Listening from now on: a signal that comes before the start is not lost.
    let stop = stop_on_signals(false)?;
    let mut parts = Parts::default();
    let began = Instant::now();
    let (engine, python) = choose_engine(app, args, &cancel).await?;
    parts.add("engine", began);
    let began = Instant::now();
    let model = ensure_model(app, &python, &cancel).await?;
    parts.add("model", began);
    if args.install_only {
        app.ui.answer(&format!("Installed: {engine}\n           {model}\nNext: kdeploy quickstart"));
        app.ui.document(
            InstalledBody { engine: engine.to_string(), model: model.to_string(), parts: parts.0 },
            Exit::Done,
        );
        return Ok(Exit::Done);
    }
    take_down_earlier(app, &name).await?;
    let way = Way { name: &name, engine: &engine, model: &model, cancel: &cancel };

    let shown = run(app, args, &way, stop, &mut parts).await;
    if args.keep && shown.is_ok() {
        return shown.map(|shown| tell(app, args, &name, shown, parts.0, None));
    }
    let began = Instant::now();
    let stop = down::stop(app, &name, &stop_args(&name)).await;
    parts.add("stop", began);
    let shown = shown.map_err(|diagnostic| match &stop {
        Ok(Some(stop)) => diagnostic.did(stop_line(stop)),
        _ => diagnostic,
    })?;
    let stop = stop?;
    Ok(tell(app, args, &name, shown, parts.0, stop))
}

/// Ctrl-C and SIGTERM end the whole way.
fn cancel_on_signals() -> Result<CancellationToken, Diagnostic> {
    let token = CancellationToken::new();
    let listen = |kind| signal(kind).map_err(|error| io_error(&error));
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    let cancel = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        cancel.cancel();
    });
    Ok(token)
}

fn interrupted() -> Diagnostic {
    Diagnostic::new(ErrorCode::Interrupted, "stopped before it was done")
        .command("go on; what is installed stays", "kdeploy quickstart")
        .retry(Retry::Later)
}

/// The given engine, or kdeploy's own; with its Python.
async fn choose_engine(
    app: &App,
    args: &QuickstartArgs,
    cancel: &CancellationToken,
) -> Result<(Utf8PathBuf, Utf8PathBuf), Diagnostic> {
    let from_env = app.env.get(env_vars::ENGINE);
    let given = match (&args.engine, from_env) {
        (Some(path), _) => Some(("--engine", path.as_str())),
        (None, Some(path)) => Some((env_vars::ENGINE, path.as_str())),
        (None, None) => None,
    };
    if given.is_none() {
        let program = ensure_engine(app, cancel).await?;
        let python = program.with_file_name("python");
        return Ok((program, python));
    }
    let working_dir = std::env::current_dir()
        .and_then(|dir| {
            Utf8PathBuf::from_path_buf(dir).map_err(|_| std::io::Error::other("its path is not UTF-8"))
        })
        .map_err(|error| io_error(&error))?;
    let managed = app.dirs.engines();
    let places = EnginePlaces { given, managed: &managed, env: &app.env, working_dir: &working_dir };
    let engine = probe::find_engine(places).map_err(|error| super::explain_inputs::engine_error(&error))?;
    let python = engine.python.ok_or_else(|| {
        Diagnostic::new(ErrorCode::EngineUnusable, "the engine's Python was not found")
            .fact(engine.executable.as_str(), "its first line names none and none lies beside it")
    })?;
    Ok((engine.executable, python))
}

/// A quickstart that was kept, or killed, is ended first.
async fn take_down_earlier(app: &App, name: &DeploymentName) -> Result<(), Diagnostic> {
    if let Some(report) = down::stop(app, name, &stop_args(name)).await? {
        app.ui.say(&format!("took down an earlier `{name}`: {}", stop_line(&report)));
    }
    Ok(())
}

fn stop_args(name: &DeploymentName) -> DownArgs {
    DownArgs { name: Some(name.clone()), all: false, timeout: None, force: false, keep_overlay: false }
}

async fn run(
    app: &App,
    args: &QuickstartArgs,
    way: &Way<'_>,
    stop: mpsc::Receiver<StopRequest>,
    parts: &mut Parts,
) -> Result<Shown, Diagnostic> {
    let began = Instant::now();
    let port = match args.port {
        Some(port) => port,
        None => probe::find_free_port("127.0.0.1").map_err(|error| io_error(&error))?,
    };
    let launch = LaunchArgs {
        model: Some(way.model.to_string()),
        name: Some(way.name.clone()),
        profile: Some(QUICKSTART.to_owned()),
        engine: Some(way.engine.to_string()),
        port: Some(port),
        ..LaunchArgs::default()
    };
    let plan = prepare(app, &launch).await?;
    let ready = match detach(app, &plan, stop, None, false).await? {
        Waited::Ready(ready) => *ready,
        Waited::Starting => return Err(Diagnostic::new(ErrorCode::Bug, "the wait ended without a deadline")),
    };
    parts.add("start", began);
    tokio::select! {
        () = way.cancel.cancelled() => Err(interrupted()),
        shown = look(app, way, ready, parts) => shown,
    }
}

/// Asks and measures what runs.
async fn look(app: &App, way: &Way<'_>, ready: ReadyBody, parts: &mut Parts) -> Result<Shown, Diagnostic> {
    let began = Instant::now();
    let target = Target::find(app, Some(way.name), None).await?;
    let cases = smoke::ask_all(app, &target, None).await;
    let passed = cases.iter().filter(|verdict| verdict.ok).count();
    app.ui.answer(&format!("\n{}", smoke::text(&target, &cases, passed)));
    parts.add("ask", began);
    let began = Instant::now();
    let (bench, _, _) = bench::measure(app, &target, WARM_REQUESTS).await?;
    app.ui.answer(&format!("\n{}", bench::text(&bench)));
    parts.add("measure", began);
    Ok(Shown { ready, cases, bench })
}

/// Last words: what was done, what was measured, what to try next.
fn tell(
    app: &App,
    args: &QuickstartArgs,
    name: &DeploymentName,
    shown: Shown,
    parts: Vec<PartBody>,
    stop: Option<StopReport>,
) -> Exit {
    let passed = shown.cases.iter().filter(|verdict| verdict.ok).count();
    let exit = if passed == shown.cases.len() { Exit::Done } else { Exit::No };
    let times = parts
        .iter()
        .map(|part| format!("{} {}", part.part, format_duration(Duration::from_millis(part.elapsed_ms))))
        .collect::<Vec<_>>()
        .join(", ");
    let speed = shown.bench.runs.last().and_then(|run| {
        let (ttft, decode) = (run.metrics.ttft_ms?, run.metrics.decode_tokens_per_s?);
        Some(format!("TTFT {} ms, {} tok/s for one stream", three_digits(ttft.p50), three_digits(decode.p50)))
    });
    let mut text = format!(
        "Done: {}\n  answers   {passed} of {} correct\n  speed     {}\n",
        times,
        shown.cases.len(),
        speed.unwrap_or_else(|| "not measured".to_owned())
    );
    match &stop {
        Some(stop) => text += &format!("  stop      {}\n", stop_line(stop)),
        None if args.keep => {
            text += &format!("  running   {}/v1, until kdeploy down {name}\n", shown.ready.url)
        }
        None => {}
    }
    text += "Next: kdeploy quickstart --keep    leave it running, then: kdeploy status, kdeploy logs -f, kdeploy down\n      kdeploy plan MODEL --all     what a model of yours would need, and why\n      kdeploy up MODEL             serve it";
    app.ui.answer(&text);
    let body = QuickstartBody {
        name: name.to_string(),
        parts,
        ready: shown.ready,
        cases: shown.cases,
        bench: shown.bench,
        stop,
    };
    app.ui.document(body, exit);
    exit
}
