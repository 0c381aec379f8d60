//! Amounts of memory and file sizes.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An amount of memory or a file size in bytes. Printed in binary units (GiB, MiB, KiB), always
/// labelled; arithmetic is checked or saturating, never wrapping.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Bytes(u64);

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

impl Bytes {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// Wraps a plain count of bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// `n` GiB (2^30 bytes each), saturating.
    #[must_use]
    pub const fn from_gib(n: u64) -> Self {
        Self(n.saturating_mul(GIB))
    }

    /// `n` MiB (2^20 bytes each), saturating.
    #[must_use]
    pub const fn from_mib(n: u64) -> Self {
        Self(n.saturating_mul(MIB))
    }

    /// The plain count.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// For display only; decisions stay in integers.
    #[must_use]
    pub fn as_gib_f64(self) -> f64 {
        self.0 as f64 / GIB as f64
    }

    /// Sum, or `None` when it does not fit in 64 bits.
    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// Difference, or `None` when `other` is larger.
    #[must_use]
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(rest) => Some(Self(rest)),
            None => None,
        }
    }

    /// Difference, zero when `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Product with a plain count, or `None` when it does not fit in 64 bits.
    #[must_use]
    pub const fn checked_mul(self, count: u64) -> Option<Self> {
        match self.0.checked_mul(count) {
            Some(product) => Some(Self(product)),
            None => None,
        }
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, |sum, next| Self(sum.0.saturating_add(next.0)))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            n if n >= TIB => (TIB, "TiB"),
            n if n >= GIB => (GIB, "GiB"),
            n if n >= MIB => (MIB, "MiB"),
            n if n >= KIB => (KIB, "KiB"),
            n => return f.pad(&format!("{n} B")),
        };
        f.pad(&format!("{} {name}", super::three_digits(self.0 as f64 / unit as f64)))
    }
}

/// Why a size could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{given}` is not a size; write a whole number with an optional unit, such as `24GiB`, `24GB` or `512MiB`"
)]
pub struct ParseBytesError {
    given: String,
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    /// Reads `24GiB` and `24G` (binary), `24GB` (decimal), or plain bytes. Fractions such as
    /// `1.5GiB` are taken exactly, to the byte below.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseBytesError { given: text.to_owned() };
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => KIB,
            "m" | "mib" => MIB,
            "g" | "gib" => GIB,
            "t" | "tib" => TIB,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(fail()),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || fraction.len() > 9 || fraction.contains('.') {
            return Err(fail());
        }
        let whole: u64 = whole.parse().map_err(|_| fail())?;
        let mut bytes = whole.checked_mul(factor).ok_or_else(fail)?;
        if !fraction.is_empty() {
            let part: u128 = fraction.parse().map_err(|_| fail())?;
            let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| fail())?);
            let extra = u64::try_from(part * u128::from(factor) / scale).map_err(|_| fail())?;
            bytes = bytes.checked_add(extra).ok_or_else(fail)?;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::Bytes;

    #[test]
    fn units_are_told_apart() {
        assert_eq!("24GiB".parse(), Ok(Bytes::from_gib(24)));
        assert_eq!("24G".parse(), Ok(Bytes::from_gib(24)));
        assert_eq!("24GB".parse(), Ok(Bytes::new(24_000_000_000)));
        assert_eq!("1.5 GiB".parse(), Ok(Bytes::from_mib(1536)));
        assert_eq!("17".parse(), Ok(Bytes::new(17)));
        for bad in ["", "GiB", "-1", "1..5G", "24 parsecs", "99999999999T", "1.0000000000G"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad} was taken");
        }
    }

    #[test]
    fn display_is_labelled_and_short() {
        assert_eq!(Bytes::new(512).to_string(), "512 B");
        assert_eq!(Bytes::from_mib(257).to_string(), "257 MiB");
        assert_eq!(Bytes::new(1_610_612_736).to_string(), "1.50 GiB");
    }

    #[test]
    fn arithmetic_does_not_wrap() {
        assert_eq!(Bytes::new(u64::MAX).checked_add(Bytes::new(1)), None);
        assert_eq!(Bytes::new(1).checked_sub(Bytes::new(2)), None);
        assert_eq!(Bytes::new(1).saturating_sub(Bytes::new(2)), Bytes::ZERO);
        assert_eq!(Bytes::from_gib(1).checked_mul(u64::MAX), None);
    }
}
