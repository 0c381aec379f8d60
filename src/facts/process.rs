//! Identities of processes, shared-memory objects and directories: what a launch is known by.

use camino::Utf8PathBuf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// A process, not a pid: pids are reused, start times (in clock ticks since this boot) are not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ProcId {
    /// Process id.
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`, clock ticks since boot.
    pub start_time: u64,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
}

/// A shared-memory object that a process of the launch was seen to map or hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ShmObject {
    /// Name in /dev/shm.
    pub name: String,
    /// Device of the file system.
    pub device: u64,
    /// Inode.
    pub inode: u64,
}

/// A control group with the identity it was created with; inodes of groups are not used again while the
/// system runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CgroupId {
    /// Its directory.
    #[schemars(with = "String")]
    pub path: Utf8PathBuf,
    /// Inode.
    pub inode: u64,
}

/// The engine's private temporary directory with the identity it was created with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RuntimeDir {
    /// Its path.
    #[schemars(with = "String")]
    pub path: Utf8PathBuf,
    /// Device.
    pub device: u64,
    /// Inode.
    pub inode: u64,
}

/// What an ended launch left and what was done about it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StopReport {
    /// Processes ended, as `pid title`.
    pub stopped: Vec<String>,
    /// Memory that those processes held when the stop began (resident, shared pages counted once a
    /// process).
    pub freed: Bytes,
    /// Shared-memory objects and directories removed.
    pub removed: Vec<String>,
    /// What is still there, with the reason.
    pub survivors: Vec<String>,
}
