//! What the service manager is told, and when (sd_notify(3), systemd.service(5)).
//!
//! Its start timeout is turned into a deadline on progress: each sign of progress buys the time that
//! kdeploy itself would wait for the next one, and a margin in which kdeploy ends the start in order. A
//! kdeploy that hangs sends nothing and is ended from outside.

use std::time::Duration;

use super::machine::{Limits, Outcome, Phase};

/// Longest status line.
const MAX_STATUS: usize = 80;
/// Pause between two extensions of a timeout.
const EXTEND_EVERY: Duration = Duration::from_secs(10);
/// What an ordered end may take on top: grace, two kills, the GPUs' memory, cleaning.
const END_MARGIN: Duration = Duration::from_secs(60);

/// What a moment looks like.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    /// Since the launch began.
    pub now: Duration,
    /// What the launch is doing.
    pub phase: Phase,
    /// One line for people.
    pub status: &'a str,
}

/// Remembers what was told.
#[derive(Debug, Clone, Default)]
pub struct Notifier {
    watchdog: Option<Duration>,
    ready: bool,
    stopping: bool,
    status: String,
    extended: Option<Duration>,
    pinged: Option<Duration>,
}

impl Notifier {
    /// A notifier for a service whose watchdog waits this long.
    #[must_use]
    pub fn new(watchdog: Option<Duration>) -> Self {
        Self { watchdog, ..Self::default() }
    }

    /// The message for this moment; empty when there is nothing to tell.
    #[must_use]
    pub fn message(&mut self, moment: Moment<'_>, limits: &Limits) -> String {
        let mut lines = Vec::new();
        if !self.ready && matches!(moment.phase, Phase::Ready { .. }) {
            self.ready = true;
            lines.push("READY=1".to_owned());
        }
        // A failed attempt may be followed by another one: only an end that was asked for, or the last,
        // is the service's own.
        let is_ending = matches!(moment.phase, Phase::Stopping { failure: None, .. } | Phase::Ended(_));
        if is_ending && !self.stopping {
            self.stopping = true;
            lines.push("STOPPING=1".to_owned());
        }
        let status = status_line(moment.status);
        if status != self.status {
            lines.push(format!("STATUS={status}"));
            self.status = status;
        }
        if let Some(time) = self.extension(moment, limits) {
            lines.push(format!("EXTEND_TIMEOUT_USEC={}", time.as_micros()));
        }
        if self.is_ping_due(moment) {
            lines.push("WATCHDOG=1".to_owned());
        }
        lines.join("\n")
    }

    /// How much longer the current start or stop may take from now on, when that is to be told.
    fn extension(&mut self, moment: Moment<'_>, limits: &Limits) -> Option<Duration> {
        let now = moment.now;
        let until = match moment.phase {
            // Told again only after progress: a start that stands still buys nothing more.
            Phase::Starting { began, progress, .. } => {
                if self.extended.is_some_and(|at| progress <= at) {
                    return None;
                }
                (progress + limits.start_stall).min(began + limits.start_total)
            }
            Phase::WarmingUp { since } => since + limits.warmup,
            Phase::Stopping { deadline, .. } => deadline,
            Phase::Waiting { until } => until,
            Phase::Ready { .. } | Phase::Ended(_) => return None,
        };
        if self.extended.is_some_and(|at| now.saturating_sub(at) < EXTEND_EVERY) {
            return None;
        }
        self.extended = Some(now);
        Some(until.saturating_sub(now) + END_MARGIN)
    }

    /// Twice in each interval, and not while a served engine's health is in doubt: when kdeploy does not
    /// sort that out itself, the service manager shall.
    fn is_ping_due(&mut self, moment: Moment<'_>) -> bool {
        let Some(watchdog) = self.watchdog else { return false };
        if matches!(moment.phase, Phase::Ready { misses, .. } if misses > 0) {
            return false;
        }
        let due = self.pinged.is_none_or(|at| moment.now.saturating_sub(at) >= watchdog / 2);
        if due {
            self.pinged = Some(moment.now);
        }
        due
    }
}

/// One line, short enough for `systemctl status`.
fn status_line(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut line = line.trim().to_owned();
    while line.len() > MAX_STATUS {
        line.pop();
    }
    line
}

/// The interval after which the manager takes the service for hung: `WATCHDOG_USEC`, when it is meant
/// for this process (`WATCHDOG_PID`).
#[must_use]
pub fn watchdog_interval(usec: Option<&str>, for_pid: Option<&str>, own_pid: u32) -> Option<Duration> {
    let usec: u64 = usec?.parse().ok().filter(|usec| *usec > 0)?;
    match for_pid.map(str::parse::<u32>) {
        None => {}
        Some(Ok(pid)) if pid == own_pid => {}
        Some(_) => return None,
    }
    Some(Duration::from_micros(usec))
}

/// A word for how a launch ended.
#[must_use]
pub const fn outcome_word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Stopped { .. } => "stopped",
        Outcome::Failed(_) => "failed",
        Outcome::Incomplete => "stopped, but something is left",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::{Failure, Stage, StopStep};

    const LIMITS: Limits = Limits {
        start_stall: s(300),
        start_total: s(3_600),
        warmup: s(120),
        drain: s(30),
        max_attempts: 3,
        jitter_seed: 0,
    };

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const fn starting(progress: u64) -> Phase {
        Phase::Starting { stage: Stage::Weights, began: s(0), progress: s(progress), stall_told: false }
    }

    fn at(notifier: &mut Notifier, now: u64, phase: Phase) -> String {
        notifier.message(Moment { now: s(now), phase, status: "x" }, &LIMITS)
    }

    #[test]
    fn progress_buys_time_and_standing_still_buys_none() {
        let mut notifier = Notifier::new(None);
        assert_eq!(at(&mut notifier, 0, starting(0)), "STATUS=x\nEXTEND_TIMEOUT_USEC=360000000");
        assert_eq!(at(&mut notifier, 5, starting(4)), "", "at most every 10 s");
        assert_eq!(at(&mut notifier, 11, starting(9)), "EXTEND_TIMEOUT_USEC=358000000");
        assert_eq!(at(&mut notifier, 60, starting(9)), "", "nothing moved");
        assert_eq!(at(&mut notifier, 61, starting(61)), "EXTEND_TIMEOUT_USEC=360000000");
        // Never beyond the bound of the whole start.
        assert_eq!(at(&mut notifier, 3_590, starting(3_590)), "EXTEND_TIMEOUT_USEC=70000000");
    }

    #[test]
    fn ready_comes_once_and_only_from_ready() {
        let mut notifier = Notifier::new(None);
        let first = at(&mut notifier, 20, Phase::WarmingUp { since: s(20) });
        assert!(!first.contains("READY") && first.contains("EXTEND_TIMEOUT_USEC=180000000"), "{first}");
        let ready = Phase::Ready { since: s(25), misses: 0 };
        assert_eq!(at(&mut notifier, 25, ready), "READY=1");
        assert_eq!(at(&mut notifier, 26, ready), "");
        // A restart inside is no new start of the service, and no stop.
        let failed = Phase::Stopping {
            failure: Some(Failure::DiedServing),
            was_ready: true,
            step: StopStep::Asked,
            deadline: s(42),
        };
        assert_eq!(at(&mut notifier, 40, failed), "EXTEND_TIMEOUT_USEC=62000000");
        assert_eq!(at(&mut notifier, 90, ready), "");
        let asked =
            Phase::Stopping { failure: None, was_ready: true, step: StopStep::Asked, deadline: s(140) };
        assert_eq!(at(&mut notifier, 100, asked), "STOPPING=1\nEXTEND_TIMEOUT_USEC=100000000");
        assert_eq!(at(&mut notifier, 101, Phase::Ended(Outcome::Stopped { was_ready: true })), "");
    }

    #[test]
    fn a_launch_that_gave_up_says_that_it_stops() {
        let mut notifier = Notifier::new(None);
        let ended = Phase::Ended(Outcome::Failed(Failure::DiedServing));
        assert!(at(&mut notifier, 1, ended).starts_with("STOPPING=1"));
    }

    #[test]
    fn the_watchdog_is_fed_twice_an_interval_while_the_engine_is_well() {
        let mut notifier = Notifier::new(Some(s(60)));
        let ready = |misses| Phase::Ready { since: s(0), misses };
        assert!(at(&mut notifier, 0, ready(0)).contains("WATCHDOG=1"));
        assert!(!at(&mut notifier, 29, ready(0)).contains("WATCHDOG=1"));
        assert!(at(&mut notifier, 30, ready(0)).contains("WATCHDOG=1"));
        assert!(!at(&mut notifier, 70, ready(1)).contains("WATCHDOG=1"), "its health is in doubt");
        // While it is being restarted the service lives.
        assert!(at(&mut notifier, 71, starting(71)).contains("WATCHDOG=1"));
    }

    #[test]
    fn a_status_is_one_short_line_and_a_watchdog_of_another_process_is_not_ours() {
        assert_eq!(status_line("a\nb\u{1b}[31mc"), "a b [31mc");
        assert!(status_line(&"é".repeat(60)).len() <= 80);
        assert_eq!(watchdog_interval(Some("60000000"), None, 7), Some(s(60)));
        assert_eq!(watchdog_interval(Some("60000000"), Some("7"), 7), Some(s(60)));
        assert_eq!(watchdog_interval(Some("60000000"), Some("8"), 7), None);
        assert_eq!(watchdog_interval(Some("0"), None, 7), None);
        assert_eq!(watchdog_interval(Some("soon"), None, 7), None);
    }
}
