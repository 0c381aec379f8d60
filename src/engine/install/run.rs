//! One step of an installation: a program in its own session, its words kept in a log, ended when
//! the user wants it to end.

use std::fs::File;
use std::io::{BufReader, PipeReader, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Stdio;
use std::time::Duration;

use camino::Utf8Path;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::InstallError;
use crate::lifecycle::LineSplitter;
use crate::plan::install::{classify_trouble, redact_credentials};

/// Lines of the end that explain a failure.
const TAIL: usize = 40;
/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
/// How long the output may stay open after the program has ended.
const SETTLE: Duration = Duration::from_secs(2);

/// Variables that would change what is installed, or that are none of an installer's business.
const REMOVED: &[&str] = &[
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "PYTHONUSERBASE",
    "VIRTUAL_ENV",
    "PIP_REQUIRE_VIRTUALENV",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_PYTHON",
    "PIP_DRY_RUN",
    "UV_SYSTEM_PYTHON",
    "VLLM_API_KEY",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "NOTIFY_SOCKET",
];

/// One program to run.
#[derive(Debug, Clone)]
pub(super) struct Step<'a> {
    /// What it does, for messages: `create the virtual environment`.
    pub what: &'static str,
    pub program: &'a Utf8Path,
    pub arguments: Vec<String>,
    pub env: Vec<(&'static str, String)>,
}

/// Where steps write and how they are watched.
pub struct Workshop<'a> {
    /// Log that every step appends to.
    pub log: &'a Utf8Path,
    /// Private directory that steps run in and unpack into: nothing that lies in the user's working
    /// directory is imported, and the space is taken where it was checked.
    pub scratch: &'a Utf8Path,
    /// Called with each line.
    pub on_line: &'a (dyn Fn(&str) + Send + Sync),
    /// Ends the step.
    pub cancel: &'a CancellationToken,
}

impl std::fmt::Debug for Workshop<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workshop").field("log", &self.log).finish_non_exhaustive()
    }
}

impl Workshop<'_> {
    /// Runs a step to its end.
    ///
    /// # Returns
    /// Its last lines.
    pub(super) async fn run(&self, step: &Step<'_>) -> Result<Vec<String>, InstallError> {
        if self.cancel.is_cancelled() {
            return Err(InstallError::Cancelled);
        }
        let spawn_failed = |source| InstallError::Spawn { program: step.program.to_owned(), source };
        let mut log = open_log(self.log)?;
        let shown: Vec<&str> =
            std::iter::once(step.program.as_str()).chain(step.arguments.iter().map(String::as_str)).collect();
        let command_line = redact_credentials(&shown.join(" "));
        writeln!(log, "$ {command_line}").map_err(|source| log_failed(self.log, source))?;
        let (output, writer) = std::io::pipe().map_err(spawn_failed)?;
        let mut child = spawn(step, writer, self.scratch).map_err(spawn_failed)?;
        let (lines_tx, mut lines) = mpsc::unbounded_channel::<(u64, String)>();
        let path = self.log.to_owned();
        let reader = tokio::task::spawn_blocking(move || copy_output(output, log, &path, &lines_tx));
        let mut tail: Vec<(u64, String)> = Vec::new();
        let mut keep = |line: (u64, String)| {
            (self.on_line)(&line.1);
            tail.push(line);
            if tail.len() > TAIL {
                tail.remove(0);
            }
        };
        let status = loop {
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => {
                    end(&mut child).await;
                    return Err(InstallError::Cancelled);
                }
                Some(line) = lines.recv() => keep(line),
                status = child.wait() => break status.map_err(spawn_failed)?,
            }
        };
        // Its end is not waited for without bound: somebody else may hold the pipe.
        let written = tokio::time::timeout(SETTLE, reader).await;
        while let Ok(line) = lines.try_recv() {
            keep(line);
        }
        if let Ok(Ok(Err(error))) = written {
            return Err(error);
        }
        if status.success() {
            return Ok(tail.into_iter().map(|(_, line)| line).collect());
        }
        let text: String = tail.iter().map(|(_, line)| format!("{line}\n")).collect();
        Err(InstallError::Step {
            what: step.what,
            command: command_line,
            status,
            trouble: classify_trouble(&text),
            log: self.log.to_owned(),
            tail,
        })
    }
}

fn log_failed(path: &Utf8Path, source: std::io::Error) -> InstallError {
    InstallError::Io { path: path.to_owned(), source }
}

fn open_log(path: &Utf8Path) -> Result<File, InstallError> {
    let opened = File::options().create(true).append(true).mode(0o600).open(path);
    opened.map_err(|source| log_failed(path, source))
}

fn spawn(step: &Step<'_>, output: std::io::PipeWriter, scratch: &Utf8Path) -> std::io::Result<Child> {
    let errors = output.try_clone()?;
    let mut command = Command::new(step.program);
    command.args(&step.arguments).stdin(Stdio::null()).stdout(output).stderr(errors);
    for name in REMOVED {
        command.env_remove(name);
    }
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("KDEPLOY_")) {
            command.env_remove(name);
        }
    }
    command.current_dir(scratch).env("TMPDIR", scratch).kill_on_drop(true);
    // Without this a `user = true` in pip's own settings would lead out of the environment.
    command.env("PIP_USER", "0").env("PIP_NO_INPUT", "1").env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
    command.env("PYTHONUNBUFFERED", "1");
    command.envs(step.env.iter().map(|(name, value)| (*name, value.as_str())));
    let parent = nix::unistd::getpid();
    // SAFETY: setsid, prctl and getppid are async-signal-safe and allocate nothing.
    #[expect(unsafe_code, reason = "std has no stable way to start a child in its own session")]
    unsafe {
        command.pre_exec(move || {
            nix::unistd::setsid()?;
            // A killed kdeploy leaves no installer behind. Bound to the thread that forks: a runtime
            // thread, which lives as long as the process.
            nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
            // A parent that died before this line sends nothing any more.
            if nix::unistd::getppid() == parent { Ok(()) } else { Err(nix::errno::Errno::ESRCH.into()) }
        });
    }
    command.spawn()
}

/// Copies the output to the log, line by line, without credentials; reports each line with its number.
fn copy_output(
    output: PipeReader,
    mut log: File,
    path: &Utf8Path,
    lines: &mpsc::UnboundedSender<(u64, String)>,
) -> Result<(), InstallError> {
    let mut number =
        std::fs::read(path).map(|bytes| bytes.iter().filter(|b| **b == b'\n').count()).unwrap_or(0) as u64;
    let mut splitter = LineSplitter::default();
    let mut output = BufReader::new(output);
    let mut bytes = [0_u8; 8192];
    let mut failed = None;
    let mut keep = |text: &str| {
        let text = redact_credentials(text.trim_end());
        if text.is_empty() {
            return;
        }
        number += 1;
        // The pipe is read on, whatever the disk says, so that the program is not blocked.
        if let Err(source) = writeln!(log, "{text}") {
            failed.get_or_insert(log_failed(path, source));
        }
        let _ = lines.send((number, text));
    };
    loop {
        let read = match output.read(&mut bytes) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        splitter.feed(bytes.get(..read).unwrap_or_default(), |_, text| keep(text));
    }
    splitter.finish(|_, text| keep(text));
    failed.map_or(Ok(()), Err)
}

/// Ends the whole session of a step.
async fn end(child: &mut Child) {
    // Not yet waited for, so its number is still its own.
    let Some(group) = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw) else { return };
    let _ = killpg(group, Signal::SIGTERM);
    if tokio::time::timeout(GRACE, wait_unreaped(group)).await.is_err() {
        tracing::info!("an installer did not end within {GRACE:?}");
    }
    // Also what its main process left behind in the group.
    let _ = killpg(group, Signal::SIGKILL);
    let _ = child.wait().await;
}

/// Waits until a child has ended, without taking its status: its number stays reserved.
async fn wait_unreaped(pid: Pid) {
    use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    while matches!(waitid(Id::Pid(pid), flags), Ok(WaitStatus::StillAlive)) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
