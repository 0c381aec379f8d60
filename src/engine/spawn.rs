//! Starting the engine: own session, one pipe for both streams, clean signals, chosen environment.

use std::io::PipeReader;
use std::process::Stdio;

use camino::Utf8Path;
use nix::sys::signal::{SigHandler, Signal};
use tokio::process::{Child, Command};

use super::EngineError;
use super::cgroup::Cgroup;
use super::tree::identify;
use crate::facts::ProcId;
use crate::plan::Plan;

/// A started engine.
#[derive(Debug)]
pub struct Spawned {
    /// Handle of the main process; it must be waited for.
    pub child: Child,
    /// Its identity; it leads the session of the whole tree.
    pub main: ProcId,
    /// stdout and stderr of the whole tree, in the order they were written. It ends only when the
    /// last process of the tree does, so its end must not be waited for.
    pub output: PipeReader,
}

/// Starts the engine as the plan says.
///
/// Both streams share one pipe, because vLLM writes records to stdout and bars and tracebacks to
/// stderr and their order matters. The child leads a new session: vLLM's processes all stay in it,
/// and a Ctrl-C at the terminal reaches kdeploy only.
///
/// It moves itself into `cgroup` before it becomes the engine, so that nothing of the tree is ever outside.
///
/// # Errors
/// When the program cannot be executed, or its identity cannot be read.
pub fn spawn(plan: &Plan, runtime: &Utf8Path, cgroup: Option<&Cgroup>) -> Result<Spawned, EngineError> {
    let program = plan.argv.first().cloned().unwrap_or_default();
    let failed = |source| EngineError::Spawn { program: program.clone(), source };
    let (output, writer) = std::io::pipe().map_err(failed)?;
    let errors = writer.try_clone().map_err(failed)?;
    let mut command = Command::new(&program);
    command.args(plan.argv.iter().skip(1)).stdin(Stdio::null()).stdout(writer).stderr(errors);
    for name in inherited_but_private().chain(plan.unset_env.iter().cloned()) {
        command.env_remove(name);
    }
    command.envs(&plan.env).env("TMPDIR", runtime.as_str()).env("VLLM_RPC_BASE_PATH", runtime.as_str());
    let entrance = cgroup.and_then(Cgroup::entrance);
    // SAFETY: between fork and exec only async-signal-safe calls are made (setsid, write, sigaction);
    // no memory is allocated and no lock is taken.
    #[expect(unsafe_code, reason = "std has no stable way to start a child in its own session")]
    unsafe {
        command.pre_exec(move || {
            nix::unistd::setsid()?;
            if let Some(entrance) = &entrance {
                // Refused: the tree is still known by its session and its recorded processes.
                let _ = nix::unistd::write(entrance, b"0");
            }
            // A parent that ignores these (nohup, a shell's background job) would make the engine
            // deaf to its own orderly stop. The mask is emptied by std itself.
            for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
                nix::sys::signal::signal(signal, SigHandler::SigDfl)?;
            }
            Ok(())
        });
    }
    let child = command.spawn().map_err(failed)?;
    drop(command); // closes our copies of the pipe's writing end
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
    let main = identify(pid)?.ok_or_else(|| failed(std::io::Error::other("it ended at once")))?;
    Ok(Spawned { child, main, output })
}

/// Variables of kdeploy and systemd that mean something for kdeploy only.
fn inherited_but_private() -> impl Iterator<Item = String> {
    std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.starts_with("KDEPLOY_"))
        .chain(
            ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"]
                .map(str::to_owned),
        )
}

/// Makes orphans of the engine's tree children of this process, so that they can be seen and reaped.
///
/// # Errors
/// When the kernel refuses.
pub fn become_subreaper() -> Result<(), EngineError> {
    nix::sys::prctl::set_child_subreaper(true).map_err(|errno| EngineError::System {
        what: "cannot become a subreaper".to_owned(),
        source: errno.into(),
    })
}
