//! Shared memory of a launch: recorded while its processes use it, removed only when proven ours.
//!
//! `psm_*` and `sem.mp-*` are names of Python's multiprocessing, used by any Python program; a
//! pattern alone never justifies a removal. A semaphore's mapping even shows another name than its
//! file, so objects are known by device and inode.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::sync::LazyLock;

use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};
use procfs::process::{MMapPath, Process};
use regex::Regex;

use super::EngineError;
use crate::facts::ShmObject;

pub(super) const SHM: &str = "/dev/shm";

/// Names that vLLM, its multiprocessing, NCCL and KV offloading give (vLLM 0.32).
static NAMES: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(concat!(
        r"^(?:psm_[0-9a-f]{8}|sem\.mp-[a-z0-9_]{8}|nccl-[A-Za-z0-9]{6}",
        r"|vllm_dist_[0-9a-f]{32}-.*|vllm_(?:offload|ec)_.*\.mmap)$",
    ))
    .ok()
});

/// Result of a cleaning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShmCleaning {
    /// Names removed.
    pub removed: Vec<String>,
    /// Names that stay, with the reason.
    pub kept: Vec<(String, String)>,
}

type Inode = (u64, u64);

/// Is this a name that engines, their libraries, or other programs with the same libraries give?
pub(super) fn has_engine_name(name: &str) -> bool {
    NAMES.as_ref().is_some_and(|names| names.is_match(name))
}

/// Objects in /dev/shm that one of these processes maps or holds open now.
///
/// # Errors
/// When /dev/shm cannot be listed. Processes that end meanwhile are skipped.
pub fn list_shm_of(pids: &[i32]) -> Result<Vec<ShmObject>, EngineError> {
    let names = names_by_inode()?;
    let mut found = Vec::new();
    for pid in pids {
        for inode in used_by(*pid).unwrap_or_default() {
            if let Some(name) = names.get(&inode) {
                found.push(ShmObject { name: name.clone(), device: inode.0, inode: inode.1 });
            }
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Removes the recorded objects of a launch whose processes are all dead (the caller proved it).
/// An object stays when it is not the recorded one any more, belongs to another user, has no name
/// that an engine gives, is used by anybody, or when that cannot be told.
///
/// # Errors
/// When /dev/shm or /proc cannot be read at all.
pub fn clean_shm(recorded: &[ShmObject]) -> Result<ShmCleaning, EngineError> {
    let mut report = ShmCleaning::default();
    let existing: Vec<&ShmObject> =
        recorded.iter().filter(|object| stat_at(None, &object.name).is_some()).collect();
    if existing.is_empty() {
        return Ok(report);
    }
    let directory =
        nix::fcntl::open(SHM, OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|errno| EngineError::System {
                what: format!("cannot open {SHM}"),
                source: errno.into(),
            })?;
    let users = all_users()?;
    for object in existing {
        let Some(stat) = stat_at(Some(&directory), &object.name) else { continue };
        let verdict = why_keep(object, &stat, &users);
        match verdict {
            Some(reason) => report.kept.push((object.name.clone(), reason)),
            None => match nix::unistd::unlinkat(
                &directory,
                object.name.as_str(),
                nix::unistd::UnlinkatFlags::NoRemoveDir,
            ) {
                Ok(()) => report.removed.push(object.name.clone()),
                Err(errno) => report.kept.push((object.name.clone(), errno.to_string())),
            },
        }
    }
    Ok(report)
}

/// Who uses which inode, and whether every process could be looked at.
pub(super) struct Users {
    pub(super) inodes: BTreeMap<Inode, i32>,
    unreadable: Option<(i32, String)>,
}

fn why_keep(object: &ShmObject, stat: &FileStat, users: &Users) -> Option<String> {
    let inode = (stat.st_dev, stat.st_ino);
    if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG {
        return Some("not a regular file".to_owned());
    }
    if stat.st_uid != nix::unistd::geteuid().as_raw() {
        return Some(format!("belongs to user {}", stat.st_uid));
    }
    if !has_engine_name(&object.name) {
        return Some("not a name that an engine gives".to_owned());
    }
    if inode != (object.device, object.inode) {
        return Some("another object has taken the name".to_owned());
    }
    if stat.st_nlink > 1 {
        return Some("it has another name as well".to_owned());
    }
    if let Some(pid) = users.inodes.get(&inode) {
        return Some(format!("process {pid} uses it"));
    }
    match (open_elsewhere(object), &users.unreadable) {
        (Ok(false), _) | (Err(_), None) => None,
        (Ok(true), _) => Some("a process that cannot be looked into has it open".to_owned()),
        (Err(_), Some((pid, why))) => Some(format!("cannot tell whether process {pid} uses it: {why}")),
    }
}

/// Asks the kernel itself whether anybody has the object open or mapped: a write lease is granted only
/// when no other open file exists for the inode (fcntl(2), `F_SETLEASE`), and a mapping keeps its
/// file open. Unlike /proc this also sees processes that may not be looked into.
fn open_elsewhere(object: &ShmObject) -> Result<bool, nix::errno::Errno> {
    use nix::libc;
    use std::os::fd::AsRawFd as _;
    let path = std::path::Path::new(SHM).join(&object.name);
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let file = nix::fcntl::open(&path, flags, Mode::empty())?;
    // SAFETY: fcntl on a descriptor that is open for the whole call; F_SETLEASE takes an int and
    // touches no memory of ours. The lease ends with the descriptor at the end of this function.
    #[expect(unsafe_code, reason = "nix has no wrapper for F_SETLEASE")]
    let granted = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
    match nix::errno::Errno::result(granted) {
        Ok(_) => Ok(false),
        Err(nix::errno::Errno::EAGAIN) => Ok(true),
        Err(errno) => Err(errno),
    }
}

fn stat_at(directory: Option<&std::os::fd::OwnedFd>, name: &str) -> Option<FileStat> {
    match directory {
        Some(directory) => fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok(),
        None => nix::sys::stat::lstat(std::path::Path::new(SHM).join(name).as_path()).ok(),
    }
}

fn names_by_inode() -> Result<BTreeMap<Inode, String>, EngineError> {
    let failed = |source| EngineError::System { what: format!("cannot list {SHM}"), source };
    let mut names = BTreeMap::new();
    for entry in std::fs::read_dir(SHM).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if let (Ok(meta), Ok(name)) = (entry.metadata(), entry.file_name().into_string()) {
            names.insert((meta.dev(), meta.ino()), name);
        }
    }
    Ok(names)
}

pub(super) fn all_users() -> Result<Users, EngineError> {
    let mut users = Users { inodes: BTreeMap::new(), unreadable: None };
    for process in procfs::process::all_processes()? {
        let Ok(process) = process else { continue };
        match used_by(process.pid) {
            Ok(inodes) => users.inodes.extend(inodes.into_iter().map(|inode| (inode, process.pid))),
            // Kernel threads (children of 2) map nothing; what ended meanwhile uses nothing.
            Err(error) => match process.stat() {
                Ok(stat) if stat.pid != 2 && stat.ppid != 2 && !matches!(stat.state, 'Z' | 'X') => {
                    users.unreadable = Some((process.pid, error.to_string()));
                }
                _ => {}
            },
        }
    }
    Ok(users)
}

/// Inodes on the file system of /dev/shm that a process maps or holds.
fn used_by(pid: i32) -> Result<Vec<Inode>, procfs::ProcError> {
    let process = Process::new(pid)?;
    let shm = std::fs::metadata(SHM)?.dev();
    let (major, minor) = (nix::sys::stat::major(shm), nix::sys::stat::minor(shm));
    let mut found = Vec::new();
    for map in process.maps()? {
        let same = u64::try_from(map.dev.0) == Ok(major) && u64::try_from(map.dev.1) == Ok(minor);
        if same && matches!(map.pathname, MMapPath::Path(_) | MMapPath::Vsys(_) | MMapPath::Other(_)) {
            found.push((shm, map.inode));
        }
    }
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        // Follows the link to the open file itself, whatever its name is now.
        if let Ok(meta) = std::fs::metadata(entry?.path())
            && meta.dev() == shm
        {
            found.push((shm, meta.ino()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in /dev/shm that goes away with the test.
    struct Planted(String);

    impl Planted {
        fn new(name: &str) -> Self {
            std::fs::write(format!("{SHM}/{name}"), "x").unwrap();
            Self(name.to_owned())
        }

        fn object(&self) -> ShmObject {
            let meta = std::fs::symlink_metadata(format!("{SHM}/{}", self.0)).unwrap();
            ShmObject { name: self.0.clone(), device: meta.dev(), inode: meta.ino() }
        }

        fn exists(&self) -> bool {
            std::fs::symlink_metadata(format!("{SHM}/{}", self.0)).is_ok()
        }
    }

    impl Drop for Planted {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(format!("{SHM}/{}", self.0));
        }
    }

    fn unique(prefix: &str) -> String {
        format!("{prefix}{:08x}", std::process::id() ^ (prefix.len() as u32).wrapping_mul(0x9e37_79b9))
    }

    #[test]
    fn a_recorded_unused_object_goes() {
        let planted = Planted::new(&unique("psm_"));
        let report = clean_shm(&[planted.object()]).unwrap();
        assert_eq!(report.removed, std::slice::from_ref(&planted.0), "{report:?}");
        assert!(!planted.exists());
    }

    #[test]
    fn an_object_that_is_held_stays() {
        let planted = Planted::new("psm_0badf00d");
        let held = std::fs::File::open(format!("{SHM}/{}", planted.0)).unwrap();
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(list_shm_of(&[me]).unwrap().contains(&planted.object()));
        let report = clean_shm(&[planted.object()]).unwrap();
        assert!(planted.exists() && report.removed.is_empty(), "{report:?}");
        assert!(open_elsewhere(&planted.object()).unwrap(), "the kernel sees it too");
        drop(held);
        assert!(!open_elsewhere(&planted.object()).unwrap());
    }

    #[test]
    fn foreign_names_and_reused_names_stay() {
        let foreign = Planted::new("precious-data-of-another-program");
        let reused = Planted::new("sem.mp-zzzzzzz9");
        let mut old = reused.object();
        old.inode += 1;
        let report = clean_shm(&[foreign.object(), old]).unwrap();
        assert!(foreign.exists() && reused.exists() && report.removed.is_empty(), "{report:?}");
        assert_eq!(report.kept.len(), 2);
    }
}
