//! The processes of a launch, known by pid and start time.
//!
//! vLLM overwrites its environment block with process titles, so markers in the environment do not
//! find its children; its processes never leave the session of the main process. A process belongs
//! to the launch when it was recorded, is in the launch's own control group, is a descendant of a
//! member, or shares the session of a *living* recorded member (a session id is not reused while a
//! member lives).

use std::collections::{BTreeMap, BTreeSet};

use procfs::process::Stat;

use super::EngineError;
use super::cgroup::Cgroup;
use crate::facts::{CgroupId, ProcId};
use crate::units::Bytes;

/// A living process of the launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its identity.
    pub id: ProcId,
    /// Pid of its parent.
    pub parent: i32,
    /// Title for people: command line, or the short name.
    pub title: String,
    /// Python's resource tracker: the one that removes registered shared memory when all others die.
    pub is_tracker: bool,
    /// Resident memory.
    pub resident: Bytes,
}

/// The processes of one attempt.
#[derive(Debug, Clone)]
pub struct Tree {
    main: ProcId,
    known: BTreeSet<ProcId>,
    cgroup: Option<Cgroup>,
}

/// A line of the process table.
struct Row {
    stat: Stat,
}

impl Tree {
    /// A tree of which only the main process is known yet.
    #[must_use]
    pub fn new(main: ProcId, cgroup: Option<Cgroup>) -> Self {
        Self { known: BTreeSet::from([main.clone()]), main, cgroup }
    }

    /// A tree from a launch record.
    #[must_use]
    pub fn from_record(main: ProcId, members: &[ProcId], cgroup: Option<&CgroupId>) -> Self {
        let mut known: BTreeSet<ProcId> = members.iter().cloned().collect();
        known.insert(main.clone());
        Self { main, known, cgroup: cgroup.and_then(Cgroup::recorded) }
    }

    /// Its control group, when it has one.
    #[must_use]
    pub const fn cgroup(&self) -> Option<&Cgroup> {
        self.cgroup.as_ref()
    }

    /// Everything that was ever seen to belong to it.
    #[must_use]
    pub const fn known(&self) -> &BTreeSet<ProcId> {
        &self.known
    }

    /// The main process.
    #[must_use]
    pub const fn main(&self) -> &ProcId {
        &self.main
    }

    /// Looks at the process table and returns the living members (zombies hold nothing and do not
    /// count). Reaps members that were orphaned to this process.
    ///
    /// # Errors
    /// When /proc or the boot id cannot be read.
    pub fn refresh(&mut self) -> Result<Vec<Member>, EngineError> {
        let boot_id = boot_id()?;
        if self.main.boot_id != boot_id {
            return Ok(Vec::new()); // nothing survives a reboot
        }
        let table = process_table()?;
        let inside = self.cgroup.as_ref().map(Cgroup::pids).unwrap_or_default();
        let found = members(&table, &self.main, &self.known, &inside);
        let me = i32::try_from(std::process::id()).unwrap_or_default();
        let mut living = Vec::new();
        for pid in found {
            let Some(row) = table.get(&pid) else { continue };
            let id = ProcId { pid, start_time: row.stat.starttime, boot_id: boot_id.clone() };
            self.known.insert(id.clone());
            if matches!(row.stat.state, 'Z' | 'X') {
                // The main process is waited for by its own handle.
                if row.stat.ppid == me && pid != self.main.pid {
                    let flags = Some(nix::sys::wait::WaitPidFlag::WNOHANG);
                    let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), flags);
                }
                continue;
            }
            living.push(describe(id, &row.stat));
        }
        Ok(living)
    }

    /// Bytes read by the whole tree so far (page cache included): grows while weights are loaded.
    #[must_use]
    pub fn bytes_read(living: &[Member]) -> Bytes {
        living
            .iter()
            .filter_map(|member| procfs::process::Process::new(member.id.pid).ok()?.io().ok())
            .map(|io| Bytes::new(io.rchar))
            .sum()
    }
}

/// Which pids of the table belong to the tree.
fn members(
    table: &BTreeMap<i32, Row>,
    main: &ProcId,
    known: &BTreeSet<ProcId>,
    inside: &[i32],
) -> BTreeSet<i32> {
    let mut found: BTreeSet<i32> = known
        .iter()
        .filter(|id| table.get(&id.pid).is_some_and(|row| row.stat.starttime == id.start_time))
        .map(|id| id.pid)
        .collect();
    // What is in the launch's own control group was started by it: nothing else can get in.
    found.extend(inside.iter().filter(|pid| table.contains_key(pid)));
    let session_lives =
        found.iter().any(|pid| table.get(pid).is_some_and(|row| row.stat.session == main.pid));
    if session_lives {
        let of_session = |row: &&Row| row.stat.session == main.pid && row.stat.starttime >= main.start_time;
        found.extend(table.values().filter(of_session).map(|row| row.stat.pid));
    }
    loop {
        let children: Vec<i32> = table
            .values()
            .filter(|row| found.contains(&row.stat.ppid) && !found.contains(&row.stat.pid))
            .map(|row| row.stat.pid)
            .collect();
        if children.is_empty() {
            return found;
        }
        found.extend(children);
    }
}

fn process_table() -> Result<BTreeMap<i32, Row>, EngineError> {
    let mut table = BTreeMap::new();
    for process in procfs::process::all_processes()? {
        // A process that ends while it is looked at is simply not there.
        if let Ok(stat) = process.and_then(|process| process.stat()) {
            table.insert(stat.pid, Row { stat });
        }
    }
    Ok(table)
}

fn describe(id: ProcId, stat: &Stat) -> Member {
    let arguments =
        procfs::process::Process::new(id.pid).and_then(|process| process.cmdline()).unwrap_or_default();
    let line = arguments.join(" ");
    let is_tracker = line.contains("multiprocessing.resource_tracker");
    let title = match arguments.first() {
        Some(first) if first.starts_with("VLLM::") => first.clone(),
        Some(_) if is_tracker => "resource tracker".to_owned(),
        _ if stat.comm.is_empty() => "?".to_owned(),
        _ => stat.comm.clone(),
    };
    let resident = Bytes::new(stat.rss.saturating_mul(procfs::page_size()));
    Member { id, parent: stat.ppid, title, is_tracker, resident }
}

pub(super) fn boot_id() -> Result<String, EngineError> {
    Ok(procfs::sys::kernel::random::boot_id()?)
}

/// The identity of a living process; `None` when there is none with this pid, or only its zombie.
///
/// # Errors
/// When /proc cannot be read.
pub fn identify(pid: i32) -> Result<Option<ProcId>, EngineError> {
    let stat = match procfs::process::Process::new(pid).and_then(|process| process.stat()) {
        Ok(stat) => stat,
        Err(procfs::ProcError::NotFound(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(Some(ProcId { pid, start_time: stat.starttime, boot_id: boot_id()? }))
}

/// The identity of this very process.
///
/// # Errors
/// When /proc cannot be read.
pub fn current_process() -> Result<ProcId, EngineError> {
    let pid = i32::try_from(std::process::id()).unwrap_or_default();
    identify(pid)?.ok_or_else(|| EngineError::System {
        what: "this process is not in /proc".to_owned(),
        source: std::io::ErrorKind::NotFound.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn row(pid: i32, ppid: i32, session: i32, start: u64) -> (i32, Row) {
        let fields = vec!["0"; 30].join(" ");
        let text = format!(
            "{pid} (x) S {ppid} {session} {session} 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} {fields}"
        );
        let stat = procfs::FromRead::from_read(text.as_bytes()).unwrap();
        (pid, Row { stat })
    }

    fn id(pid: i32, start_time: u64) -> ProcId {
        ProcId { pid, start_time, boot_id: "b".to_owned() }
    }

    #[test]
    fn session_and_descendants_are_ours_while_a_recorded_member_lives() {
        let table = BTreeMap::from([
            row(100, 1, 100, 50),   // main
            row(101, 100, 100, 60), // engine
            row(102, 101, 100, 70), // worker
            row(103, 102, 103, 80), // a child in another session
            row(200, 1, 200, 55),   // foreign
        ]);
        let main = id(100, 50);
        let known = BTreeSet::from([main.clone()]);
        assert_eq!(members(&table, &main, &known, &[]), BTreeSet::from([100, 101, 102, 103]));
    }

    #[test]
    fn orphans_are_found_by_a_recorded_survivor() {
        let table = BTreeMap::from([row(101, 1, 100, 60), row(102, 101, 100, 70), row(105, 1, 100, 90)]);
        let main = id(100, 50);
        let known = BTreeSet::from([main.clone(), id(101, 60)]);
        assert_eq!(members(&table, &main, &known, &[]), BTreeSet::from([101, 102, 105]));
    }

    #[test]
    fn reused_pids_and_sessions_are_not_ours() {
        // pid 100 was taken by a stranger, who leads a session of the same number.
        let table = BTreeMap::from([row(100, 1, 100, 900), row(101, 100, 100, 910)]);
        let main = id(100, 50);
        let known = BTreeSet::from([main.clone(), id(101, 60)]);
        assert_eq!(members(&table, &main, &known, &[]), BTreeSet::new());
    }

    #[test]
    fn a_process_that_left_session_and_parents_is_found_in_the_control_group() {
        let table = BTreeMap::from([row(100, 1, 100, 50), row(104, 1, 104, 95), row(200, 1, 200, 55)]);
        let main = id(100, 50);
        let known = BTreeSet::from([main.clone()]);
        assert_eq!(members(&table, &main, &known, &[]), BTreeSet::from([100]));
        assert_eq!(members(&table, &main, &known, &[100, 104, 999]), BTreeSet::from([100, 104]));
    }

    #[test]
    fn real_processes_are_seen_and_gone() {
        let mut child =
            Command::new("sh").args(["-c", "sleep 30 & wait"]).stdin(Stdio::null()).spawn().unwrap();
        let main = identify(i32::try_from(child.id()).unwrap()).unwrap().unwrap();
        let mut tree = Tree::new(main, None);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let seen = loop {
            let living = tree.refresh().unwrap();
            if living.iter().any(|member| member.title == "sleep") || std::time::Instant::now() > deadline {
                break living;
            }
        };
        assert!(seen.len() >= 2, "{seen:?}");
        for member in &seen {
            crate::engine::kill(&member.id).unwrap();
        }
        child.wait().unwrap();
        while !tree.refresh().unwrap().is_empty() {
            assert!(std::time::Instant::now() < deadline, "still there");
        }
    }
}
