//! Typed quantities: no bare integer in kdeploy means bytes or tokens.
//!
//! A leaf room: it knows nothing of the rest, everything may use it.

mod bytes;
mod duration;
mod tokens;

pub use bytes::{Bytes, ParseBytesError};
pub use duration::{ParseDurationError, format_duration, parse_duration};
pub use tokens::{ParseTokensError, Tokens};

/// Rounds a non-negative figure to three significant digits for people, without exponent.
#[must_use]
pub fn three_digits(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 99.95 || magnitude == 0.0 {
        format!("{value:.0}")
    } else if magnitude >= 9.995 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::three_digits;

    #[test]
    fn figures_keep_three_significant_digits() {
        assert_eq!(three_digits(0.0), "0");
        assert_eq!(three_digits(1.234), "1.23");
        assert_eq!(three_digits(62.94), "62.9");
        assert_eq!(three_digits(9.999), "10.0");
        assert_eq!(three_digits(212.4), "212");
    }
}
