//! `kdeploy reap`: ends and cleans what killed kdeploys left, by their launch records; and, when asked
//! in so many words, what no record knows.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::context::{App, store_error};
use super::reap::{foreseen, reap_record, supervisor_lives};
use crate::cli::ReapArgs;
use crate::config::DeploymentName;
use crate::engine;
use crate::facts::{ProcId, ShmObject, StopReport, Unrecorded};
use crate::report::schema::{ReapBody, ReapedBody};
use crate::report::{Diagnostic, ErrorCode, Exit, Retry, plain_table, stop_line};
use crate::store::{LaunchRecord, LaunchState, Lock, LockError};
use crate::units::format_duration;

/// From SIGTERM to SIGKILL for what no record knows.
const TERM_GRACE: Duration = Duration::from_secs(5);
/// From SIGKILL to giving up.
const KILL_GRACE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);

/// Reaps.
///
/// # Errors
/// When something survives, or a record cannot be read.
pub async fn reap(app: &App, args: &ReapArgs) -> Result<Exit, Diagnostic> {
    let names = match &args.name {
        Some(name) => vec![name.clone()],
        None => app.recorded()?,
    };
    let mut body = ReapBody { dry_run: args.dry_run, ..ReapBody::default() };
    let mut trouble = None;
    for name in &names {
        let done = if args.dry_run { would_reap(app, name) } else { reap_dead(app, name).await };
        match done {
            Ok(Some(report)) => {
                let verb = if args.dry_run { " would be cleaned up" } else { "" };
                app.ui.answer(&format!("`{name}`{verb}: {}", stop_line(&report)));
                body.launches.push(ReapedBody { name: name.to_string(), report });
            }
            Ok(None) => {}
            // The others are cleaned up all the same; the first trouble decides how to exit.
            Err(diagnostic) => match trouble {
                None => trouble = Some(diagnostic),
                Some(_) => app.ui.complain(&diagnostic),
            },
        }
    }
    if let Some(diagnostic) = trouble {
        return Err(diagnostic);
    }
    if body.launches.is_empty() {
        app.ui.answer("no killed kdeploy left anything");
    }
    if args.unrecorded {
        body.unrecorded_report = unrecorded(app, args, &mut body.unrecorded).await?;
    }
    let left = body.unrecorded_report.as_ref().is_some_and(|report| !report.survivors.is_empty());
    let exit = if left { Exit::StopIncomplete } else { Exit::Done };
    app.ui.document(body, exit);
    Ok(exit)
}

/// What a record says is left of a launch whose kdeploy is dead; touches nothing.
fn would_reap(app: &App, name: &DeploymentName) -> Result<Option<StopReport>, Diagnostic> {
    match app.record(name)? {
        Some(record) if is_left_behind(&record) => foreseen(&record).map(Some),
        _ => Ok(None),
    }
}

fn is_left_behind(record: &LaunchRecord) -> bool {
    let survivors = record.stop.as_ref().is_some_and(|stop| !stop.survivors.is_empty());
    (record.state.is_live() || survivors) && !supervisor_lives(record)
}

/// Cleans up after one launch when its kdeploy is dead; `None` when there is nothing to do or the name
/// is held by a kdeploy that lives.
///
/// # Errors
/// When the record cannot be read or written, or something survives.
pub(super) async fn reap_dead(app: &App, name: &DeploymentName) -> Result<Option<StopReport>, Diagnostic> {
    let deployment = app.dirs.deployment(name);
    let _lock = match Lock::try_acquire(&deployment.join("lock")) {
        Ok(lock) => lock,
        Err(LockError::Held(_)) => return Ok(None),
        Err(LockError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return Ok(None);
        }
        Err(LockError::Io { source, path }) => {
            return Err(super::context::io_error(&source).fact("lock", path.to_string()));
        }
    };
    let Some(mut record) = app.record(name)? else { return Ok(None) };
    if !is_left_behind(&record) {
        return Ok(None);
    }
    let report = reap_record(&mut record, app.nvml_library()).await?;
    record.state = LaunchState::Failed;
    record.since = Timestamp::now();
    "its kdeploy was killed; what it left is cleaned up".clone_into(&mut record.detail);
    record.stop = Some(report.clone());
    record.save(&deployment).map_err(|error| store_error(&error))?;
    Ok(Some(report))
}

/// Remains that no record on this machine knows of. Records of other users are not seen: what those
/// know is theirs, and is only shown.
///
/// # Errors
/// When /proc or /dev/shm cannot be read.
pub(super) fn find_unrecorded(app: &App) -> Result<Unrecorded, Diagnostic> {
    let mut processes: BTreeSet<ProcId> = BTreeSet::new();
    let mut objects: BTreeSet<ShmObject> = BTreeSet::new();
    for name in app.recorded()? {
        if let Some(record) = app.record(&name)? {
            processes.extend(record.main);
            processes.extend(record.members);
            objects.extend(record.shm);
        }
    }
    engine::find_unrecorded(&processes, &objects, Timestamp::now()).map_err(|error| {
        Diagnostic::new(ErrorCode::OsRefused, "leftovers cannot be looked for").cause_chain(&error)
    })
}

async fn unrecorded(
    app: &App,
    args: &ReapArgs,
    shown: &mut Option<Unrecorded>,
) -> Result<Option<StopReport>, Diagnostic> {
    let found = find_unrecorded(app)?;
    *shown = Some(found.clone());
    if found.is_empty() {
        app.ui.answer("nothing else looks like the remains of an engine");
        return Ok(None);
    }
    app.ui.answer(&listing(&found));
    let removable: Vec<ShmObject> = found
        .objects
        .iter()
        .filter(|object| object.stays.is_none())
        .map(|object| object.object.clone())
        .collect();
    if args.dry_run || (found.processes.is_empty() && removable.is_empty()) {
        return Ok(None);
    }
    let question = format!(
        "End {} processes and remove {} objects that no launch record of kdeploy knows?",
        found.processes.len(),
        removable.len()
    );
    if !app.confirm(&question, "kdeploy reap --unrecorded --yes")? {
        app.ui.say("nothing was touched");
        return Ok(None);
    }
    let mut report = StopReport::default();
    end(&found, &mut report).await?;
    // The worker that held them is dead now, if it died at all: the same rules look again.
    let cleaning = engine::clean_shm(&removable).map_err(|error| {
        Diagnostic::new(ErrorCode::OsRefused, "shared memory cannot be looked at").cause_chain(&error)
    })?;
    report.removed = cleaning.removed.iter().map(|name| format!("/dev/shm/{name}")).collect();
    report.survivors.extend(cleaning.kept.iter().map(|(name, why)| format!("/dev/shm/{name} ({why})")));
    app.ui.answer(&stop_line(&report));
    Ok(Some(report))
}

/// SIGTERM, then SIGKILL, to exactly the processes that were listed.
async fn end(found: &Unrecorded, report: &mut StopReport) -> Result<(), Diagnostic> {
    let refused = |error: engine::EngineError| {
        Diagnostic::new(ErrorCode::OsRefused, "a process cannot be ended")
            .cause_chain(&error)
            .retry(Retry::Later)
    };
    for (kill, grace) in [(false, TERM_GRACE), (true, KILL_GRACE)] {
        for process in &found.processes {
            let sent = if kill { engine::kill(&process.id) } else { engine::terminate(&process.id) };
            sent.map_err(refused)?;
        }
        let deadline = Instant::now() + grace;
        while Instant::now() < deadline && living(found).map_err(refused)?.next().is_some() {
            tokio::time::sleep(LOOK).await;
        }
    }
    let survivors: Vec<i32> = living(found).map_err(refused)?.collect();
    for process in &found.processes {
        let line = format!("{} {}", process.pid, process.title);
        if survivors.contains(&process.pid) {
            report.survivors.push(format!("process {line}"));
        } else {
            report.freed = report.freed.checked_add(process.memory_bytes).unwrap_or(report.freed);
            report.stopped.push(line);
        }
    }
    Ok(())
}

fn living(found: &Unrecorded) -> Result<impl Iterator<Item = i32> + use<>, engine::EngineError> {
    let mut alive = Vec::new();
    for process in &found.processes {
        if engine::is_alive(&process.id)? {
            alive.push(process.pid);
        }
    }
    Ok(alive.into_iter())
}

/// All of it, with age and owner.
fn listing(found: &Unrecorded) -> String {
    let age = |ms: u64| format_duration(Duration::from_millis(ms));
    let processes = found.processes.iter().map(|process| {
        vec![
            format!("process {}", process.pid),
            process.title.clone(),
            user_name(process.uid),
            age(process.age_ms),
            process.memory_bytes.to_string(),
            String::new(),
        ]
    });
    let objects = found.objects.iter().map(|object| {
        vec![
            "shared memory".to_owned(),
            object.name.clone(),
            user_name(object.uid),
            age(object.age_ms),
            object.memory_bytes.to_string(),
            object.stays.as_ref().map(|why| format!("stays: {why}")).unwrap_or_default(),
        ]
    });
    let rows: Vec<Vec<String>> = processes.chain(objects).collect();
    plain_table(&["WHAT", "NAME", "OWNER", "AGE", "MEMORY", ""], &rows, &[3, 4])
}

fn user_name(uid: u32) -> String {
    match nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}
