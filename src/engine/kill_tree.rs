//! The violent end of a whole tree, in the order that loses nothing.

use super::cgroup::Cgroup;
use super::shm::list_shm_of;
use super::tree::{Member, Tree};
use super::{EngineError, freeze, kill, thaw};
use crate::facts::ShmObject;

/// What a violent end met.
#[derive(Debug, Default)]
pub struct KilledTree {
    /// What lived when it began.
    pub living: Vec<Member>,
    /// Shared memory that it used at that moment.
    pub shm: Vec<ShmObject>,
    /// What the system refused, in words.
    pub refused: Vec<String>,
}

/// Freezes the tree, looks once more at its processes and their shared memory, then sends SIGKILL. A
/// process that starts another one or makes an object between the last look and its end would leave
/// them unknown; frozen ones do neither. With `spare_tracker` Python's resource tracker is left alone: it
/// removes what is registered with it once all others are dead.
///
/// # Errors
/// When /proc or /dev/shm cannot be read; nothing was ended then, and all goes on.
pub fn kill_tree(tree: &mut Tree, spare_tracker: bool) -> Result<KilledTree, EngineError> {
    let cgroup = tree.cgroup().cloned();
    let frozen = cgroup.as_ref().is_some_and(Cgroup::freeze);
    let looked = look(tree, frozen, cgroup.as_ref());
    let killed = looked.map(|(living, shm)| {
        let mut refused = Vec::new();
        if !spare_tracker && cgroup.as_ref().is_some_and(|group| !group.pids().is_empty() && !group.kill()) {
            refused.push("the control group cannot be killed as a whole".to_owned());
        }
        for member in &living {
            let spared = spare_tracker && member.is_tracker;
            let done = if spared { thaw(&member.id) } else { kill(&member.id) };
            refused.extend(done.err().map(|error| error.to_string()));
        }
        KilledTree { living, shm, refused }
    });
    if let Some(group) = &cgroup {
        group.thaw();
    }
    killed
}

fn look(
    tree: &mut Tree,
    frozen: bool,
    cgroup: Option<&Cgroup>,
) -> Result<(Vec<Member>, Vec<ShmObject>), EngineError> {
    let inside = cgroup.filter(|_| frozen).map(Cgroup::pids).unwrap_or_default();
    for member in tree.refresh()?.iter().filter(|member| !inside.contains(&member.id.pid)) {
        // One that ends meanwhile needs no freezing.
        let _ = freeze(&member.id);
    }
    let living = tree.refresh()?;
    let pids: Vec<i32> = living.iter().map(|member| member.id.pid).collect();
    let shm = list_shm_of(&pids)?;
    Ok((living, shm))
}
