//! An own control group for an engine's tree: membership that no process can leave, and an end that
//! no process can outrun.
//!
//! Version 2 only (`cgroup.kill` since Linux 5.14). Where the system does not let us, everything works
//! without one, through the session, recorded identities and the subreaper.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};

use crate::facts::CgroupId;

/// How long a freeze may take; a process in an uninterruptible wait freezes only afterwards.
const FREEZE_PATIENCE: Duration = Duration::from_millis(200);
/// How long an empty group may refuse to be removed.
const REMOVE_PATIENCE: Duration = Duration::from_millis(500);
/// Where a supervisor in a delegated group puts itself.
const SUPERVISOR_LEAF: &str = "supervisor";
const LOOK: Duration = Duration::from_millis(2);

/// A control group that kdeploy made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    id: CgroupId,
}

impl Cgroup {
    /// Makes a group `kdeploy-NAME` below the own one, where that is allowed: in a group that was
    /// delegated (systemd's `Delegate=yes`), or at the top of a container's own hierarchy. `None` when
    /// it is not, which is no error.
    #[must_use]
    pub fn create(leaf: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = own_group(&mounts, &groups)?;
        Self::create_in(&divisible(&own)?, leaf)
    }

    fn create_in(parent: &Utf8Path, leaf: &str) -> Option<Self> {
        let path = parent.join(format!("kdeploy-{leaf}"));
        match std::fs::create_dir(&path) {
            Ok(()) => {}
            // Of an earlier attempt of this name; an empty group can be removed, a used one not.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                std::fs::remove_dir(&path).ok()?;
                std::fs::create_dir(&path).ok()?;
            }
            Err(_) => return None,
        }
        let inode = std::fs::symlink_metadata(&path).ok()?.ino();
        let made = Self { id: CgroupId { path, inode } };
        // Without these two it is worth nothing.
        if made.file("cgroup.kill").exists() && made.file("cgroup.procs").exists() {
            return Some(made);
        }
        // Just made and empty; where it cannot be removed it stays as an empty directory.
        let _ = made.remove();
        None
    }

    /// The group of a launch record, when it is still the one that was made.
    #[must_use]
    pub fn recorded(id: &CgroupId) -> Option<Self> {
        let meta = std::fs::symlink_metadata(&id.path).ok()?;
        (meta.is_dir() && meta.ino() == id.inode).then(|| Self { id: id.clone() })
    }

    /// Its identity.
    #[must_use]
    pub const fn id(&self) -> &CgroupId {
        &self.id
    }

    fn file(&self, name: &str) -> Utf8PathBuf {
        self.id.path.join(name)
    }

    /// A descriptor through which a process that writes `0` moves itself into the group.
    pub(super) fn entrance(&self) -> Option<OwnedFd> {
        std::fs::File::options().write(true).open(self.file("cgroup.procs")).ok().map(Into::into)
    }

    /// Pids of all its processes, those of groups below it included.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        let mut pids = Vec::new();
        for directory in self.with_all_below() {
            let text = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
            pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0));
        }
        pids
    }

    /// SIGKILL to every process at once, forks in flight included. `false` when the kernel refused.
    #[must_use]
    pub fn kill(&self) -> bool {
        Self::recorded(&self.id).is_some() && std::fs::write(self.file("cgroup.kill"), "1").is_ok()
    }

    /// Stops all its processes (they can still be killed) and waits a moment until they are; `false`
    /// when they are not.
    #[must_use]
    pub fn freeze(&self) -> bool {
        if Self::recorded(&self.id).is_none() || std::fs::write(self.file("cgroup.freeze"), "1").is_err() {
            return false;
        }
        let deadline = Instant::now() + FREEZE_PATIENCE;
        loop {
            let events = std::fs::read_to_string(self.file("cgroup.events")).unwrap_or_default();
            if counter(&events, "frozen") == Some(1) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Lets its processes go on.
    pub fn thaw(&self) {
        // A group that cannot be thawed can still be killed.
        let _ = std::fs::write(self.file("cgroup.freeze"), "0");
    }

    /// Processes that the kernel killed for lack of memory, when the memory controller counts here.
    #[must_use]
    pub fn oom_kills(&self) -> Option<u64> {
        counter(&std::fs::read_to_string(self.file("memory.events")).ok()?, "oom_kill")
    }

    /// Removes the empty group and those below it. `false` when something is still in it.
    #[must_use = "a group that stays has processes"]
    pub fn remove(&self) -> bool {
        if Self::recorded(&self.id).is_none() {
            return true;
        }
        let mut all = self.with_all_below();
        all.reverse();
        // The last process leaves the group a moment after it has left the process table.
        let deadline = Instant::now() + REMOVE_PATIENCE;
        all.iter().all(|directory| {
            loop {
                match std::fs::remove_dir(directory) {
                    Ok(()) => return true,
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => return true,
                    Err(_) if Instant::now() < deadline && self.pids().is_empty() => std::thread::sleep(LOOK),
                    Err(_) => return false,
                }
            }
        })
    }

    /// The group's directory and all below it, parents first.
    fn with_all_below(&self) -> Vec<Utf8PathBuf> {
        let mut found = vec![self.id.path.clone()];
        let mut next = 0;
        while let Some(directory) = found.get(next).cloned() {
            next += 1;
            for entry in directory.read_dir_utf8().into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    found.push(entry.into_path());
                }
            }
        }
        found
    }
}

/// The group of this process in the version 2 hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OwnGroup {
    directory: Utf8PathBuf,
    /// Is it the top of what can be seen?
    is_top: bool,
}

/// Reads `/proc/self/mountinfo` and `/proc/self/cgroup` (cgroups(7)).
fn own_group(mounts: &str, groups: &str) -> Option<OwnGroup> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    // id parent major:minor root mount-point options … - type source super-options
    let (root, mount) = mounts.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        kind.starts_with("cgroup2 ").then_some((fields.next()?, fields.next()?))
    })?;
    // A container may see only a part: `root` is what its mount begins with.
    let below = if root == "/" { path } else { path.strip_prefix(root).unwrap_or(path) };
    let below = below.trim_start_matches('/');
    // `/../…` is a group outside of what this mount shows.
    if below.split('/').any(|part| part == "..") {
        return None;
    }
    let directory =
        if below.is_empty() { Utf8PathBuf::from(mount) } else { Utf8Path::new(mount).join(below) };
    Some(OwnGroup { directory, is_top: below.is_empty() })
}

/// The group that kdeploy may divide. systemd allows groups only below units that were delegated, which
/// it marks; at the top of a container's hierarchy nobody else divides. An unprivileged user can make
/// groups only where that was delegated.
fn divisible(own: &OwnGroup) -> Option<Utf8PathBuf> {
    if own.directory.file_name() == Some(SUPERVISOR_LEAF)
        && let Some(unit) = own.directory.parent().filter(|unit| is_delegated(unit))
    {
        return Some(unit.to_owned());
    }
    if is_delegated(&own.directory) {
        count_memory_in(&own.directory);
        return Some(own.directory.clone());
    }
    (own.is_top || !nix::unistd::geteuid().is_root()).then(|| own.directory.clone())
}

/// systemd's mark on a group that was delegated (systemd CGROUP_DELEGATION).
fn is_delegated(group: &Utf8Path) -> bool {
    ["user.delegate", "trusted.delegate"].iter().any(|name| {
        let mut value = [0_u8; 8];
        rustix::fs::getxattr(group.as_std_path(), *name, &mut value)
            .is_ok_and(|length| value.get(..length) == Some(b"1"))
    })
}

/// Has the kernel count memory and processes for the groups below a delegated one. A group with such
/// groups below may hold no process itself, so this one moves into a leaf. All of it may be refused;
/// only `memory.events` is missing then.
fn count_memory_in(unit: &Utf8Path) {
    let leaf = unit.join(SUPERVISOR_LEAF);
    let made = std::fs::create_dir(&leaf);
    if made.is_ok() || leaf.is_dir() {
        let _ = std::fs::write(leaf.join("cgroup.procs"), "0");
        let _ = std::fs::write(unit.join("cgroup.subtree_control"), "+memory +pids");
    }
}

/// A line `name number` of a flat file.
fn counter(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt as _;

    const HYBRID: &str = "31 23 0:27 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw\n\
        40 31 0:33 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        42 31 0:35 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_own_group_is_found_in_every_layout() {
        let unified = "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let own = own_group(unified, "0::/system.slice/kdeploy@kimi.service\n").unwrap();
        assert_eq!(own.directory, "/sys/fs/cgroup/system.slice/kdeploy@kimi.service");
        assert!(!own.is_top);
        let own = own_group(HYBRID, "4:memory:/x\n0::/\n").unwrap();
        assert_eq!((own.directory.as_str(), own.is_top), ("/sys/fs/cgroup/unified", true));
        let part = "9 1 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        let own = own_group(part, "0::/docker/abc/x\n").unwrap();
        assert_eq!(own.directory, "/sys/fs/cgroup/x");
        assert_eq!(own_group(unified, "0::/../other\n"), None, "outside of what is mounted");
        assert_eq!(own_group("31 23 0:27 / /x rw - tmpfs tmpfs rw\n", "0::/\n"), None);
        assert_eq!(own_group(unified, "4:memory:/x\n"), None, "version 1 only");
    }

    #[test]
    fn counters_are_read_by_their_whole_name() {
        let events = "low 0\noom 2\noom_kill 1\noom_group_kill 0\n";
        assert_eq!((counter(events, "oom_kill"), counter(events, "kill")), (Some(1), None));
    }

    /// Where this system has no group for us there is nothing to try; the parsers are tested above.
    #[test]
    fn a_real_group_holds_freezes_and_ends_a_tree() {
        let Some(group) = Cgroup::create(&format!("test-{}", std::process::id())) else { return };
        let entrance = group.entrance().unwrap();
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "trap '' TERM; setsid sleep 60 & sleep 60"]);
        // SAFETY: write(2) is async-signal-safe.
        #[expect(unsafe_code, reason = "the child moves itself")]
        unsafe {
            command.pre_exec(move || Ok(nix::unistd::write(&entrance, b"0").map(drop)?));
        }
        let mut child = command.spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while group.pids().len() < 3 {
            assert!(Instant::now() < deadline, "the tree: {:?}", group.pids());
        }
        assert!(group.freeze());
        group.thaw();
        assert!(!group.remove(), "it is in use");
        let mut impostor = group.id().clone();
        impostor.inode += 1;
        assert!(Cgroup::recorded(&impostor).is_none(), "another group of this name is not ours");
        assert!(group.kill());
        child.wait().unwrap();
        while !group.pids().is_empty() {
            assert!(Instant::now() < deadline, "still there: {:?}", group.pids());
        }
        assert!(group.remove());
        assert!(Cgroup::recorded(group.id()).is_none());
    }
}
