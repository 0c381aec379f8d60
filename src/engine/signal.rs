//! Signals that reach the process that was meant, or nobody.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::EngineError;
use super::tree::identify;
use crate::facts::ProcId;

/// Asks a process to end. `false` when it is gone already.
///
/// # Errors
/// When the kernel refuses, for example because the process belongs to another user.
pub fn terminate(id: &ProcId) -> Result<bool, EngineError> {
    send(id, Signal::TERM)
}

/// Ends a process. `false` when it is gone already.
///
/// # Errors
/// When the kernel refuses.
pub fn kill(id: &ProcId) -> Result<bool, EngineError> {
    send(id, Signal::KILL)
}

/// Stops a process where it is (SIGSTOP), so that what it uses can be recorded before it is killed.
///
/// # Errors
/// When the kernel refuses.
pub fn freeze(id: &ProcId) -> Result<bool, EngineError> {
    send(id, Signal::STOP)
}

/// Lets a frozen process go on.
///
/// # Errors
/// When the kernel refuses.
pub fn thaw(id: &ProcId) -> Result<bool, EngineError> {
    send(id, Signal::CONT)
}

/// Is this very process alive (its zombie counts as gone)?
///
/// # Errors
/// When /proc cannot be read.
pub fn is_alive(id: &ProcId) -> Result<bool, EngineError> {
    if identify(id.pid)?.as_ref() != Some(id) {
        return Ok(false);
    }
    let stat = procfs::process::Process::new(id.pid).and_then(|process| process.stat());
    Ok(stat.is_ok_and(|stat| !matches!(stat.state, 'Z' | 'X')))
}

/// The descriptor is opened first and the identity is compared afterwards: from then on the pid may
/// be reused, the descriptor still means the process that was compared.
fn send(id: &ProcId, signal: Signal) -> Result<bool, EngineError> {
    let system = |what: &str, errno: rustix::io::Errno| EngineError::System {
        what: format!("cannot {what} process {}", id.pid),
        source: errno.into(),
    };
    let Some(pid) = Pid::from_raw(id.pid) else { return Ok(false) };
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(rustix::io::Errno::SRCH) => return Ok(false),
        Err(errno) => return Err(system("open", errno)),
    };
    if identify(id.pid)?.as_ref() != Some(id) {
        return Ok(false);
    }
    match pidfd_send_signal(&handle, signal) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::SRCH) => Ok(false),
        Err(errno) => Err(system("signal", errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::{is_alive, kill};
    use crate::engine::identify;
    use std::process::Command;

    #[test]
    fn another_start_time_is_another_process() {
        let mut child = Command::new("sleep").arg("30").spawn().unwrap();
        let id = identify(i32::try_from(child.id()).unwrap()).unwrap().unwrap();
        let mut other = id.clone();
        other.start_time += 1;
        assert!(!kill(&other).unwrap(), "a reused pid must not be hit");
        assert!(is_alive(&id).unwrap() && !is_alive(&other).unwrap());
        assert!(kill(&id).unwrap());
        child.wait().unwrap();
        assert!(!kill(&id).unwrap() && !is_alive(&id).unwrap());
    }
}
