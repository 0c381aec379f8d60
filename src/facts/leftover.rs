//! What looks like the remains of an engine that no launch record knows.

use schemars::JsonSchema;
use serde::Serialize;

use crate::units::Bytes;

/// A process with an engine's title that was handed to init: the server above it is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OrphanProcess {
    /// Its pid.
    pub pid: i32,
    /// Its title.
    pub title: String,
    /// User id that it runs as.
    pub uid: u32,
    /// How long it has been running, in milliseconds.
    pub age_ms: u64,
    /// Resident memory.
    pub memory_bytes: Bytes,
    /// Identity, for whoever ends it after asking.
    #[serde(skip)]
    #[schemars(skip)]
    pub id: super::ProcId,
}

/// A shared-memory object with a name that engines give, used by nobody.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OrphanObject {
    /// Name in /dev/shm.
    pub name: String,
    /// User id of its owner.
    pub uid: u32,
    /// Time since it was last changed, in milliseconds.
    pub age_ms: u64,
    /// Memory that it really takes.
    pub memory_bytes: Bytes,
    /// Why it is never removed without its record; absent when it can be, after asking.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stays: Option<String>,
    /// Identity, for whoever removes it after asking.
    #[serde(skip)]
    #[schemars(skip)]
    pub object: super::ShmObject,
}

/// Remains of engines that no launch record knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Unrecorded {
    /// Processes.
    pub processes: Vec<OrphanProcess>,
    /// Shared-memory objects.
    pub objects: Vec<OrphanObject>,
}

impl Unrecorded {
    /// Is there nothing?
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.objects.is_empty()
    }

    /// Memory that the objects take.
    #[must_use]
    pub fn object_bytes(&self) -> Bytes {
        self.objects.iter().map(|object| object.memory_bytes).sum()
    }
}
