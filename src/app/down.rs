//! `kdeploy down`: an ordered stop, then the proof that nothing is left.

use std::time::{Duration, Instant};

use super::context::{App, store_error};
use super::reap::{reap_record, supervisor_lives};
use crate::cli::DownArgs;
use crate::config::DeploymentName;
use crate::engine;
use crate::facts::StopReport;
use crate::report::schema::DownBody;
use crate::report::{Diagnostic, ErrorCode, Exit, Retry, stop_line};
use crate::store::{LaunchRecord, OverlayRemoval, remove_overlay};

/// What a supervisor may need on top of draining: ten seconds of grace, two kills, cleaning.
const SUPERVISOR_GRACE: Duration = Duration::from_secs(30);
/// From one urge to the next: a signal that is sent while the one before is pending is lost (signal(7)),
/// so the second request of two in a row may never arrive.
const URGE_EVERY: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(50);

/// Stops one deployment, or all.
///
/// # Errors
/// When something of it is still there afterwards.
pub async fn down(app: &App, args: &DownArgs) -> Result<Exit, Diagnostic> {
    let names =
        if args.all { app.recorded()? } else { app.choose(args.name.as_ref())?.into_iter().collect() };
    let mut body = DownBody::default();
    for name in &names {
        if let Some(report) = stop(app, name, args).await? {
            app.ui.answer(&format!("`{name}`: {}", stop_line(&report)));
            body.add(name.as_str(), &report);
        }
    }
    let exit = if body.names.is_empty() && !args.all { Exit::NotRunning } else { Exit::Done };
    if body.names.is_empty() {
        match names.first().filter(|_| !args.all) {
            Some(name) => app.ui.answer(&format!("`{name}` is not running")),
            None => app.ui.answer("nothing runs"),
        }
    }
    app.ui.document(body, exit);
    Ok(exit)
}

/// Stops one deployment; `None` when it is not running.
pub(super) async fn stop(
    app: &App,
    name: &DeploymentName,
    args: &DownArgs,
) -> Result<Option<StopReport>, Diagnostic> {
    let deployment = app.dirs.deployment(name);
    let Some(record) = app.record(name)? else { return Ok(None) };
    let ran = record.state.is_live();
    if supervisor_lives(&record) {
        let step = app.ui.step("stop");
        step.update("waiting for requests in flight and for the engine to end");
        ask(&record, args, &step).await?;
        step.done("");
    }
    let Some(mut record) = app.record(name)? else { return Ok(None) };
    let mut report = record.stop.clone().unwrap_or_default();
    if record.state.is_live() || !report.survivors.is_empty() {
        // The supervisor died without having ended its launch, or could not end all of it.
        let again = reap_record(&mut record, app.nvml_library()).await?;
        report.stopped.extend(again.stopped);
        report.removed.extend(again.removed);
        report.survivors.clear();
    }
    if let Some(overlay) = record.plan.overlay.as_ref().filter(|_| !args.keep_overlay)
        && remove_overlay(&overlay.path).map_err(|error| store_error(&error))? == OverlayRemoval::Removed
    {
        report.removed.push(overlay.path.to_string());
    }
    LaunchRecord::remove(&deployment).map_err(|error| store_error(&error))?;
    Ok(ran.then_some(report))
}

/// Asks the supervisor to end its launch and waits until it has; urges it when the time is up.
async fn ask(
    record: &LaunchRecord,
    args: &DownArgs,
    step: &crate::report::Step<'_>,
) -> Result<(), Diagnostic> {
    let os = |error: engine::EngineError| {
        Diagnostic::new(ErrorCode::OsRefused, "the supervising kdeploy cannot be signalled")
            .cause_chain(&error)
    };
    engine::terminate(&record.supervisor).map_err(os)?;
    let patience = match (args.force, args.timeout) {
        (true, _) => Duration::ZERO,
        (false, Some(timeout)) => timeout,
        (false, None) => record.plan.timeouts.drain() + SUPERVISOR_GRACE,
    };
    let began = Instant::now();
    let mut urged: Option<Instant> = None;
    while supervisor_lives(record) {
        if began.elapsed() >= patience && urged.is_none_or(|last| last.elapsed() >= URGE_EVERY) {
            step.update("skipping the wait");
            engine::terminate(&record.supervisor).map_err(os)?;
            urged = Some(Instant::now());
        }
        if began.elapsed() >= patience + SUPERVISOR_GRACE {
            return Err(Diagnostic::new(
                ErrorCode::StopIncomplete,
                format!("`{}` does not stop", record.name),
            )
            .fact("supervisor", format!("kdeploy with pid {} is still alive", record.supervisor.pid))
            .command(
                "end it, then clean up",
                format!("kill -9 {}; kdeploy down {}", record.supervisor.pid, record.name),
            )
            .retry(Retry::Later));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}
