//! Server-sent events, sans-IO: bytes in, data out.
//!
//! Follows the WHATWG rules: a line ends with LF, CR LF or CR; one space after the colon is dropped;
//! lines that start with a colon are comments; several data lines join with a line feed; an event
//! that the stream's end cuts off is not dispatched.

/// Decodes a stream of server-sent events. Memory is bounded by the longest line it was allowed.
#[derive(Debug)]
pub struct SseDecoder {
    line: Vec<u8>,
    data: Option<Vec<u8>>,
    limit: usize,
    at_start: bool,
    after_cr: bool,
}

/// Why a stream cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an event is longer than {limit} bytes")]
pub struct SseError {
    limit: usize,
}

impl SseDecoder {
    /// A decoder that refuses lines and events longer than `limit` bytes.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self { line: Vec::new(), data: None, limit, at_start: true, after_cr: false }
    }

    /// Takes the next bytes and returns the data of each event they complete. Only `data` fields
    /// count: the API of vLLM names no events.
    ///
    /// # Errors
    /// When a line or an event grows beyond the limit.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<String>, SseError> {
        let mut events = Vec::new();
        for &byte in bytes {
            match byte {
                b'\n' if self.after_cr => self.after_cr = false, // the second half of CR LF
                b'\n' | b'\r' => {
                    self.after_cr = byte == b'\r';
                    self.end_line(&mut events)?;
                }
                _ => {
                    self.after_cr = false;
                    if self.line.len() >= self.limit {
                        return Err(SseError { limit: self.limit });
                    }
                    self.line.push(byte);
                }
            }
        }
        Ok(events)
    }

    /// Did the stream end in the middle of a line or an event?
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        !self.line.is_empty() || self.data.is_some()
    }

    fn end_line(&mut self, events: &mut Vec<String>) -> Result<(), SseError> {
        let mut line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.at_start) && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        if line.is_empty() {
            if let Some(data) = self.data.take() {
                events.push(String::from_utf8_lossy(&data).into_owned());
            }
            return Ok(());
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(at) => {
                let (field, rest) = line.split_at(at);
                let value = rest.get(1..).unwrap_or_default();
                (field, value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line.as_slice(), &[][..]),
        };
        if field == b"data" {
            let data = match &mut self.data {
                Some(data) => {
                    data.push(b'\n');
                    data
                }
                None => self.data.insert(Vec::new()),
            };
            if data.len() + value.len() > self.limit {
                return Err(SseError { limit: self.limit });
            }
            data.extend_from_slice(value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::SseDecoder;
    use proptest::prelude::*;

    fn decode(chunks: &[&[u8]]) -> (Vec<String>, bool) {
        let mut decoder = SseDecoder::new(1 << 20);
        let mut out = Vec::new();
        for chunk in chunks {
            out.extend(decoder.feed(chunk).unwrap());
        }
        (out, decoder.is_cut())
    }

    #[test]
    fn every_legal_spelling_is_read() {
        for (stream, events) in [
            ("data: a\n\ndata: b\n\n", vec!["a", "b"]),
            ("data: a\r\n\r\ndata: b\r\n\r\n", vec!["a", "b"]),
            ("data: a\r\rdata: b\r\r", vec!["a", "b"]),
            ("data:{\"x\":1}\n\n", vec!["{\"x\":1}"]),
            ("data:  two spaces\n\n", vec![" two spaces"]),
            ("\u{feff}data: bom\n\n", vec!["bom"]),
            (": keep-alive\n\ndata: a\n: inside\ndata: b\n\n", vec!["a\nb"]),
            ("event: x\nid: 7\nretry: 10\ndata: a\n\n", vec!["a"]),
            ("data\n\n", vec![""]),
            ("event: no data\n\n", vec![]),
            ("dataset: no\n\n", vec![]),
        ] {
            assert_eq!(
                decode(&[stream.as_bytes()]),
                (events.iter().map(ToString::to_string).collect(), false),
                "{stream:?}"
            );
        }
    }

    #[test]
    fn a_cut_event_is_not_dispatched_but_seen() {
        for stream in ["data: a", "data: a\n"] {
            assert_eq!(decode(&[stream.as_bytes()]), (vec![], true), "{stream:?}");
        }
    }

    #[test]
    fn endless_lines_and_events_are_refused() {
        let mut decoder = SseDecoder::new(100);
        assert!(decoder.feed(&[b'x'; 101]).is_err());
        let mut decoder = SseDecoder::new(100);
        assert!((0..1000).any(|_| decoder.feed(b"data: 0123456789\n").is_err()));
    }

    proptest! {
        #[test]
        fn chunk_borders_do_not_matter(
            parts in proptest::collection::vec(
                prop_oneof![
                    Just("data: "), Just("data:"), Just("x é 漢"), Just("\n"), Just("\r"), Just("\r\n"),
                    Just(":"), Just(": c"), Just("\u{feff}"), Just("event: e"), Just("[DONE]"),
                ],
                0..40,
            ),
            cuts in proptest::collection::vec(0usize..200, 0..6),
        ) {
            let stream: Vec<u8> = parts.concat().into_bytes();
            let whole = decode(&[&stream]);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&stream[from..cut]);
                from = cut;
            }
            pieces.push(&stream[from..]);
            prop_assert_eq!(decode(&pieces), whole);
        }
    }
}
