//! The transitions.

use std::time::Duration;

use super::{Action, Event, Failure, Limits, Outcome, Phase, Stage, State, StopStep};

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
/// How long the main process of a start may take to end by itself after a process below it did: vLLM
/// 0.32 needs 8 to 12 s, and what it prints meanwhile belongs to the evidence.
const FOLLOW_GRACE: Duration = Duration::from_secs(13);
/// A start is called stalled after this share of its deadline, or after a minute when that is longer.
const STALL_SHARE: u32 = 3;
const STALL_LEAST: Duration = Duration::from_secs(60);
/// Health probes missed in a row before a serving engine counts as lost.
const HEALTH_MISSES: u32 = 3;
/// First pause before a restart; doubles with each attempt, less or more a quarter.
const BACKOFF: Duration = Duration::from_secs(5);
/// Longest pause before the quarter.
const BACKOFF_MOST: Duration = Duration::from_secs(300);
/// Serving this long gives the attempts back.
const STABLE: Duration = Duration::from_secs(600);

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
            next.phase =
                Phase::Starting { stage: Stage::Imports, began: now, progress: now, stall_told: false };
            actions.push(Action::Spawn);
        }
        (Phase::Starting { .. }, event) => starting(&mut next, now, event, limits, &mut actions),
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

/// What happens to the main process of a failed attempt, and how long it has.
struct Parting {
    ask: bool,
    grace: Duration,
}

/// It lives and is asked to end.
const END_MAIN: Parting = Parting { ask: true, grace: START_GRACE };
/// It lives and is about to end by itself.
const LET_MAIN_END: Parting = Parting { ask: false, grace: FOLLOW_GRACE };
/// It is gone; only the rest of its tree is waited for.
const MAIN_GONE: Parting = Parting { ask: false, grace: ORPHAN_GRACE };

/// Something went wrong: end what is left of the attempt.
fn fail(next: &mut State, failure: Failure, parting: Parting, now: Duration, actions: &mut Vec<Action>) {
    if parting.ask {
        actions.push(Action::AskMain);
    }
    next.phase = Phase::Stopping {
        failure: Some(failure),
        was_ready: failure.after_ready(),
        step: StopStep::Asked,
        deadline: now + parting.grace,
    };
}

fn starting(next: &mut State, now: Duration, event: Event, limits: &Limits, actions: &mut Vec<Action>) {
    let Phase::Starting { stage, began, progress, stall_told } = next.phase else { return };
    let moved = |stage| Phase::Starting { stage, began, progress: now, stall_told: false };
    let still = now.saturating_sub(progress);
    match event {
        Event::SpawnFailed => begin_cleaning(next, Some(Failure::NotStarted), false, now, actions),
        // Ranks report at different times: a late rank does not turn the clock back.
        Event::Mark(seen) => next.phase = moved(stage.max(seen)),
        Event::Activity => next.phase = moved(stage),
        Event::Healthy => {
            actions.push(Action::WarmUp);
            next.phase = Phase::WarmingUp { since: now };
        }
        Event::WrongModel => fail(next, Failure::WrongModel, END_MAIN, now, actions),
        Event::MainExited => fail(next, Failure::ExitedDuringStart { stage }, MAIN_GONE, now, actions),
        Event::MemberExited => fail(next, Failure::ExitedDuringStart { stage }, LET_MAIN_END, now, actions),
        Event::TreeEmpty => {
            begin_cleaning(next, Some(Failure::ExitedDuringStart { stage }), false, now, actions)
        }
        Event::Tick if still >= limits.start_stall => {
            fail(next, Failure::Stalled { stage }, END_MAIN, now, actions);
        }
        Event::Tick if now.saturating_sub(began) >= limits.start_total => {
            fail(next, Failure::TooSlow { stage }, END_MAIN, now, actions);
        }
        Event::Tick if !stall_told && still >= (limits.start_stall / STALL_SHARE).max(STALL_LEAST) => {
            actions.push(Action::TellStall { stage, still });
            next.phase = Phase::Starting { stage, began, progress, stall_told: true };
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
        Event::WarmupFailed => fail(next, Failure::WarmupFailed, END_MAIN, now, actions),
        Event::MainExited => fail(next, Failure::WarmupFailed, MAIN_GONE, now, actions),
        Event::MemberExited => fail(next, Failure::WarmupFailed, LET_MAIN_END, now, actions),
        Event::TreeEmpty => begin_cleaning(next, Some(Failure::WarmupFailed), false, now, actions),
        Event::Tick if now.saturating_sub(since) >= limits.warmup => {
            fail(next, Failure::WarmupFailed, END_MAIN, now, actions);
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
            fail(next, Failure::HealthLost, END_MAIN, now, actions)
        }
        Event::Unhealthy => next.phase = Phase::Ready { since, misses: misses + 1 },
        Event::MainExited => fail(next, Failure::DiedServing, MAIN_GONE, now, actions),
        Event::MemberExited => fail(next, Failure::DiedServing, END_MAIN, now, actions),
        Event::Hung => fail(next, Failure::Hung, END_MAIN, now, actions),
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
                let pause =
                    if next.revised { Duration::ZERO } else { backoff(next.attempt, limits.jitter_seed) };
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

/// The pause after a failed attempt: doubling, bounded, spread by a quarter to both sides.
fn backoff(attempt: u32, seed: u64) -> Duration {
    let pause = (BACKOFF * 2_u32.saturating_pow(attempt.saturating_sub(1).min(10))).min(BACKOFF_MOST);
    // SplitMix64 (Steele, Lea, Flood 2014): well spread from consecutive inputs.
    let mut x = seed.wrapping_add(u64::from(attempt).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let permille = u32::try_from((x ^ (x >> 31)) % 501).unwrap_or_default();
    pause * (750 + permille) / 1_000
}
