//! Remains of engines that no launch record knows: looked at, never touched from here.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;

use jiff::Timestamp;
use procfs::process::{Process, Stat};

use super::EngineError;
use super::shm::{SHM, all_users, has_engine_name};
use super::tree::boot_id;
use crate::facts::{OrphanObject, OrphanProcess, ProcId, ShmObject, Unrecorded};
use crate::units::Bytes;

/// An object that is younger may belong to an engine that is just being started.
const MIN_AGE_MS: u64 = 60_000;

/// Looks for orphans: processes with an engine's title that were handed to init, with all below them,
/// and objects with an engine's names that nobody uses. What a launch record knows is left out.
///
/// # Errors
/// When /proc or /dev/shm cannot be read at all.
pub fn find_unrecorded(
    processes: &BTreeSet<ProcId>,
    objects: &BTreeSet<ShmObject>,
    now: Timestamp,
) -> Result<Unrecorded, EngineError> {
    Ok(Unrecorded { processes: orphans(processes)?, objects: unused_objects(objects, now)? })
}

fn orphans(known: &BTreeSet<ProcId>) -> Result<Vec<OrphanProcess>, EngineError> {
    let boot = boot_id()?;
    let ticks = procfs::ticks_per_second();
    let up_ms = uptime_ms()?;
    let table: Vec<(Process, Stat)> = procfs::process::all_processes()?
        .filter_map(|process| {
            let process = process.ok()?;
            let stat = process.stat().ok()?;
            Some((process, stat))
        })
        .collect();
    let rows: BTreeMap<i32, (i32, &str)> =
        table.iter().map(|(_, stat)| (stat.pid, (stat.ppid, stat.comm.as_str()))).collect();
    let mut found = Vec::new();
    for (process, stat) in &table {
        if matches!(stat.state, 'Z' | 'X') || !is_orphan(stat.pid, &rows) {
            continue;
        }
        let id = ProcId { pid: stat.pid, start_time: stat.starttime, boot_id: boot.clone() };
        if known.contains(&id) {
            continue;
        }
        let title = process.cmdline().ok().and_then(|words| words.first().cloned());
        found.push(OrphanProcess {
            pid: stat.pid,
            title: title.filter(|title| !title.is_empty()).unwrap_or_else(|| stat.comm.clone()),
            uid: process.uid().unwrap_or(u32::MAX),
            age_ms: up_ms.saturating_sub(stat.starttime.saturating_mul(1_000) / ticks.max(1)),
            memory_bytes: Bytes::new(stat.rss.saturating_mul(procfs::page_size())),
            id,
        });
    }
    Ok(found)
}

/// Programs that take in what lost its parent.
const INITS: [&str; 7] = ["systemd", "init", "tini", "dumb-init", "docker-init", "catatonit", "s6-svscan"];

/// Is this an engine's process whose server is gone? The topmost process with a title of vLLM must
/// hang below an init; one that is the container's first process itself is none.
fn is_orphan(pid: i32, rows: &BTreeMap<i32, (i32, &str)>) -> bool {
    let titled = |pid: i32| rows.get(&pid).filter(|(_, comm)| comm.starts_with("VLLM::"));
    let Some(mut row) = titled(pid) else { return false };
    // A chain is as long as the tree is deep: engine, worker.
    for _ in 0..8 {
        match titled(row.0) {
            Some(parent) => row = parent,
            None => break,
        }
    }
    let parent = rows.get(&row.0).map(|(_, comm)| *comm);
    let is_server = |comm: &str| comm == "vllm" || comm.starts_with("python") || comm.starts_with("VLLM::");
    match parent {
        Some(comm) if row.0 == 1 => !is_server(comm),
        Some(comm) => INITS.contains(&comm),
        None => false,
    }
}

fn uptime_ms() -> Result<u64, EngineError> {
    use procfs::Current as _;
    let up = procfs::Uptime::current()?.uptime_duration();
    Ok(u64::try_from(up.as_millis()).unwrap_or(u64::MAX))
}

fn unused_objects(known: &BTreeSet<ShmObject>, now: Timestamp) -> Result<Vec<OrphanObject>, EngineError> {
    let failed = |source| EngineError::System { what: format!("cannot list {SHM}"), source };
    let mut candidates = Vec::new();
    for entry in std::fs::read_dir(SHM).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // Of the entry itself: a link is not followed.
        let Ok(meta) = entry.metadata() else { continue };
        let object = ShmObject { name: name.clone(), device: meta.dev(), inode: meta.ino() };
        if !meta.is_file() || !has_engine_name(&name) || known.contains(&object) {
            continue;
        }
        let changed_ms = meta.ctime().saturating_mul(1_000).saturating_add(meta.ctime_nsec() / 1_000_000);
        let age_ms = u64::try_from(now.as_millisecond().saturating_sub(changed_ms)).unwrap_or_default();
        if age_ms >= MIN_AGE_MS {
            candidates.push((object, meta, age_ms));
        }
    }
    if candidates.is_empty() {
        return Ok(Vec::new());
    }
    let users = all_users()?;
    candidates.retain(|(object, ..)| !users.inodes.contains_key(&(object.device, object.inode)));
    Ok(candidates
        .into_iter()
        .map(|(object, meta, age_ms)| OrphanObject {
            uid: meta.uid(),
            age_ms,
            memory_bytes: Bytes::new(meta.blocks().saturating_mul(512)),
            stays: why_it_stays(&object.name, meta.uid(), meta.nlink()),
            name: object.name.clone(),
            object,
        })
        .collect())
}

/// `psm_*` and `sem.mp-*` are names of Python's multiprocessing and `nccl-*` of any NCCL program:
/// without a record nothing proves that they were an engine's.
fn why_it_stays(name: &str, uid: u32, links: u64) -> Option<String> {
    if !name.starts_with("vllm_") {
        return Some("any Python or NCCL program gives such names".to_owned());
    }
    if uid != nix::unistd::geteuid().as_raw() {
        return Some(format!("belongs to user {uid}"));
    }
    (links > 1).then(|| "it has another name as well".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_orphan_hangs_below_an_init_and_not_below_its_server() {
        let alive = BTreeMap::from([
            (1, (0, "systemd")),
            (10, (1, "vllm")),
            (11, (10, "VLLM::EngineCor")),
            (12, (11, "VLLM::Worker_TP")),
        ]);
        assert!(!is_orphan(11, &alive) && !is_orphan(12, &alive) && !is_orphan(10, &alive));
        let orphaned = BTreeMap::from([
            (1, (0, "systemd")),
            (50, (1, "systemd")), // a user's own manager
            (11, (50, "VLLM::EngineCor")),
            (12, (11, "VLLM::Worker_TP")),
            (21, (1, "VLLM::Worker")),
        ]);
        assert!(is_orphan(11, &orphaned) && is_orphan(12, &orphaned) && is_orphan(21, &orphaned));
        // In a container the server itself may be the first process.
        let container = BTreeMap::from([(1, (0, "vllm")), (11, (1, "VLLM::EngineCor"))]);
        assert!(!is_orphan(11, &container));
    }

    #[test]
    fn only_names_of_vllm_may_ever_go_without_a_record() {
        let me = nix::unistd::geteuid().as_raw();
        assert_eq!(why_it_stays("vllm_offload_x.mmap", me, 1), None);
        assert!(why_it_stays("psm_00000000", me, 1).is_some());
        assert!(why_it_stays("vllm_offload_x.mmap", me + 1, 1).is_some());
        assert!(why_it_stays("vllm_offload_x.mmap", me, 2).is_some());
    }
}
