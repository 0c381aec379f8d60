//! Tables and random events for the supervisor's state machine.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits {
    start_stall: Duration::from_secs(60),
    start_total: Duration::from_secs(600),
    warmup: Duration::from_secs(120),
    drain: Duration::from_secs(30),
    max_attempts: 2,
    jitter_seed: 7,
};

/// Runs `(second, event)` pairs from the beginning; returns the last state and all actions.
fn run(events: &[(u64, Event)]) -> (State, Vec<Action>) {
    let mut state = State::new();
    let mut all = Vec::new();
    for (second, event) in events {
        let (next, actions) = step(state, Duration::from_secs(*second), *event, &LIMITS);
        state = next;
        all.extend(actions);
    }
    (state, all)
}

const TO_READY: [(u64, Event); 4] =
    [(0, Event::Tick), (10, Event::Mark(Stage::Weights)), (20, Event::Healthy), (25, Event::WarmedUp)];

#[test]
fn the_good_way() {
    let mut events = TO_READY.to_vec();
    events.extend([
        (30, Event::StopAsked),
        (31, Event::MainExited),
        (33, Event::TreeEmpty),
        (33, Event::Cleaned { left: false }),
    ]);
    let (state, actions) = run(&events);
    assert_eq!(
        actions,
        [
            Action::Spawn,
            Action::WarmUp,
            Action::AnnounceReady,
            Action::AskMain,
            Action::Clean,
            Action::End(Outcome::Stopped { was_ready: true })
        ]
    );
    assert_eq!(state.phase, Phase::Ended(Outcome::Stopped { was_ready: true }));
}

#[test]
fn a_stop_during_the_load_does_not_wait_for_an_engine_that_swallows_it() {
    let (_, actions) = run(&[
        (0, Event::Tick),
        (5, Event::Mark(Stage::Weights)),
        (10, Event::StopAsked),
        (11, Event::Tick),
        (12, Event::Tick),
        (15, Event::Tick),
        (16, Event::TreeEmpty),
        (16, Event::Cleaned { left: false }),
    ]);
    assert_eq!(
        actions,
        [
            Action::Spawn,
            Action::AskMain,
            Action::KillButTracker,
            Action::KillRest,
            Action::Clean,
            Action::End(Outcome::Stopped { was_ready: false })
        ]
    );
}

#[test]
fn requests_in_flight_may_finish_unless_it_is_urged() {
    let mut events = TO_READY.to_vec();
    events.extend([(30, Event::StopAsked), (69, Event::Tick)]);
    assert!(!run(&events).1.contains(&Action::KillButTracker), "39 s is inside drain + 10 s");
    events.push((70, Event::Tick));
    assert!(run(&events).1.contains(&Action::KillButTracker));
    let mut urged = TO_READY.to_vec();
    urged.extend([(30, Event::StopAsked), (31, Event::StopUrged)]);
    assert!(run(&urged).1.contains(&Action::KillButTracker));
}

#[test]
fn an_end_nobody_asked_for_is_a_failure_whatever_its_code() {
    let mut events = TO_READY.to_vec();
    events.extend([(40, Event::MainExited), (41, Event::TreeEmpty), (41, Event::Cleaned { left: false })]);
    let (state, actions) = run(&events);
    assert!(actions.contains(&Action::AnnounceRetry(Failure::DiedServing)));
    let Phase::Waiting { until } = state.phase else { panic!("{state:?}") };
    let pause = until - Duration::from_secs(41);
    assert!((3_750..=6_250).contains(&pause.as_millis()), "5 s, a quarter less or more: {pause:?}");
    events.extend([
        (48, Event::Tick),
        (60, Event::Healthy),
        (61, Event::WarmedUp),
        (70, Event::MainExited),
        (71, Event::TreeEmpty),
        (71, Event::Cleaned { left: false }),
    ]);
    let (state, actions) = run(&events);
    assert_eq!(actions.iter().filter(|a| **a == Action::Spawn).count(), 2);
    assert_eq!(state.phase, Phase::Ended(Outcome::Failed(Failure::DiedServing)), "attempts are spent");
}

#[test]
fn a_failed_start_is_not_repeated_unchanged() {
    let (state, actions) = run(&[
        (0, Event::Tick),
        (5, Event::Mark(Stage::Weights)),
        (9, Event::MainExited),
        (10, Event::TreeEmpty),
        (10, Event::Cleaned { left: false }),
    ]);
    let failure = Failure::ExitedDuringStart { stage: Stage::Weights };
    assert_eq!(state.phase, Phase::Ended(Outcome::Failed(failure)));
    assert!(!actions.contains(&Action::AskMain), "there is nobody to ask");
}

#[test]
fn the_stall_clock_restarts_with_progress() {
    let slow =
        [(0, Event::Tick), (59, Event::Activity), (118, Event::Mark(Stage::Weights)), (177, Event::Tick)];
    assert!(matches!(run(&slow).0.phase, Phase::Starting { .. }));
    let mut stuck = slow.to_vec();
    stuck.push((178, Event::Tick));
    assert!(matches!(
        run(&stuck).0.phase,
        Phase::Stopping { failure: Some(Failure::Stalled { stage: Stage::Weights }), .. }
    ));
}

#[test]
fn one_missed_probe_is_no_outage() {
    let mut events = TO_READY.to_vec();
    events.extend([
        (30, Event::Unhealthy),
        (32, Event::Unhealthy),
        (34, Event::Healthy),
        (36, Event::Unhealthy),
    ]);
    assert!(matches!(run(&events).0.phase, Phase::Ready { misses: 1, .. }));
    events.extend([(38, Event::Unhealthy), (40, Event::Unhealthy)]);
    assert!(matches!(run(&events).0.phase, Phase::Stopping { failure: Some(Failure::HealthLost), .. }));
}

#[test]
fn a_stop_between_attempts_starts_nothing_more() {
    let mut events = TO_READY.to_vec();
    events.extend([
        (40, Event::MainExited),
        (41, Event::TreeEmpty),
        (41, Event::Cleaned { left: false }),
        (42, Event::StopAsked),
        (42, Event::Cleaned { left: false }),
        (60, Event::Tick),
    ]);
    let (state, actions) = run(&events);
    assert_eq!(actions.iter().filter(|a| **a == Action::Spawn).count(), 1);
    assert!(matches!(state.phase, Phase::Ended(Outcome::Stopped { .. })));
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Tick),
        1 => Just(Event::SpawnFailed),
        1 => (0usize..Stage::ALL.len()).prop_map(|i| Event::Mark(Stage::ALL[i])),
        1 => Just(Event::Activity),
        2 => Just(Event::Healthy),
        1 => Just(Event::Unhealthy),
        1 => Just(Event::WrongModel),
        2 => Just(Event::WarmedUp),
        1 => Just(Event::WarmupFailed),
        1 => Just(Event::MainExited),
        1 => Just(Event::MemberExited),
        1 => Just(Event::Hung),
        1 => Just(Event::TreeEmpty),
        1 => Just(Event::StopAsked),
        1 => Just(Event::StopUrged),
        1 => any::<bool>().prop_map(|left| Event::Cleaned { left }),
    ]
}

proptest! {
    #[test]
    fn no_event_order_breaks_the_rules(events in proptest::collection::vec((0u64..90, any_event()), 0..60)) {
        let mut state = State::new();
        let mut now = Duration::ZERO;
        for (pause, event) in events {
            now += Duration::from_secs(pause);
            let before = state;
            let (next, actions) = step(state, now, event, &LIMITS);
            state = next;
            let ending = matches!(state.phase, Phase::Stopping { .. } | Phase::Ended(_) | Phase::Waiting { .. });
            for action in &actions {
                match action {
                    Action::AskMain | Action::KillButTracker | Action::KillRest => {
                        prop_assert!(ending, "{action:?} while {:?}", state.phase);
                    }
                    Action::Spawn => {
                        prop_assert!(!before.stop_asked, "a start after a stop was asked for");
                        prop_assert!(state.attempt <= LIMITS.max_attempts.max(1));
                    }
                    Action::AnnounceReady => prop_assert_eq!(event, Event::WarmedUp),
                    _ => {}
                }
            }
            if let Phase::Stopping { step, .. } = before.phase
                && let Phase::Stopping { step: after, .. } = state.phase {
                    prop_assert!(after >= step, "a stop never goes backwards");
                }
        }
        // Once asked, it ends: only time, and the answer to Clean, are needed.
        (state, _) = step(state, now, Event::StopAsked, &LIMITS);
        for _ in 0..10 {
            now += Duration::from_secs(60);
            let (next, actions) = step(state, now, Event::Tick, &LIMITS);
            state = next;
            let cleaning = matches!(state.phase, Phase::Stopping { step: StopStep::Cleaning, .. });
            if actions.contains(&Action::Clean) || cleaning {
                (state, _) = step(state, now, Event::Cleaned { left: false }, &LIMITS);
            }
        }
        prop_assert!(matches!(state.phase, Phase::Ended(_)), "still {:?}", state.phase);
    }
}

#[test]
fn a_start_that_failed_is_tried_again_only_when_the_plan_was_changed() {
    let failed = |revised: bool| {
        let mut events = vec![
            (0, Event::Tick),
            (5, Event::Mark(Stage::Weights)),
            (9, Event::MainExited),
            (10, Event::TreeEmpty),
        ];
        if revised {
            events.push((10, Event::Revised));
        }
        events.extend([(10, Event::Cleaned { left: false }), (10, Event::Tick)]);
        events
    };
    let (state, actions) = run(&failed(false));
    assert!(matches!(state.phase, Phase::Ended(Outcome::Failed(Failure::ExitedDuringStart { .. }))));
    assert!(!actions.iter().any(|action| matches!(action, Action::AnnounceRetry(_))));
    let (state, actions) = run(&failed(true));
    assert_eq!((state.attempt, state.revised), (2, false), "at once, and only once");
    assert_eq!(actions.iter().filter(|action| **action == Action::Spawn).count(), 2);
    let mut stopped = failed(true);
    stopped.insert(3, (9, Event::StopAsked));
    assert!(matches!(run(&stopped).0.phase, Phase::Ended(_)), "a stop that was asked for wins");
}
