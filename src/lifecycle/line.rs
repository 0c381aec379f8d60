//! Bytes of the engine's output to lines, and a line to its parts.

use std::sync::LazyLock;

use regex::Regex;

/// Longest line that is looked at; the rest of a longer one is skipped (the raw log keeps it).
pub const MAX_LINE: usize = 64 * 1024;

/// Splits a byte stream on `\n` and `\r` (progress bars redraw with `\r`), decodes lossily, caps
/// each line at [`MAX_LINE`]. Memory is bounded whatever comes.
#[derive(Debug)]
pub struct LineSplitter {
    partial: Vec<u8>,
    /// Number of the line that `partial` began on, counted as editors count: by `\n`, from 1.
    number: u64,
}

impl Default for LineSplitter {
    fn default() -> Self {
        Self { partial: Vec::new(), number: 1 }
    }
}

impl LineSplitter {
    /// Takes the next bytes, hands each completed non-empty line with its number to `each`.
    pub fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(u64, &str)) {
        for piece in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let (body, ended) = match piece.split_last() {
                Some((b'\n' | b'\r', body)) => (body, true),
                _ => (piece, false),
            };
            let room = MAX_LINE.saturating_sub(self.partial.len());
            self.partial.extend(body.iter().take(room));
            if ended {
                self.flush(&mut each);
            }
            if piece.last() == Some(&b'\n') {
                self.number += 1;
            }
        }
    }

    /// The stream has ended: hands over what is left.
    pub fn finish(&mut self, mut each: impl FnMut(u64, &str)) {
        self.flush(&mut each);
    }

    fn flush(&mut self, each: &mut impl FnMut(u64, &str)) {
        if !self.partial.is_empty() {
            each(self.number, &String::from_utf8_lossy(&self.partial));
            self.partial.clear();
        }
    }
}

/// A log line taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine<'a> {
    /// Role in the prefix: `APIServer`, `EngineCore`, `Worker_TP0`; `None` without prefix.
    pub role: Option<&'a str>,
    /// `INFO`, `WARNING`, `ERROR`, …; `None` for native output and tracebacks' inner lines.
    pub level: Option<&'a str>,
    /// The message without decoration.
    pub message: &'a str,
}

/// `(Worker_TP0 pid=12) INFO 12-01 05:09:50 [file.py:1] message`, with any part missing
/// (vLLM 0.8 – 0.32; vllm/logger.py).
static PREFIX: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(concat!(
        r"^(?:\((?P<role>[A-Za-z]\w*(?:-\d+)?) (?:rank=\d+ )?pid=\d+(?:, ip=[^)]*)?\) ?)*",
        r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]*\]|\S+:\d+\]) ?)?",
    ))
    .ok()
});

impl<'a> LogLine<'a> {
    /// Takes a line apart; colour codes must be gone already (vLLM writes none into a pipe).
    #[must_use]
    pub fn parse(line: &'a str) -> Self {
        let Some(found) = PREFIX.as_ref().and_then(|prefix| prefix.captures(line)) else {
            return Self { role: None, level: None, message: line };
        };
        let end = found.get(0).map_or(0, |whole| whole.end());
        Self {
            role: found.name("role").map(|role| role.as_str()),
            level: found.name("level").map(|level| level.as_str()),
            message: line.get(end..).unwrap_or(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LineSplitter, LogLine, MAX_LINE};
    use proptest::prelude::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let mut splitter = LineSplitter::default();
        let mut out = Vec::new();
        for chunk in chunks {
            splitter.feed(chunk, |_, line| out.push(line.to_owned()));
        }
        splitter.finish(|_, line| out.push(line.to_owned()));
        out
    }

    #[test]
    fn bars_and_records_are_told_apart() {
        let bar = b"\rLoading: 0%\n\rLoading: 100%\r\n(Worker pid=1) INFO x\r\n";
        assert_eq!(lines(&[bar]), ["Loading: 0%", "Loading: 100%", "(Worker pid=1) INFO x"]);
    }

    #[test]
    fn numbers_are_those_of_an_editor() {
        let mut splitter = LineSplitter::default();
        let mut out = Vec::new();
        splitter.feed(b"a\n\rbar 0%\rbar 1%\nb\n\nc", |number, line| out.push((number, line.to_owned())));
        splitter.finish(|number, line| out.push((number, line.to_owned())));
        let expected = [(1, "a"), (2, "bar 0%"), (2, "bar 1%"), (3, "b"), (5, "c")];
        assert_eq!(out, expected.map(|(number, line)| (number, line.to_owned())));
    }

    #[test]
    fn hostile_bytes_stay_bounded() {
        let long = vec![b'x'; 3 * MAX_LINE];
        let got = lines(&[&long, b"\nnext \xff\xfe\0 end\n"]);
        assert_eq!(got.len(), 2);
        assert_eq!(got[0].len(), MAX_LINE);
        assert_eq!(got[1], "next \u{fffd}\u{fffd}\0 end");
    }

    #[test]
    fn prefixes_of_all_versions_come_off() {
        let table = [
            (
                "(APIServer pid=7852) INFO 12-01 05:09:50 [model.py:733] Resolved",
                Some("APIServer"),
                Some("INFO"),
                "Resolved",
            ),
            (
                "(VllmWorker-0 pid=86) WARNING 12-01 05:10:24 [vllm.py:725] M",
                Some("VllmWorker-0"),
                Some("WARNING"),
                "M",
            ),
            (
                "(VllmWorker rank=2 pid=229) ERROR 07-12 10:00:00 [core.py:1510] M",
                Some("VllmWorker"),
                Some("ERROR"),
                "M",
            ),
            (
                "(Worker pid=1) (Worker_TP1 pid=1) INFO 12-01 05:10:24 [a.py:1] M",
                Some("Worker_TP1"),
                Some("INFO"),
                "M",
            ),
            ("ERROR 07-12 10:00:00 engine.py:400] M", None, Some("ERROR"), "M"),
            (
                "(EngineCore pid=8) Traceback (most recent call last):",
                Some("EngineCore"),
                None,
                "Traceback (most recent call last):",
            ),
            (
                "INFO:     Started server process [11825]",
                None,
                None,
                "INFO:     Started server process [11825]",
            ),
        ];
        for (line, role, level, message) in table {
            assert_eq!(LogLine::parse(line), LogLine { role, level, message }, "{line}");
        }
    }

    proptest! {
        #[test]
        fn chunk_borders_do_not_matter(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..400) {
            let cut = cut.min(bytes.len());
            prop_assert_eq!(lines(&[&bytes]), lines(&[&bytes[..cut], &bytes[cut..]]));
        }
    }
}
