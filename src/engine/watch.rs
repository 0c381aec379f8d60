//! The end of a process, seen at once and not at the next look at the process table.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::Arc;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::EngineError;
use super::tree::identify;
use crate::facts::ProcId;

/// A process that is watched through its pidfd; it need not be a child.
#[derive(Debug, Clone)]
pub struct Watch {
    id: ProcId,
    handle: Arc<AsyncFd<OwnedFd>>,
}

impl Watch {
    /// Watches a process; `None` when it is gone already.
    ///
    /// # Errors
    /// When the kernel refuses a pidfd. Must be called inside the runtime.
    pub fn new(id: &ProcId) -> Result<Option<Self>, EngineError> {
        let system = |source: std::io::Error| EngineError::System {
            what: format!("cannot watch process {}", id.pid),
            source,
        };
        let Some(pid) = Pid::from_raw(id.pid) else { return Ok(None) };
        let handle = match pidfd_open(pid, PidfdFlags::NONBLOCK) {
            Ok(handle) => handle,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(errno) => return Err(system(errno.into())),
        };
        // From here on the descriptor means one process; is it the right one?
        if identify(id.pid)?.as_ref() != Some(id) {
            return Ok(None);
        }
        // SAFETY: an `OwnedFd` always names the same descriptor, and is closed only after the `AsyncFd`,
        // which owns it, has left the reactor.
        #[expect(unsafe_code, reason = "tokio cannot know that the descriptor stays the same one")]
        let handle = unsafe { AsyncFd::register_with_interest(handle, Interest::READABLE) }
            .map_err(|error| system(error.into()))?;
        Ok(Some(Self { id: id.clone(), handle: Arc::new(handle) }))
    }

    /// The process.
    #[must_use]
    pub const fn id(&self) -> &ProcId {
        &self.id
    }

    /// Resolves when the process has ended.
    pub async fn ended(&self) {
        // A descriptor that cannot be waited for counts as silent: the process table is looked at too.
        if self.handle.readable().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// How it ended. The kernel tells this to others than the parent since Linux 6.15, and only after the
    /// parent has taken notice.
    #[must_use]
    pub fn exit_status(&self) -> Option<ExitStatus> {
        /// `struct pidfd_info` in its first form, `linux/pidfd.h`.
        #[repr(C)]
        #[derive(Default)]
        struct PidfdInfo {
            mask: u64,
            cgroup: u64,
            ids: [u32; 11],
            exit_code: i32,
        }
        const PIDFD_INFO_EXIT: u64 = 1 << 3;
        // _IOWR(0xFF, 11, struct pidfd_info)
        const PIDFD_GET_INFO: u64 = (3 << 30) | ((size_of::<PidfdInfo>() as u64) << 16) | (0xFF << 8) | 11;
        let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
        // SAFETY: the descriptor is open for the whole call, and the kernel writes at most the size that
        // is part of the request number into a structure of that size.
        #[expect(unsafe_code, reason = "no library wraps this request yet")]
        let told = unsafe {
            nix::libc::ioctl(
                self.handle.get_ref().as_raw_fd(),
                PIDFD_GET_INFO as nix::libc::Ioctl,
                std::ptr::from_mut(&mut info),
            )
        };
        (told == 0 && info.mask & PIDFD_INFO_EXIT != 0).then(|| ExitStatus::from_raw(info.exit_code))
    }
}

#[cfg(test)]
mod tests {
    use super::Watch;
    use crate::engine::{identify, kill};
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    #[tokio::test]
    async fn the_end_of_a_process_is_seen_and_its_cause_where_the_kernel_tells() {
        let mut child = Command::new("sleep").arg("30").spawn().unwrap();
        let id = identify(i32::try_from(child.id()).unwrap()).unwrap().unwrap();
        let watch = Watch::new(&id).unwrap().unwrap();
        assert!(watch.exit_status().is_none(), "it lives");
        kill(&id).unwrap();
        watch.ended().await;
        child.wait().unwrap();
        if let Some(status) = watch.exit_status() {
            assert_eq!(status.signal(), Some(9));
        }
        assert!(Watch::new(&id).unwrap().is_none());
    }

    #[tokio::test]
    async fn a_process_that_took_the_pid_is_not_watched() {
        let mut child = Command::new("sleep").arg("30").spawn().unwrap();
        let mut id = identify(i32::try_from(child.id()).unwrap()).unwrap().unwrap();
        id.start_time += 1;
        assert!(Watch::new(&id).unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
