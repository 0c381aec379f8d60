//! Ends and cleans what a launch left whose kdeploy is gone, from its record and nothing else.

use std::time::{Duration, Instant};

use camino::Utf8Path;

use super::verify::what_is_not_free;
use crate::config::DeploymentName;
use crate::engine::{self, Cgroup, Tree};
use crate::facts::StopReport;
use crate::report::{Diagnostic, ErrorCode, Retry};
use crate::store::LaunchRecord;

/// From SIGKILL of everything but the resource tracker to SIGKILL of the rest.
const TRACKER_GRACE: Duration = Duration::from_secs(3);
/// From the last SIGKILL to giving up.
const KILL_GRACE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);

/// What cleaning removed and what stays, with the reason.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    pub removed: Vec<String>,
    pub survivors: Vec<String>,
}

/// Removes shared memory and the temporary directory of a launch whose processes are all dead.
pub(super) fn remove_leftovers(record: &LaunchRecord) -> Leftovers {
    let mut out = Leftovers::default();
    match engine::clean_shm(&record.shm) {
        Ok(report) => {
            out.removed.extend(report.removed.iter().map(|name| format!("/dev/shm/{name}")));
            out.survivors.extend(report.kept.iter().map(|(name, why)| format!("/dev/shm/{name} ({why})")));
        }
        Err(error) => out.survivors.push(format!("shared memory ({error})")),
    }
    if let Some(runtime) = &record.runtime {
        match engine::remove_runtime_dir(runtime) {
            Ok(true) => out.removed.push(runtime.path.to_string()),
            Ok(false) => {}
            Err(error) => out.survivors.push(format!("{} ({error})", runtime.path)),
        }
    }
    if let Some(group) = record.cgroup.as_ref().and_then(Cgroup::recorded)
        && !group.remove()
    {
        let inside = group.pids().iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
        out.survivors.push(format!("control group {} (processes {inside})", group.id().path));
    }
    out
}

/// Ends every process of a recorded launch that still lives, then cleans. The resource tracker is
/// spared at first: it removes what is registered with it once all others are dead.
///
/// # Errors
/// When the process table cannot be read, or something survives.
pub(super) async fn reap_record(
    record: &mut LaunchRecord,
    nvml_library: Option<&str>,
) -> Result<StopReport, Diagnostic> {
    let mut report = StopReport::default();
    let os = |error: &engine::EngineError| {
        Diagnostic::new(ErrorCode::OsRefused, "the processes of the launch cannot be examined")
            .cause_chain(error)
    };
    if let Some(main) = record.main.clone() {
        let mut tree = Tree::from_record(main, &record.members, record.cgroup.as_ref());
        let living = tree.refresh().map_err(|error| os(&error))?;
        for member in &living {
            report.stopped.push(format!("{} {}", member.id.pid, member.title));
            report.freed = report.freed.checked_add(member.resident).unwrap_or(report.freed);
        }
        for tracker_too in [false, true] {
            let killed = engine::kill_tree(&mut tree, !tracker_too).map_err(|error| os(&error))?;
            record.shm.extend(killed.shm);
            let mut living = killed.living;
            let deadline = Instant::now() + if tracker_too { KILL_GRACE } else { TRACKER_GRACE };
            while !living.is_empty() && Instant::now() < deadline {
                tokio::time::sleep(LOOK).await;
                living = tree.refresh().map_err(|error| os(&error))?;
            }
            report.survivors = living.iter().map(|m| format!("process {} {}", m.id.pid, m.title)).collect();
        }
        record.members = tree.known().iter().cloned().collect();
    }
    record.shm.sort();
    record.shm.dedup();
    if report.survivors.is_empty() {
        let left = remove_leftovers(record);
        report.removed = left.removed;
        report.survivors = left.survivors;
        report.survivors.extend(what_is_not_free(record, nvml_library).await);
    }
    if report.survivors.is_empty() { Ok(report) } else { Err(incomplete(&record.name, &report)) }
}

/// What [`reap_record`] would end and remove now.
///
/// # Errors
/// When the process table cannot be read.
pub(super) fn foreseen(record: &LaunchRecord) -> Result<StopReport, Diagnostic> {
    let mut report = StopReport::default();
    if let Some(main) = record.main.clone() {
        let living =
            Tree::from_record(main, &record.members, record.cgroup.as_ref()).refresh().map_err(|error| {
                Diagnostic::new(ErrorCode::OsRefused, "the processes of the launch cannot be examined")
                    .cause_chain(&error)
            })?;
        for member in &living {
            report.stopped.push(format!("{} {}", member.id.pid, member.title));
            report.freed = report.freed.checked_add(member.resident).unwrap_or(report.freed);
        }
    }
    let exists = |path: &str| std::fs::symlink_metadata(path).is_ok();
    let objects = record.shm.iter().map(|object| format!("/dev/shm/{}", object.name));
    let runtime = record.runtime.iter().map(|runtime| runtime.path.to_string());
    report.removed = objects.chain(runtime).filter(|path| exists(path)).collect();
    Ok(report)
}

/// Is the kdeploy that supervises this launch alive?
pub(super) fn supervisor_lives(record: &LaunchRecord) -> bool {
    engine::is_alive(&record.supervisor).unwrap_or(false)
}

/// Cleans up after a launch of this name whose supervisor died; the caller holds the name's lock.
/// Returns what was done when there was something to do.
///
/// # Errors
/// When the record cannot be read, or something survives.
pub(super) async fn reap_stale(
    deployment: &Utf8Path,
    nvml_library: Option<&str>,
) -> Result<Option<StopReport>, Diagnostic> {
    let record = LaunchRecord::load(deployment).map_err(|error| super::context::store_error(&error))?;
    let Some(mut record) = record else { return Ok(None) };
    if !record.state.is_live() {
        return Ok(None);
    }
    let report = reap_record(&mut record, nvml_library).await?;
    Ok(Some(report))
}

/// Something of a launch could not be ended or removed.
pub(super) fn incomplete(name: &DeploymentName, report: &StopReport) -> Diagnostic {
    let mut diagnostic = Diagnostic::new(
        ErrorCode::StopIncomplete,
        format!("`{name}` is stopped, but something of it is still there"),
    )
    .retry(Retry::Later);
    for survivor in &report.survivors {
        diagnostic = diagnostic.fact("", survivor.clone());
    }
    diagnostic.did(crate::report::stop_line(report)).command("try again", format!("kdeploy down {name}"))
}
