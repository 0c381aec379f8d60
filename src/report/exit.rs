//! Every value that kdeploy can exit with; the table of the README is checked against this one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Exit codes; sysexits numbers where they fit, so that systemd can tell "do not retry"
/// (`RestartPreventExitStatus=64 65 66 77 78`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Exit {
    /// Done; for `status`: ready.
    Done,
    /// The answer is no: `smoke` wrong, `status` crashed.
    No,
    /// `status`, `logs`, `down NAME`: not running.
    NotRunning,
    /// `status`: alive, not ready.
    NotReady,
    /// Wrong command line.
    Usage,
    /// Model data broken, or a patch does not apply.
    DataBroken,
    /// Model, file or name does not exist.
    NoInput,
    /// Something needed is missing: driver, vLLM, Python, network.
    Unavailable,
    /// A bug in kdeploy.
    Bug,
    /// The operating system refused: fork, /proc.
    OsRefused,
    /// Cannot create output: full disk, read-only.
    CannotCreate,
    /// A read or write failed.
    Io,
    /// Try again: lock held, port busy, memory held by others.
    TryAgain,
    /// The server's answer makes no sense.
    BadAnswer,
    /// No permission.
    NoPermission,
    /// Settings invalid, or the plan does not fit.
    Config,
    /// Launch failed, cause known, attempts spent.
    LaunchFailed,
    /// Launch failed, cause unknown.
    LaunchFailedUnknown,
    /// The start made no progress in time.
    Stalled,
    /// Served, then died, attempts spent.
    Died,
    /// Stop incomplete: survivors, or memory not freed.
    StopIncomplete,
    /// Benchmark invalid.
    BenchInvalid,
    /// Interrupted (Ctrl-C) before it was done.
    Interrupted,
}

impl Exit {
    /// All codes with the sentence that documents them, in numeric order.
    pub const TABLE: &'static [(Self, &'static str)] = &[
        (Self::Done, "done; `status`: ready; a requested stop"),
        (Self::No, "the answer is no: `smoke` wrong; `status`: crashed"),
        (Self::NotRunning, "`status`, `logs`, `down`: not running"),
        (Self::NotReady, "`status`: alive, not ready"),
        (Self::Usage, "usage"),
        (Self::DataBroken, "model data broken, or a patch does not apply"),
        (Self::NoInput, "model, file or name does not exist"),
        (Self::Unavailable, "something needed is missing: driver, vLLM, Python, network"),
        (Self::Bug, "bug in kdeploy"),
        (Self::OsRefused, "the operating system refused (fork, /proc)"),
        (Self::CannotCreate, "cannot create output (full disk, read-only)"),
        (Self::Io, "read or write failed"),
        (Self::TryAgain, "try again: lock held, port busy, memory held by others"),
        (Self::BadAnswer, "the server's answer makes no sense"),
        (Self::NoPermission, "no permission"),
        (Self::Config, "settings invalid, or the plan does not fit"),
        (Self::LaunchFailed, "launch failed, cause known, attempts spent"),
        (Self::LaunchFailedUnknown, "launch failed, cause unknown"),
        (Self::Stalled, "start made no progress in time"),
        (Self::Died, "served, then died, attempts spent"),
        (Self::StopIncomplete, "stop incomplete: survivors or memory not freed"),
        (Self::BenchInvalid, "benchmark invalid"),
        (Self::Interrupted, "interrupted (Ctrl-C) before it was done"),
    ];

    /// The number handed to the operating system.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::No => 1,
            Self::NotRunning => 3,
            Self::NotReady => 4,
            Self::Usage => 64,
            Self::DataBroken => 65,
            Self::NoInput => 66,
            Self::Unavailable => 69,
            Self::Bug => 70,
            Self::OsRefused => 71,
            Self::CannotCreate => 73,
            Self::Io => 74,
            Self::TryAgain => 75,
            Self::BadAnswer => 76,
            Self::NoPermission => 77,
            Self::Config => 78,
            Self::LaunchFailed => 80,
            Self::LaunchFailedUnknown => 81,
            Self::Stalled => 82,
            Self::Died => 83,
            Self::StopIncomplete => 84,
            Self::BenchInvalid => 85,
            Self::Interrupted => 130,
        }
    }

    /// The code with this number, when there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::TABLE.iter().map(|(exit, _)| *exit).find(|exit| exit.code() == code)
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::Exit;

    #[test]
    fn the_table_is_complete_ordered_and_round_trips() {
        let numbers: Vec<u8> = Exit::TABLE.iter().map(|(exit, _)| exit.code()).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
        for (exit, meaning) in Exit::TABLE {
            assert_eq!(Exit::from_code(exit.code()), Some(*exit));
            assert!(!meaning.is_empty());
        }
        assert_eq!(Exit::from_code(2), None, "clap's own usage code must never leave kdeploy");
    }
}
