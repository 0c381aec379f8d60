//! Which lines of an engine's log a reader wants: by level and by rank.

use std::str::FromStr;

use super::line::LogLine;

/// Levels of vLLM's records, ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// `DEBUG`.
    Debug,
    /// `INFO`.
    Info,
    /// `WARNING`.
    Warning,
    /// `ERROR`.
    Error,
    /// `CRITICAL`.
    Critical,
}

/// Why a level could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no level; write debug, info, warning, error or critical")]
pub struct ParseLevelError {
    given: String,
}

impl FromStr for LogLevel {
    type Err = ParseLevelError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "debug" => Self::Debug,
            "info" => Self::Info,
            "warning" | "warn" => Self::Warning,
            "error" => Self::Error,
            "critical" => Self::Critical,
            _ => return Err(ParseLevelError { given: text.chars().take(40).collect() }),
        })
    }
}

/// Passes lines of at least a level and of one rank. A line without level or role (a traceback, a
/// bar) belongs to the record before it.
#[derive(Debug, Clone, Default)]
pub struct LogFilter {
    level: Option<LogLevel>,
    rank: Option<u32>,
    last_level: bool,
    last_rank: bool,
}

impl LogFilter {
    /// A filter; `None` lets everything pass.
    #[must_use]
    pub const fn new(level: Option<LogLevel>, rank: Option<u32>) -> Self {
        Self { level, rank, last_level: false, last_rank: false }
    }

    /// Does it let everything pass?
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.level.is_none() && self.rank.is_none()
    }

    /// Is this line wanted? Lines come in their order.
    pub fn passes(&mut self, line: &str) -> bool {
        let parsed = LogLine::parse(line);
        if let Some(role) = parsed.role {
            self.last_rank = self.rank.is_none_or(|rank| rank_of(role) == Some(rank));
        }
        if let Some(level) =
            parsed.level.or_else(|| uvicorn_level(line)).and_then(|level| level.parse::<LogLevel>().ok())
        {
            self.last_level = self.level.is_none_or(|least| level >= least);
        }
        (self.level.is_none() || self.last_level) && (self.rank.is_none() || self.last_rank)
    }
}

/// uvicorn writes `INFO:     text`.
fn uvicorn_level(line: &str) -> Option<&str> {
    let (word, _) = line.split_once(": ")?;
    word.chars().all(|c| c.is_ascii_uppercase()).then_some(word)
}

/// Rank of a worker's role: `Worker` alone is rank 0, `VllmWorker-3` rank 3, otherwise the tensor
/// parallel part of the name (`Worker_PP0_TP1` is rank 1 of its stage).
fn rank_of(role: &str) -> Option<u32> {
    let name = role.strip_prefix("VllmWorker").or_else(|| role.strip_prefix("Worker"))?;
    if name.is_empty() {
        return Some(0);
    }
    if let Some(number) = name.strip_prefix('-') {
        return number.parse().ok();
    }
    name.split('_').find_map(|part| part.strip_prefix("TP")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::{LogFilter, LogLevel};

    const LOG: &[&str] = &[
        "(APIServer pid=1) INFO 12-01 05:09:50 [model.py:733] Resolved",
        "(Worker_TP0 pid=2) INFO 12-01 05:09:50 [a.py:1] zero",
        "(Worker_TP1 pid=3) ERROR 12-01 05:09:50 [a.py:1] one",
        "Traceback of one",
        "(Worker_TP1 pid=3) WARNING 12-01 05:09:50 [a.py:1] warned",
        "INFO:     Started server process [1]",
    ];

    fn kept(level: Option<&str>, rank: Option<u32>) -> Vec<&'static str> {
        let mut filter = LogFilter::new(level.map(|level| level.parse().expect(level)), rank);
        LOG.iter().copied().filter(|line| filter.passes(line)).collect()
    }

    #[test]
    fn levels_and_ranks_are_picked_with_what_follows_them() {
        assert_eq!(kept(None, None), LOG);
        assert_eq!(kept(Some("warning"), None), LOG[2..5]);
        assert_eq!(kept(Some("ERROR"), None), LOG[2..4]);
        assert_eq!(kept(None, Some(1)), LOG[2..6]);
        assert_eq!(kept(Some("error"), Some(0)), Vec::<&str>::new());
        assert!("loud".parse::<LogLevel>().is_err() && LogLevel::Error > LogLevel::Info);
    }
}
