//! `kdeploy up`: facts, plan, start, warm up, check; then stay and supervise, or leave a supervisor
//! behind.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::Stdio;
use std::time::Duration;

use camino::Utf8Path;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::context::{App, io_error, store_error};
use super::inputs::{self, Elsewhere};
use super::overlay::prepare_overlay;
use super::reap::reap_stale;
use super::reap_command::reap_dead;
use super::supervise::{Ended, Launch, StopRequest, supervise};
use crate::cli::{LaunchArgs, SuperviseArgs, UpArgs};
use crate::engine::NotifySocket;
use crate::lifecycle::{Outcome, watchdog_interval};
use crate::plan::{PLAN_FORMAT, Plan};
use crate::report::schema::{Event, EventKind, ReadyBody, UpBody};
use crate::report::{Diagnostic, ErrorCode, Exit, LaunchView, Retry, exit_when_ready, stop_line};
use crate::store::{Lock, LockError, OverlayHold, write_atomic};

/// How often the time left is drawn anew.
const REDRAW: Duration = Duration::from_secs(1);
/// What a supervisor that was left behind says on stderr.
const SUPERVISOR_LOG: &str = "supervisor.log";

/// Starts a deployment.
///
/// # Errors
/// When the plan does not fit, the name is taken, or the launch fails.
pub async fn up(app: &App, args: &UpArgs) -> Result<Exit, Diagnostic> {
    let plan = match &args.plan {
        Some(file) => made_elsewhere(app, file)?,
        None => prepare(app, &args.launch).await?,
    };
    if args.detach {
        let stop = stop_on_signals(false)?;
        let waited = detach(app, &plan, stop, args.wait_timeout, args.events).await?;
        return Ok(report_detached(app, &plan, waited));
    }
    let ended = foreground(app, plan.clone(), args.events).await?;
    finish(app, &plan, ended, args.events)
}

/// Facts, plan, and the checks that must hold before anything is started.
pub(super) async fn prepare(app: &App, args: &LaunchArgs) -> Result<Plan, Diagnostic> {
    let step = app.ui.step("plan");
    let plan = inputs::plan(app, args, Elsewhere::default()).await?;
    if !plan.fits {
        step.failed("");
        app.ui.say(&super::plan::text(&plan, false));
        return Err(inputs::does_not_fit(&plan));
    }
    let context = plan.context.map(|tokens| format!(", context {tokens}")).unwrap_or_default();
    step.done(&format!("{} with vLLM {}{context}", plan.model.served_name, plan.engine.version));
    for warning in &plan.warnings {
        app.ui.warn(&format!("{} [{}]", warning.text, warning.code));
    }
    app.deployment_dir(&plan.name)?;
    Ok(plan)
}

/// A plan from a file: what `kdeploy plan --json` printed, or a plan that was kept.
fn read_plan(file: &Utf8Path) -> Result<Plan, Diagnostic> {
    let unreadable = |cause: String| {
        Diagnostic::new(ErrorCode::SettingInvalid, format!("`{file}` cannot be used as a plan"))
            .cause(cause)
            .command("make one", "kdeploy plan MODEL --json > plan.json")
    };
    let bytes = crate::store::read_given(file, 16 << 20)
        .map_err(|error| store_error(&error))?
        .ok_or_else(|| Diagnostic::new(ErrorCode::NameNotFound, format!("`{file}` does not exist")))?;
    let value: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))?;
    let value = value.get("launch").unwrap_or(&value);
    let format = value.get("format").and_then(serde_json::Value::as_u64);
    if format.is_some_and(|format| format > u64::from(PLAN_FORMAT)) {
        return Err(unreadable(format!(
            "it was made by a newer kdeploy (format {})",
            format.unwrap_or_default()
        )));
    }
    serde_path_to_error::deserialize(value).map_err(|error| unreadable(error.to_string()))
}

/// A plan made elsewhere, run word for word when its engine and model are here.
fn made_elsewhere(app: &App, file: &Utf8Path) -> Result<Plan, Diagnostic> {
    let plan = read_plan(file)?;
    if !plan.fits {
        return Err(inputs::does_not_fit(&plan));
    }
    let missing = |what: &str, path: &Utf8Path| {
        Diagnostic::new(ErrorCode::NameNotFound, format!("the plan's {what} is not on this machine"))
            .fact(what, path.to_string())
            .advice("make the plan anew here")
    };
    if !plan.engine.executable.is_file() {
        return Err(missing("engine", &plan.engine.executable));
    }
    if let Some(path) = plan.model.path.as_ref().filter(|path| !path.is_dir()) {
        return Err(missing("model", path));
    }
    app.deployment_dir(&plan.name)?;
    Ok(plan)
}

/// Takes the name, cleans up after a dead predecessor, checks the port, makes the overlay.
async fn take_over(app: &App, plan: &Plan) -> Result<(Lock, Option<OverlayHold>), Diagnostic> {
    let deployment = app.deployment_dir(&plan.name)?;
    let lock = Lock::try_acquire(&deployment.join("lock")).map_err(|error| lock_error(&error, plan))?;
    if let Some(report) = reap_stale(&deployment, app.nvml_library()).await? {
        app.ui.say(&format!("cleaned up after an earlier launch of `{}`: {}", plan.name, stop_line(&report)));
    }
    reap_others(app, plan).await;
    inputs::check_port(plan)?;
    let hold = prepare_overlay(plan)?;
    Ok((lock, hold))
}

/// What other killed kdeploys left takes memory that this launch may need. Their trouble is told and
/// does not keep this one from starting.
async fn reap_others(app: &App, plan: &Plan) {
    for name in app.recorded().unwrap_or_default().iter().filter(|name| **name != plan.name) {
        match reap_dead(app, name).await {
            Ok(Some(report)) => {
                app.ui.say(&format!("cleaned up after a killed launch of `{name}`: {}", stop_line(&report)));
            }
            Ok(None) => {}
            Err(diagnostic) => app.ui.complain(&diagnostic),
        }
    }
}

fn lock_error(error: &LockError, plan: &Plan) -> Diagnostic {
    match error {
        LockError::Held(_) => {
            Diagnostic::new(ErrorCode::AlreadyRunning, format!("`{}` is running already", plan.name))
                .command("see it", format!("kdeploy status {}", plan.name))
                .command("stop it first", format!("kdeploy down {}", plan.name))
                .advice("or give this one another name: --name")
                .retry(Retry::Later)
        }
        LockError::Io { source, .. } => io_error(source).cause(error.to_string()),
    }
}

fn launch(app: &App, plan: Plan, lock: Lock, overlay: Option<OverlayHold>, of_service: bool) -> Launch {
    let (dirs, api_key) = (app.dirs.clone(), app.api_key());
    let nvml_library = app.nvml_library().map(str::to_owned);
    let manager = of_service.then(|| service_manager(app)).flatten();
    Launch { dirs, plan, api_key, nvml_library, manager, lock, overlay }
}

/// The service manager that started this process, when one did.
fn service_manager(app: &App) -> Option<(NotifySocket, Option<Duration>)> {
    let get = |name: &str| app.env.get(name).map(String::as_str);
    let watchdog = watchdog_interval(get("WATCHDOG_USEC"), get("WATCHDOG_PID"), std::process::id());
    Some((NotifySocket::from_env(&app.env)?, watchdog))
}

/// Supervises in this process until the launch ends.
async fn foreground(app: &App, plan: Plan, events_on_stdout: bool) -> Result<Ended, Diagnostic> {
    let (lock, overlay) = take_over(app, &plan).await?;
    let (events_tx, mut events) = mpsc::unbounded_channel();
    let launch = launch(app, plan, lock, overlay, true);
    let stop = stop_on_signals(false)?;
    let supervision = supervise(launch, stop, events_tx);
    tokio::pin!(supervision);
    let mut view = LaunchView::new(&app.ui);
    let mut redraw = tokio::time::interval(REDRAW);
    let ended = loop {
        tokio::select! {
            biased;
            Some(event) = events.recv() => show(app, &mut view, &event, events_on_stdout),
            ended = &mut supervision => break ended?,
            _ = redraw.tick() => view.tick(),
        }
    };
    while let Ok(event) = events.try_recv() {
        show(app, &mut view, &event, events_on_stdout);
    }
    Ok(ended)
}

fn show(app: &App, view: &mut LaunchView<'_>, event: &Event, as_json: bool) {
    if as_json {
        app.ui.json_line(event);
    } else {
        view.show(event);
        if event.event == EventKind::Ready {
            app.ui.say("Ctrl-C stops it");
        }
    }
}

/// Turns signals into requests to stop: the first is ordered, the second urgent. A supervisor that
/// was left behind does not end with its terminal.
pub(super) fn stop_on_signals(detached: bool) -> Result<mpsc::Receiver<StopRequest>, Diagnostic> {
    let listen = |kind| signal(kind).map_err(|error| io_error(&error).cause(format!("signals: {error}")));
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    let (tx, rx) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut asked = false;
        loop {
            tokio::select! {
                Some(()) = interrupt.recv() => {}
                Some(()) = terminate.recv() => {}
                Some(()) = hangup.recv() => {
                    if detached {
                        continue;
                    }
                }
                else => return,
            }
            let request = if asked { StopRequest::Urgent } else { StopRequest::Ordered };
            asked = true;
            if tx.send(request).await.is_err() {
                return;
            }
        }
    });
    Ok(rx)
}

/// Exit code and last words of a supervised launch.
fn finish(app: &App, plan: &Plan, ended: Ended, events_on_stdout: bool) -> Result<Exit, Diagnostic> {
    let document = |exit, state| {
        if !events_on_stdout {
            let (ready, stop) = (ended.ready.clone(), Some(ended.stop.clone()));
            app.ui.document(UpBody { name: plan.name.to_string(), state, ready, stop }, exit);
        }
    };
    match ended.outcome {
        Outcome::Stopped { was_ready: true } => {
            document(Exit::Done, "stopped");
            Ok(Exit::Done)
        }
        Outcome::Stopped { was_ready: false } => Err(interrupted(plan)),
        Outcome::Failed(_) | Outcome::Incomplete => Err(ended
            .diagnostic
            .unwrap_or_else(|| Diagnostic::new(ErrorCode::UnknownFailure, "the launch failed"))),
    }
}

fn interrupted(plan: &Plan) -> Diagnostic {
    interrupted_before(plan).did("ended the engine and removed what it left")
}

/// The same, when nothing was started yet.
fn interrupted_before(plan: &Plan) -> Diagnostic {
    Diagnostic::new(ErrorCode::Interrupted, format!("`{}` was stopped before it was ready", plan.name))
        .retry(Retry::Later)
}

/// What waiting for a detached launch brought.
#[derive(Debug)]
pub(super) enum Waited {
    /// It is ready.
    Ready(Box<ReadyBody>),
    /// The wait ended first; it still starts.
    Starting,
}

/// Leaves a supervisor behind and waits until the deployment is ready; a request to stop meanwhile
/// ends it.
pub(super) async fn detach(
    app: &App,
    plan: &Plan,
    mut stop: mpsc::Receiver<StopRequest>,
    patience: Option<Duration>,
    events_on_stdout: bool,
) -> Result<Waited, Diagnostic> {
    drop(take_over(app, plan).await?); // the supervisor takes it again; who comes between wins
    let deployment = app.deployment_dir(&plan.name)?;
    let plan_file = deployment.join("plan.json");
    let bytes = serde_json::to_vec_pretty(plan).map_err(|error| io_error(&error.into()))?;
    write_atomic(&plan_file, &bytes).map_err(|error| store_error(&error))?;
    let mut child = spawn_supervisor(app, &plan_file, &deployment.join(SUPERVISOR_LOG))?;
    let pid = child.id();
    let Some(stdout) = child.stdout.take() else {
        return Err(Diagnostic::new(ErrorCode::OsRefused, "the supervisor's output cannot be read"));
    };
    let mut lines = BufReader::new(stdout).lines();
    let mut view = LaunchView::new(&app.ui);
    let deadline = async {
        match patience {
            Some(patience) => tokio::time::sleep(patience).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(deadline);
    let mut redraw = tokio::time::interval(REDRAW);
    let mut stopping = false;
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line.map_err(|error| io_error(&error))?,
            () = &mut deadline => return Ok(Waited::Starting),
            _ = redraw.tick() => {
                view.tick();
                continue;
            }
            Some(_) = stop.recv() => {
                stopping = true;
                if let Some(pid) = pid.and_then(|pid| i32::try_from(pid).ok()) {
                    // Our own unreaped child: its pid cannot have been reused.
                    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
                }
                continue;
            }
        };
        let Some(line) = line else { break };
        let Ok(event) = serde_json::from_str::<Event>(&line) else { continue };
        // The failure itself is told once, at the end.
        if event.event != EventKind::AttemptFailed || events_on_stdout {
            show_detached(app, &mut view, &event, events_on_stdout);
        }
        match event.event {
            EventKind::Ready if !stopping => {
                let ready =
                    event.ready.ok_or_else(|| Diagnostic::new(ErrorCode::Bug, "ready without figures"))?;
                return Ok(Waited::Ready(Box::new(ready)));
            }
            EventKind::Failed => {
                if let Some(body) = event.diagnostic {
                    return Err(body.into());
                }
            }
            EventKind::Stopped => return Err(interrupted(plan)),
            _ => {}
        }
    }
    let status = child.wait().await.map_err(|error| io_error(&error))?;
    if stopping && status.signal() == Some(nix::sys::signal::Signal::SIGTERM as i32) {
        // It did not listen to signals yet, which it does before it starts anything.
        return Err(interrupted_before(plan));
    }
    Err(Diagnostic::new(ErrorCode::Bug, "the supervisor ended without a word")
        .fact("supervisor", status.to_string())
        .fact(deployment.join(SUPERVISOR_LOG).as_str(), last_words(&deployment.join(SUPERVISOR_LOG))))
}

fn show_detached(app: &App, view: &mut LaunchView<'_>, event: &Event, as_json: bool) {
    if as_json { app.ui.json_line(event) } else { view.show(event) }
}

fn last_words(log: &Utf8Path) -> String {
    let (bytes, _) = crate::store::tail_lines(log, Some(5)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

fn spawn_supervisor(app: &App, plan: &Utf8Path, log: &Utf8Path) -> Result<tokio::process::Child, Diagnostic> {
    let failed = |error: std::io::Error| {
        Diagnostic::new(ErrorCode::OsRefused, "the supervisor cannot be started").cause_chain(&error)
    };
    // This very program, also when its file was replaced meanwhile by an upgrade.
    let words = fs_err::File::create(log).map_err(|error| io_error(&error))?;
    let mut command = std::process::Command::new("/proc/self/exe");
    command.arg0("kdeploy").arg("supervise").arg(plan.as_str());
    command
        .env("KDEPLOY_STATE_DIR", app.dirs.state.as_str())
        .env("KDEPLOY_CACHE_DIR", app.dirs.cache.as_str());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(words.into_parts().0);
    // SAFETY: setsid is async-signal-safe and allocates nothing.
    #[expect(unsafe_code, reason = "std has no stable way to start a child in its own session")]
    unsafe {
        command.pre_exec(|| Ok(nix::unistd::setsid().map(drop)?));
    }
    tokio::process::Command::from(command).spawn().map_err(failed)
}

fn report_detached(app: &App, plan: &Plan, waited: Waited) -> Exit {
    let name = plan.name.to_string();
    match waited {
        Waited::Ready(ready) => {
            let exit = exit_when_ready(&ready);
            app.ui.document(UpBody { name, state: "ready", ready: Some(*ready), stop: None }, exit);
            exit
        }
        Waited::Starting => {
            app.ui.answer(&format!(
                "`{name}` is still starting\nNext: kdeploy status {name}    kdeploy logs -f {name}"
            ));
            app.ui.document(UpBody { name, state: "starting", ready: None, stop: None }, Exit::NotReady);
            Exit::NotReady
        }
    }
}

/// `kdeploy supervise`: what `up -d` leaves behind. Events go to stdout as JSON lines for as long as
/// somebody reads them.
///
/// # Errors
/// When the plan cannot be read or the name was taken meanwhile.
pub async fn run_supervisor(app: &App, args: &SuperviseArgs) -> Result<Exit, Diagnostic> {
    let plan = read_plan(&args.plan)?;
    let result = foreground_quietly(app, plan.clone()).await;
    match result {
        Ok(ended) => Ok(match (ended.outcome, ended.diagnostic) {
            (Outcome::Stopped { .. }, _) => Exit::Done,
            (_, Some(diagnostic)) => diagnostic.exit(),
            (_, None) => Exit::LaunchFailedUnknown,
        }),
        Err(diagnostic) => {
            app.ui.json_line(&Event::new(plan.name.as_str(), 0, EventKind::Failed).diagnostic(&diagnostic));
            Err(diagnostic)
        }
    }
}

async fn foreground_quietly(app: &App, plan: Plan) -> Result<Ended, Diagnostic> {
    let (lock, overlay) = take_over(app, &plan).await?;
    let (events_tx, mut events) = mpsc::unbounded_channel();
    // A service speaks through its main process, which this is not.
    let launch = launch(app, plan, lock, overlay, false);
    let supervision = supervise(launch, stop_on_signals(true)?, events_tx);
    tokio::pin!(supervision);
    let ended = loop {
        tokio::select! {
            biased;
            Some(event) = events.recv() => app.ui.json_line(&event),
            ended = &mut supervision => break ended?,
        }
    };
    while let Ok(event) = events.try_recv() {
        app.ui.json_line(&event);
    }
    Ok(ended)
}
