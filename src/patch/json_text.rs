//! JSON as text with places: what an edit must know so that every byte outside it stays.
//!
//! A value tree would write numbers anew (`1e-05`, `-0.0`, integers beyond 64 bits) and lose the
//! layout; here a value is only a range of the text.

use std::ops::Range;

use serde_json::Value;

/// Why a text cannot be edited.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonTextError {
    /// Not UTF-8.
    #[error("it is not UTF-8 text: the first wrong byte is at {at}")]
    NotUtf8 {
        /// Offset of the byte.
        at: usize,
    },
    /// The engine's JSON reader refuses a byte order mark.
    #[error("it starts with a byte order mark, which vLLM's JSON reader refuses")]
    ByteOrderMark,
    /// Larger than any real one.
    #[error("it has {bytes} bytes, more than the {MAX_TEXT_BYTES} that any real one has")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Not JSON, or nested too deeply.
    #[error("it is not JSON: {0}")]
    NotJson(String),
}

/// Largest text that is edited.
pub const MAX_TEXT_BYTES: usize = 16 << 20;

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    /// Bytes of the value.
    pub span: Range<usize>,
    pub kind: NodeKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NodeKind {
    Object(Vec<Member>),
    Array(Vec<Node>),
    /// Text, number, true, false, null.
    Scalar,
}

/// One entry of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    /// The key without quotes and escapes.
    pub key: String,
    /// Where the key begins, its quote included.
    pub start: usize,
    pub value: Node,
}

/// Checks bytes and gives them as text and as a value.
///
/// # Errors
/// When they are too many, not UTF-8, start with a byte order mark, or are not JSON.
pub fn read_json(bytes: &[u8]) -> Result<(&str, Value), JsonTextError> {
    if bytes.len() > MAX_TEXT_BYTES {
        return Err(JsonTextError::TooLarge { bytes: bytes.len() });
    }
    if bytes.starts_with(&[0xef, 0xbb, 0xbf]) {
        return Err(JsonTextError::ByteOrderMark);
    }
    let text =
        std::str::from_utf8(bytes).map_err(|error| JsonTextError::NotUtf8 { at: error.valid_up_to() })?;
    // serde_json also bounds the depth (128), so that the scanner below may recurse.
    let value = serde_json::from_str(text).map_err(|error| JsonTextError::NotJson(error.to_string()))?;
    Ok((text, value))
}

/// Places of all values of a text that [`read_json`] accepted.
pub(super) fn places(text: &str) -> Option<Node> {
    let mut scanner = Scanner { text, bytes: text.as_bytes(), at: 0 };
    scanner.value()
}

struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn peek(&mut self) -> Option<u8> {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn value(&mut self) -> Option<Node> {
        let first = self.peek()?;
        let start = self.at;
        let kind = match first {
            b'{' => self.object()?,
            b'[' => self.array()?,
            b'"' => {
                self.string()?;
                NodeKind::Scalar
            }
            _ => {
                let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r');
                let rest = self.bytes.get(self.at..)?;
                self.at += rest.iter().position(ends).unwrap_or(rest.len());
                NodeKind::Scalar
            }
        };
        Some(Node { span: start..self.at, kind })
    }

    fn object(&mut self) -> Option<NodeKind> {
        self.take(b'{')?;
        let mut members = Vec::new();
        while self.peek()? != b'}' {
            if !members.is_empty() {
                self.take(b',')?;
                self.peek()?;
            }
            let start = self.at;
            self.string()?;
            let key = serde_json::from_str(self.text.get(start..self.at)?).ok()?;
            self.take(b':')?;
            members.push(Member { key, start, value: self.value()? });
        }
        self.take(b'}')?;
        Some(NodeKind::Object(members))
    }

    fn array(&mut self) -> Option<NodeKind> {
        self.take(b'[')?;
        let mut items = Vec::new();
        while self.peek()? != b']' {
            if !items.is_empty() {
                self.take(b',')?;
            }
            items.push(self.value()?);
        }
        self.take(b']')?;
        Some(NodeKind::Array(items))
    }

    /// Passes over a string, from its first quote to behind its last.
    fn string(&mut self) -> Option<()> {
        self.take(b'"')?;
        loop {
            match self.bytes.get(self.at)? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some(())
    }
}
