//! The supervisor's state machine: `(State, now, Event) → (State, Actions)`.
//!
//! It knows no process and no clock. Rules it keeps, tested by random events below: a stop always
//! ends; signals are only asked for while stopping; an end that nobody asked for is a failure,
//! whatever its exit code (a vLLM whose engine died exits 0).

mod step;
#[cfg(test)]
mod tests;

use std::time::Duration;

use super::stage::Stage;
pub use step::step;

/// Deadlines and budgets of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest time without progress during a start.
    pub start_stall: Duration,
    /// Longest time of a whole start.
    pub start_total: Duration,
    /// Longest time of the warm-up.
    pub warmup: Duration,
    /// How long requests in flight may finish at a stop.
    pub drain: Duration,
    /// Starts allowed.
    pub max_attempts: u32,
    /// Spreads the pauses before restarts, so that many deployments that died together do not come back
    /// together.
    pub jitter_seed: u64,
}

/// Why a launch failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The program could not be started.
    NotStarted,
    /// It ended during the start.
    ExitedDuringStart {
        /// Where it was.
        stage: Stage,
    },
    /// No progress within the deadline.
    Stalled {
        /// Where it was.
        stage: Stage,
    },
    /// The whole start took too long although it moved.
    TooSlow {
        /// Where it was.
        stage: Stage,
    },
    /// It is healthy but serves another name.
    WrongModel,
    /// It is healthy but did not answer the first request with tokens.
    WarmupFailed,
    /// It served, then ended without having been asked to.
    DiedServing,
    /// It served, then stopped answering `/health`.
    HealthLost,
    /// It served and `/health` still says so, but a request of one token is not answered.
    Hung,
}

impl Failure {
    /// Had this launch been ready before?
    #[must_use]
    pub const fn after_ready(self) -> bool {
        matches!(self, Self::DiedServing | Self::HealthLost | Self::Hung)
    }
}

/// How a launch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// On request, everything gone.
    Stopped {
        /// Had it been ready?
        was_ready: bool,
    },
    /// Not on request; everything gone.
    Failed(Failure),
    /// Something of it is still there.
    Incomplete,
}

/// How far an ordered stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopStep {
    /// The main process is gone or was asked to end; waiting for the tree.
    Asked,
    /// Everything but the resource tracker was killed.
    Killed,
    /// Everything was killed.
    KilledRest,
    /// The tree is gone (or given up); files and shared memory are being removed.
    Cleaning,
}

/// What the launch is doing. Times are since the launch began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nothing was started yet, or the next attempt waits for `until`.
    Waiting {
        /// When to start.
        until: Duration,
    },
    /// The engine starts.
    Starting {
        /// Stage its log last named.
        stage: Stage,
        /// When this attempt began.
        began: Duration,
        /// Last sign of progress.
        progress: Duration,
        /// It was told that nothing moves.
        stall_told: bool,
    },
    /// The first request is under way.
    WarmingUp {
        /// When the request was sent.
        since: Duration,
    },
    /// Serving.
    Ready {
        /// Since when.
        since: Duration,
        /// Health probes missed in a row.
        misses: u32,
    },
    /// Being ended.
    Stopping {
        /// `None` when it was asked for.
        failure: Option<Failure>,
        /// Had it been ready?
        was_ready: bool,
        /// How far.
        step: StopStep,
        /// When the next step is due.
        deadline: Duration,
    },
    /// Over.
    Ended(Outcome),
}

/// The whole state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// What the launch is doing.
    pub phase: Phase,
    /// Number of the current attempt, from 1; 0 before the first.
    pub attempt: u32,
    /// A stop was asked for: no further attempt begins.
    pub stop_asked: bool,
    /// The plan was changed after the failure of this start: it is tried again.
    pub revised: bool,
}

impl State {
    /// Before the first attempt.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            phase: Phase::Waiting { until: Duration::ZERO },
            attempt: 0,
            stop_asked: false,
            revised: false,
        }
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Time went on.
    Tick,
    /// The engine could not be started.
    SpawnFailed,
    /// The log named a stage, or counted inside one.
    Mark(Stage),
    /// The tree read or computed something: not stalled.
    Activity,
    /// `/health` is 200 and `/v1/models` lists the served name.
    Healthy,
    /// `/health` failed, timed out or is not 200.
    Unhealthy,
    /// `/v1/models` does not list the served name.
    WrongModel,
    /// The first request came back with tokens.
    WarmedUp,
    /// The first request failed.
    WarmupFailed,
    /// The main process ended.
    MainExited,
    /// An engine core, a worker or an API server below the main process ended.
    MemberExited,
    /// An idle engine did not answer a request of one token.
    Hung,
    /// No process of the launch is left.
    TreeEmpty,
    /// A stop was asked for.
    StopAsked,
    /// A stop was asked for again: skip the waiting, not the cleaning.
    StopUrged,
    /// The plan was changed so that the next start can succeed.
    Revised,
    /// Cleaning is done.
    Cleaned {
        /// Something could not be ended or removed.
        left: bool,
    },
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Start the engine.
    Spawn,
    /// Send the first request.
    WarmUp,
    /// Tell the world.
    AnnounceReady,
    /// Tell that the start shows no progress; it is ended only at its deadline.
    TellStall {
        /// Where it is.
        stage: Stage,
        /// How long nothing moved.
        still: Duration,
    },
    /// SIGTERM to the main process only: to the group it would kill workers under their requests.
    AskMain,
    /// SIGKILL to everything but the resource tracker, which then removes registered shared memory.
    KillButTracker,
    /// SIGKILL to everything.
    KillRest,
    /// Verify, remove shared memory and temporary files of the launch.
    Clean,
    /// A new attempt will begin; `failure` ended the last.
    AnnounceRetry(Failure),
    /// Write the outcome and end.
    End(Outcome),
}
