//! When a serving engine is asked for one token.
//!
//! `/health` says 200 as long as the engine's process exists, also when it hangs (vllm-process.md 6).
//! Work that gets done proves more than any question, so a question is asked only when nothing was
//! done for a while.

use std::time::Duration;

/// Watches the counters of work done. Times are since the launch began.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IdleWatch {
    after: Option<Duration>,
    since: Duration,
    work: Option<f64>,
    looking: bool,
}

impl IdleWatch {
    /// A watch that looks whenever `after` has passed since work was last seen; `None` never looks.
    #[must_use]
    pub const fn new(after: Option<Duration>, now: Duration) -> Self {
        Self { after, since: now, work: None, looking: false }
    }

    /// Is it time to look?
    #[must_use]
    pub fn is_due(&self, now: Duration) -> bool {
        !self.looking && self.after.is_some_and(|after| now.saturating_sub(self.since) >= after)
    }

    /// A look begins; returns what the counters said at the last one.
    pub const fn look(&mut self) -> Option<f64> {
        self.looking = true;
        self.work
    }

    /// The look is over and the engine works: its counters say `work`.
    pub const fn worked(&mut self, now: Duration, work: Option<f64>) {
        self.looking = false;
        self.since = now;
        self.work = work;
    }
}

/// Was nothing done between two looks? Counters that are missing prove nothing, so the engine is asked.
#[must_use]
pub fn is_idle(before: Option<f64>, after: Option<f64>) -> bool {
    match (before, after) {
        // Exact on purpose: a counter that did not move prints the same digits.
        (Some(before), Some(after)) => before.total_cmp(&after).is_eq(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::{IdleWatch, is_idle};
    use std::time::Duration;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn it_looks_again_only_after_the_pause_and_never_twice_at_once() {
        let mut watch = IdleWatch::new(Some(s(30)), s(100));
        assert!(!watch.is_due(s(129)) && watch.is_due(s(130)));
        assert_eq!(watch.look(), None);
        assert!(!watch.is_due(s(500)), "one look at a time");
        watch.worked(s(140), Some(7.0));
        assert!(!watch.is_due(s(169)) && watch.is_due(s(170)));
        assert_eq!(watch.look(), Some(7.0));
        assert!(!IdleWatch::new(None, s(0)).is_due(s(100_000)));
    }

    #[test]
    fn work_is_proven_by_counters_that_moved() {
        assert!(is_idle(Some(7.0), Some(7.0)) && is_idle(None, Some(7.0)) && is_idle(Some(7.0), None));
        assert!(!is_idle(Some(7.0), Some(8.0)) && !is_idle(Some(7.0), Some(0.0)), "a restart counts");
    }
}
