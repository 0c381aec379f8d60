//! Headers of safetensors files: names, types and places of tensors, without their bytes.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// Longest header that the format allows.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Bytes in front of the header: its length, little endian.
pub const HEADER_PREFIX: u64 = 8;

/// Why a header cannot be used. The file's path is added by the reader.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsError {
    /// Shorter than the length in front of it.
    #[error("it ends after {found} bytes; its header alone needs {needed}")]
    Torn {
        /// Size of the file.
        found: u64,
        /// What the header needs.
        needed: u64,
    },
    /// The length in front is more than the format allows.
    #[error("offset 0: a header of {length} bytes, more than the format allows ({MAX_HEADER_BYTES})")]
    HeaderTooLong {
        /// What it says.
        length: u64,
    },
    /// The header is no JSON of the right form.
    #[error("offset {offset}: {message}")]
    Json {
        /// Where in the file, as far as is known.
        offset: u64,
        /// What the parser says.
        message: String,
    },
    /// A tensor whose place is not in the file.
    #[error("offset {start}: tensor `{tensor}` ends at {end}, the file at {file_end}")]
    OutOfFile {
        /// Its name.
        tensor: String,
        /// Where it starts in the file.
        start: u64,
        /// Where it ends.
        end: u64,
        /// Where the file ends.
        file_end: u64,
    },
    /// Two tensors share bytes, or bytes belong to none.
    #[error("offset {offset}: {what}")]
    Misplaced {
        /// Where in the file.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// The place of a tensor has another size than its shape.
    #[error("offset {start}: tensor `{tensor}` takes {taken} bytes, its shape and type need {needed}")]
    WrongSize {
        /// Its name.
        tensor: String,
        /// Where it starts in the file.
        start: u64,
        /// Bytes of its place.
        taken: u64,
        /// Bytes of its shape.
        needed: u64,
    },
}

/// One tensor of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// Its name.
    pub name: Cow<'a, str>,
    /// Its type, as written: `BF16`, `F8_E4M3`, `U8`, …
    pub dtype: Cow<'a, str>,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Its bytes.
    pub bytes: u64,
}

#[derive(Deserialize)]
struct RawTensor<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// Parses a header (without the length in front of it) and hands each tensor to `each`.
/// `file_bytes` is the size of the whole file.
///
/// # Errors
/// With the offset in the file when it is torn, overlapping, or a tensor has another size than its
/// shape.
pub fn parse_safetensors_header(
    header: &[u8],
    file_bytes: u64,
    each: impl FnMut(&TensorInfo<'_>),
) -> Result<(), SafetensorsError> {
    let data = HEADER_PREFIX.saturating_add(header.len() as u64);
    let mut collector = Collector { each, places: Vec::new(), data, file_bytes, failed: None };
    let mut json = serde_json::Deserializer::from_slice(header);
    let parsed = json.deserialize_map(&mut collector).and_then(|()| json.end());
    if let Some(error) = collector.failed {
        return Err(error);
    }
    parsed.map_err(|error| SafetensorsError::Json {
        // Headers are one line: the column is the offset.
        offset: HEADER_PREFIX + if error.line() <= 1 { error.column() as u64 } else { 0 },
        message: error.to_string(),
    })?;
    check_places(collector.places, data, file_bytes)
}

struct Collector<F> {
    each: F,
    places: Vec<(u64, u64)>,
    data: u64,
    file_bytes: u64,
    failed: Option<SafetensorsError>,
}

impl<F: FnMut(&TensorInfo<'_>)> Collector<F> {
    fn take(&mut self, name: Cow<'_, str>, raw: RawTensor<'_>) -> Result<(), SafetensorsError> {
        let [start, end] = raw.data_offsets.map(|offset| self.data.saturating_add(offset));
        if start > end || end > self.file_bytes {
            let (tensor, file_end) = (shown(&name), self.file_bytes);
            return Err(SafetensorsError::OutOfFile { tensor, start, end, file_end });
        }
        let taken = end - start;
        if let Some(bits) = bits_of(&raw.dtype) {
            let elements = raw.shape.iter().try_fold(1_u64, |product, size| product.checked_mul(*size));
            let needed = elements.and_then(|n| n.checked_mul(bits)).map_or(u64::MAX, |bits| bits.div_ceil(8));
            if needed != taken {
                return Err(SafetensorsError::WrongSize { tensor: shown(&name), start, taken, needed });
            }
        }
        self.places.push((start, end));
        (self.each)(&TensorInfo { name, dtype: raw.dtype, shape: raw.shape, bytes: taken });
        Ok(())
    }
}

impl<'de, F: FnMut(&TensorInfo<'_>)> Visitor<'de> for &mut Collector<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Name(name)) = map.next_key::<Name<'de>>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let raw = map.next_value::<RawTensor<'de>>()?;
            if let Err(error) = self.take(name, raw) {
                self.failed = Some(error);
                return Err(serde::de::Error::custom("see the error that was kept"));
            }
        }
        Ok(())
    }
}

/// A key that borrows from the header where it can.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Tensors must lie side by side from the header's end to the file's, as the format asks.
fn check_places(mut places: Vec<(u64, u64)>, data: u64, file_bytes: u64) -> Result<(), SafetensorsError> {
    places.sort_unstable();
    let mut reached = data;
    for (start, end) in places {
        if start < reached {
            return Err(SafetensorsError::Misplaced {
                offset: start,
                what: "two tensors share bytes".to_owned(),
            });
        }
        if start > reached {
            let what = format!("{} bytes belong to no tensor", start - reached);
            return Err(SafetensorsError::Misplaced { offset: reached, what });
        }
        reached = end;
    }
    if reached < file_bytes {
        let what = format!("{} bytes at the end belong to no tensor", file_bytes - reached);
        return Err(SafetensorsError::Misplaced { offset: reached, what });
    }
    Ok(())
}

fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(120).collect()
}

/// Bits of one element; `None` for types that are not known here.
fn bits_of(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F64" | "I64" | "U64" | "C64" => 64,
        "F32" | "I32" | "U32" => 32,
        "F16" | "BF16" | "I16" | "U16" => 16,
        "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" | "I8" | "U8" | "BOOL" => 8,
        "F6_E2M3" | "F6_E3M2" => 6,
        "F4" => 4,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{SafetensorsError, parse_safetensors_header};
    use proptest::prelude::*;

    fn parse(header: &str, data: u64) -> Result<Vec<(String, u64)>, SafetensorsError> {
        let mut tensors = Vec::new();
        let file = 8 + header.len() as u64 + data;
        parse_safetensors_header(header.as_bytes(), file, |tensor| {
            tensors.push((tensor.name.to_string(), tensor.bytes))
        })?;
        Ok(tensors)
    }

    #[test]
    fn tensors_are_listed_with_their_bytes() {
        let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},
            "b\u0041":{"dtype":"F4","shape":[3],"data_offsets":[12,14]},"s":{"dtype":"F32","shape":[],"data_offsets":[14,18]},
            "new":{"dtype":"X7","shape":[9],"data_offsets":[18,20]}}   "#;
        let expected =
            [("a", 12), ("bA", 2), ("s", 4), ("new", 2)].map(|(name, bytes)| (name.to_owned(), bytes));
        assert_eq!(parse(header, 20).expect("good"), expected);
        assert!(parse("{}", 0).expect("empty").is_empty());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_offset() {
        let tensor = |name: &str, shape: u64, from: u64, to: u64| {
            format!(r#""{name}":{{"dtype":"U8","shape":[{shape}],"data_offsets":[{from},{to}]}}"#)
        };
        for (header, data, expected) in [
            (format!("{{{}}}", tensor("a", 9, 0, 9)), 8, "tensor `a` ends at"),
            (
                format!("{{{}}}", tensor("a", 4, 0, 8)),
                8,
                "tensor `a` takes 8 bytes, its shape and type need 4",
            ),
            (format!("{{{},{}}}", tensor("a", 8, 0, 8), tensor("b", 4, 4, 8)), 8, "two tensors share bytes"),
            (format!("{{{}}}", tensor("a", 4, 4, 8)), 8, "4 bytes belong to no tensor"),
            (format!("{{{}}}", tensor("a", 4, 0, 4)), 8, "4 bytes at the end belong to no tensor"),
            (format!("{{{}}}", tensor("a", u64::MAX, 0, 8)), 8, "its shape and type need"),
            (format!("{{{}}}", tensor("a", 0, 8, 4)), 8, "tensor `a` ends at"),
            ("{\"a\":{\"dtype\":\"U8\"".to_owned(), 0, "EOF"),
            ("[1]".to_owned(), 0, "an object of tensors"),
            (r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}}"#.to_owned(), 0, "invalid value"),
            ("{} x".to_owned(), 0, "trailing characters"),
        ] {
            let error = parse(&header, data).expect_err(&header).to_string();
            assert!(error.contains(expected) && error.starts_with("offset "), "{header}: {error}");
        }
    }

    proptest! {
        #[test]
        fn hostile_headers_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), file in any::<u64>()) {
            let _ = parse_safetensors_header(&bytes, file, |_| {});
        }
    }
}
