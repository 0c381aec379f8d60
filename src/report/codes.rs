//! Every error code in one place: its name, the exit code it leads to, what it means.

use std::fmt;

use super::exit::Exit;

macro_rules! error_codes {
    ($( $variant:ident = $name:literal, $exit:ident, $meaning:literal; )*) => {
        /// A stable, kebab-case name for each thing that can go wrong. Scripts may match on it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorCode { $( #[doc = $meaning] $variant, )* }

        impl ErrorCode {
            /// All codes, in alphabetical order of their names.
            pub const ALL: &'static [Self] = &[ $( Self::$variant, )* ];

            /// The name, as printed in `error[name]` and in JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Self::$variant => $name, )* }
            }

            /// The exit code that a failure with this code ends in.
            #[must_use]
            pub const fn exit(self) -> Exit {
                match self { $( Self::$variant => Exit::$exit, )* }
            }

            /// The code with this name, when there is one.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|code| code.name() == name)
            }

            /// One sentence of documentation.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $( Self::$variant => $meaning, )* }
            }
        }
    };
}

error_codes! {
    AlreadyRunning = "already-running", TryAgain, "A deployment of this name runs, or another kdeploy holds its lock.";
    BadAnswer = "bad-answer", BadAnswer, "The server answered something that is not the OpenAI protocol.";
    BenchInvalid = "bench-invalid", BenchInvalid, "The measurement cannot be trusted: requests failed or broke off.";
    Bug = "bug", Bug, "Something happened that kdeploy itself rules out.";
    CannotCreate = "cannot-create", CannotCreate, "A file or directory could not be created: full, read-only, or in the way.";
    ContextDoesNotFit = "context-does-not-fit", Config, "The wanted context window needs more KV cache than there is.";
    CpuUnsupported = "cpu-unsupported", Unavailable, "The CPU build of vLLM does not run on this processor.";
    DiskFull = "disk-full", CannotCreate, "Not enough free space for what has to be written.";
    EngineDied = "engine-died", Died, "The engine served and then ended without having been asked to.";
    EngineInstallFailed = "engine-install-failed", Unavailable, "vLLM could not be installed.";
    EngineNotInstalled = "engine-not-installed", Unavailable, "No vLLM was found where kdeploy looks for it.";
    EngineUnusable = "engine-unusable", Unavailable, "A vLLM was found that cannot be used: no version, wrong version, not executable.";
    EngineVersionRefused = "engine-version-refused", Config, "The profile asks for another vLLM version than the one found.";
    Interrupted = "interrupted", Interrupted, "Stopped on request before the work was done.";
    Io = "io", Io, "A read or write failed.";
    KvCacheTooSmall = "kv-cache-too-small", Config, "The engine has less memory for the KV cache than the context window needs.";
    KvDtypeUnsupported = "kv-dtype-unsupported", Config, "No attention backend of this vLLM stores the KV cache type for this model on this hardware.";
    ModelConversionFailed = "model-conversion-failed", Unavailable, "The quickstart model could not be fetched or converted.";
    ModelDataBroken = "model-data-broken", DataBroken, "The model's own files are missing parts or cannot be read.";
    ModelNotFound = "model-not-found", NoInput, "There is no such model directory, or it is not in the local model cache.";
    NameNotFound = "name-not-found", NoInput, "No deployment has this name.";
    NetworkUnreachable = "network-unreachable", Unavailable, "A package registry could not be reached.";
    NoPermission = "no-permission", NoPermission, "The operating system denied access.";
    OsRefused = "os-refused", OsRefused, "The operating system refused to start or watch a process.";
    PatchDoesNotApply = "patch-does-not-apply", DataBroken, "A patch does not fit the checkpoint's files, or they changed after the plan was made.";
    PatchNotFound = "patch-not-found", NoInput, "There is no patch of this name, or the file that it takes does not exist.";
    PlanContradicted = "plan-contradicted", LaunchFailed, "The engine uses another context, KV cache type or number of ranks than planned, or does not confirm a patch.";
    PortBusy = "port-busy", TryAgain, "Another program holds the port.";
    ProfileInvalid = "profile-invalid", Config, "A profile or settings file has a mistake.";
    ProfileMismatch = "profile-mismatch", Config, "A strict profile was made for other hardware, another engine or another model.";
    ProfileNotFound = "profile-not-found", NoInput, "There is no profile of this name and no such file.";
    PythonNotFound = "python-not-found", Unavailable, "No suitable Python was found.";
    ServerUnreachable = "server-unreachable", Unavailable, "Nothing answers at the URL.";
    SettingInvalid = "setting-invalid", Config, "A setting has a value that cannot be used.";
    StartStalled = "start-stalled", Stalled, "The start made no progress within its deadline.";
    StateUnreadable = "state-unreadable", Io, "A record in the state directory cannot be read, or was written by a newer kdeploy.";
    StopIncomplete = "stop-incomplete", StopIncomplete, "After a stop something of the launch is still there.";
    UnknownFailure = "unknown-failure", LaunchFailedUnknown, "The engine failed to start and kdeploy does not know the cause.";
    Usage = "usage", Usage, "The command line is wrong.";
    WarmupFailed = "warmup-failed", LaunchFailed, "The engine says it is healthy but did not answer the warm-up request with tokens.";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::ErrorCode;

    #[test]
    fn names_are_kebab_case_sorted_and_documented() {
        let names: Vec<&str> = ErrorCode::ALL.iter().map(|code| code.name()).collect();
        assert!(names.windows(2).all(|pair| pair[0] < pair[1]), "sort the table: {names:?}");
        for code in ErrorCode::ALL {
            assert!(code.name().chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{code}");
            assert!(code.meaning().ends_with('.'), "{code}");
            assert_ne!(code.exit().code(), 0, "{code} is a failure");
        }
    }
}
