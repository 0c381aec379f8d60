//! The supervisor's state machine: `(State, now, Event) → (State, Actions)`.
//!
//! It knows no process and no clock. Rules it keeps, tested by random events below: a stop always
//! ends; signals are only asked for while stopping; an end that nobody asked for is a failure,
//! whatever its exit code (a vLLM whose engine died exits 0).

use std::time::Duration;

use super::stage::Stage;

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
}

/// Grace after SIGTERM during a start: vLLM swallows it while it loads.
const START_GRACE: Duration = Duration::from_secs(2);
/// What a stop may take on top of draining.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// From SIGKILL of everything but the resource tracker to SIGKILL of the rest.
const TRACKER_GRACE: Duration = Duration::from_secs(3);
/// From the last SIGKILL to giving up.
const KILL_GRACE: Duration = Duration::from_secs(10);
/// How long the rest of a tree may end by itself after its main process did.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);
/// Health probes missed in a row before a serving engine counts as lost.
const HEALTH_MISSES: u32 = 3;
/// First pause before a restart; doubles with each attempt.
const BACKOFF: Duration = Duration::from_secs(5);
/// Serving this long gives the attempts back.
const STABLE: Duration = Duration::from_secs(600);

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
}

impl Failure {
    /// Had this launch been ready before?
    #[must_use]
    pub const fn after_ready(self) -> bool {
        matches!(self, Self::DiedServing | Self::HealthLost)
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

/// Moves the machine by one event at time `now` (since the launch began).
#[must_use]
pub fn step(state: State, now: Duration, event: Event, limits: &Limits) -> (State, Vec<Action>) {
    let mut next = state;
    let mut actions = Vec::new();
    match (state.phase, event) {
        (Phase::Ended(_), _) => {}
        (phase, Event::StopAsked | Event::StopUrged) => {
            next.stop_asked = true;
            stop_on_request(&mut next, phase, now, event == Event::StopUrged, limits, &mut actions);
        }
        (Phase::Waiting { until }, Event::Tick) if now >= until => {
            next.attempt += 1;
            next.phase = Phase::Starting { stage: Stage::Imports, began: now, progress: now };
            actions.push(Action::Spawn);
        }
        (Phase::Starting { stage, began, progress }, event) => {
            starting(&mut next, (stage, began, progress), now, event, limits, &mut actions);
        }
        (Phase::WarmingUp { since }, event) => warming_up(&mut next, since, now, event, limits, &mut actions),
        (Phase::Ready { since, misses }, event) => ready(&mut next, since, misses, now, event, &mut actions),
        (Phase::Stopping { .. }, event) => stopping(&mut next, now, event, limits, &mut actions),
        (Phase::Waiting { .. }, _) => {}
    }
    (next, actions)
}

fn stop_on_request(
    next: &mut State,
    phase: Phase,
    now: Duration,
    urged: bool,
    limits: &Limits,
    actions: &mut Vec<Action>,
) {
    let grace = match phase {
        Phase::Waiting { .. } => {
            // Between two attempts the tree is gone already; before the first there was none.
            begin_cleaning(next, None, false, now, actions);
            return;
        }
        Phase::Stopping { failure, was_ready, step: StopStep::Asked, .. } if urged => {
            actions.push(Action::KillButTracker);
            next.phase =
                Phase::Stopping { failure, was_ready, step: StopStep::Killed, deadline: now + TRACKER_GRACE };
            return;
        }
        Phase::Stopping { .. } | Phase::Ended(_) => return,
        Phase::Starting { .. } | Phase::WarmingUp { .. } => START_GRACE,
        Phase::Ready { .. } => limits.drain + STOP_GRACE,
    };
    let was_ready = matches!(phase, Phase::Ready { .. });
    actions.push(Action::AskMain);
    next.phase = Phase::Stopping { failure: None, was_ready, step: StopStep::Asked, deadline: now + grace };
}

fn begin_cleaning(
    next: &mut State,
    failure: Option<Failure>,
    was_ready: bool,
    now: Duration,
    actions: &mut Vec<Action>,
) {
    actions.push(Action::Clean);
    next.phase = Phase::Stopping { failure, was_ready, step: StopStep::Cleaning, deadline: now + KILL_GRACE };
}

/// Something went wrong: end what is left of the attempt. `main_alive` decides whether it is asked first.
fn fail(next: &mut State, failure: Failure, main_alive: bool, now: Duration, actions: &mut Vec<Action>) {
    let grace = if main_alive {
        actions.push(Action::AskMain);
        START_GRACE
    } else {
        ORPHAN_GRACE
    };
    next.phase = Phase::Stopping {
        failure: Some(failure),
        was_ready: failure.after_ready(),
        step: StopStep::Asked,
        deadline: now + grace,
    };
}

fn starting(
    next: &mut State,
    (stage, began, progress): (Stage, Duration, Duration),
    now: Duration,
    event: Event,
    limits: &Limits,
    actions: &mut Vec<Action>,
) {
    match event {
        Event::SpawnFailed => begin_cleaning(next, Some(Failure::NotStarted), false, now, actions),
        Event::Mark(seen) => {
            // Ranks report at different times: a late rank does not turn the clock back.
            next.phase = Phase::Starting { stage: stage.max(seen), began, progress: now };
        }
        Event::Activity => next.phase = Phase::Starting { stage, began, progress: now },
        Event::Healthy => {
            actions.push(Action::WarmUp);
            next.phase = Phase::WarmingUp { since: now };
        }
        Event::WrongModel => fail(next, Failure::WrongModel, true, now, actions),
        Event::MainExited => fail(next, Failure::ExitedDuringStart { stage }, false, now, actions),
        Event::TreeEmpty => {
            begin_cleaning(next, Some(Failure::ExitedDuringStart { stage }), false, now, actions)
        }
        Event::Tick if now.saturating_sub(progress) >= limits.start_stall => {
            fail(next, Failure::Stalled { stage }, true, now, actions);
        }
        Event::Tick if now.saturating_sub(began) >= limits.start_total => {
            fail(next, Failure::TooSlow { stage }, true, now, actions);
        }
        _ => {}
    }
}

fn warming_up(
    next: &mut State,
    since: Duration,
    now: Duration,
    event: Event,
    limits: &Limits,
    actions: &mut Vec<Action>,
) {
    match event {
        Event::WarmedUp => {
            actions.push(Action::AnnounceReady);
            next.phase = Phase::Ready { since: now, misses: 0 };
        }
        Event::WarmupFailed => fail(next, Failure::WarmupFailed, true, now, actions),
        Event::MainExited => fail(next, Failure::WarmupFailed, false, now, actions),
        Event::TreeEmpty => begin_cleaning(next, Some(Failure::WarmupFailed), false, now, actions),
        Event::Tick if now.saturating_sub(since) >= limits.warmup => {
            fail(next, Failure::WarmupFailed, true, now, actions);
        }
        _ => {}
    }
}

fn ready(
    next: &mut State,
    since: Duration,
    misses: u32,
    now: Duration,
    event: Event,
    actions: &mut Vec<Action>,
) {
    if now.saturating_sub(since) >= STABLE {
        next.attempt = 1;
    }
    match event {
        Event::Healthy => next.phase = Phase::Ready { since, misses: 0 },
        Event::Unhealthy if misses + 1 >= HEALTH_MISSES => {
            fail(next, Failure::HealthLost, true, now, actions)
        }
        Event::Unhealthy => next.phase = Phase::Ready { since, misses: misses + 1 },
        Event::MainExited => fail(next, Failure::DiedServing, false, now, actions),
        Event::TreeEmpty => begin_cleaning(next, Some(Failure::DiedServing), true, now, actions),
        _ => {}
    }
}

fn stopping(next: &mut State, now: Duration, event: Event, limits: &Limits, actions: &mut Vec<Action>) {
    let Phase::Stopping { failure, was_ready, step, deadline } = next.phase else { return };
    match (step, event) {
        (StopStep::Cleaning, Event::Cleaned { left }) => {
            let outcome = match failure {
                _ if left => Outcome::Incomplete,
                Some(failure) => Outcome::Failed(failure),
                None => Outcome::Stopped { was_ready },
            };
            let retry = failure.filter(|f| {
                (f.after_ready() || next.revised)
                    && !left
                    && !next.stop_asked
                    && next.attempt < limits.max_attempts
            });
            if let Some(failure) = retry {
                actions.push(Action::AnnounceRetry(failure));
                // A changed plan need not wait for anything to get better.
                let pause = if next.revised {
                    Duration::ZERO
                } else {
                    BACKOFF * 2_u32.saturating_pow(next.attempt.saturating_sub(1).min(6))
                };
                next.revised = false;
                next.phase = Phase::Waiting { until: now + pause };
            } else {
                actions.push(Action::End(outcome));
                next.phase = Phase::Ended(outcome);
            }
        }
        (_, Event::Revised) => next.revised = true,
        (StopStep::Cleaning, _) => {}
        (_, Event::TreeEmpty) => begin_cleaning(next, failure, was_ready, now, actions),
        (StopStep::Asked, Event::Tick) if now >= deadline => {
            actions.push(Action::KillButTracker);
            next.phase =
                Phase::Stopping { failure, was_ready, step: StopStep::Killed, deadline: now + TRACKER_GRACE };
        }
        (StopStep::Killed, Event::Tick) if now >= deadline => {
            actions.push(Action::KillRest);
            next.phase = Phase::Stopping {
                failure,
                was_ready,
                step: StopStep::KilledRest,
                deadline: now + KILL_GRACE,
            };
        }
        (StopStep::KilledRest, Event::Tick) if now >= deadline => {
            begin_cleaning(next, failure, was_ready, now, actions);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
