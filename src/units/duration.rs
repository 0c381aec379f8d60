//! Durations for people: `1m 12s` out, `90s`, `5m`, `1h 30m` in.

use std::time::Duration;

/// Formats a duration with at most two units and three significant digits: `212 ms`, `8.47s`,
/// `1m 12s`, `2h 14m`, `3d 4h`.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 0.001 {
        return format!("{} ms", super::three_digits(seconds * 1e3));
    }
    if seconds < 0.9995 {
        return format!("{} ms", super::three_digits(seconds * 1e3));
    }
    if seconds < 59.95 {
        return format!("{}s", super::three_digits(seconds));
    }
    let whole = duration.as_secs() + u64::from(duration.subsec_millis() >= 500);
    let (days, hours) = (whole / 86_400, whole % 86_400 / 3_600);
    let (minutes, seconds) = (whole % 3_600 / 60, whole % 60);
    match (days, hours, minutes) {
        (0, 0, _) => format!("{minutes}m {seconds:02}s"),
        (0, _, _) => format!("{hours}h {minutes:02}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// Why a duration could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a duration; write a number with a unit, such as `90s`, `15m` or `1h30m`")]
pub struct ParseDurationError {
    given: String,
}

/// Reads `90s`, `1.5s`, `250ms`, `15m`, `1h 30m`, `2d`; a bare number is refused because its unit
/// would be a guess.
///
/// # Errors
/// When the text is empty, has no unit, repeats nonsense, or overflows.
pub fn parse_duration(text: &str) -> Result<Duration, ParseDurationError> {
    let fail = || ParseDurationError { given: text.to_owned() };
    let mut rest = text.trim();
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err(fail());
    }
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).ok_or_else(fail)?;
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let factor = match unit {
            "ms" => 0.001,
            "s" | "sec" | "secs" => 1.0,
            "m" | "min" | "mins" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            _ => return Err(fail()),
        };
        let value: f64 = number.parse().map_err(|_| fail())?;
        let part = Duration::try_from_secs_f64(value * factor).map_err(|_| fail())?;
        total = total.checked_add(part).ok_or_else(fail)?;
        rest = tail.trim_start();
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::{format_duration, parse_duration};
    use std::time::Duration;

    #[test]
    fn prints_two_units_at_most() {
        for (ms, text) in [
            (0, "0 ms"),
            (212, "212 ms"),
            (999, "999 ms"),
            (1_000, "1.00s"),
            (8_470, "8.47s"),
            (59_960, "1m 00s"),
            (72_000, "1m 12s"),
            (8_040_000, "2h 14m"),
            (273_600_000, "3d 4h"),
        ] {
            assert_eq!(format_duration(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn reads_what_people_write() {
        assert_eq!(parse_duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("1h30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(parse_duration("1h 30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        for bad in ["", "10", "s", "1x", "-5s", "1e400s", "99999999999999999999999d"] {
            assert!(parse_duration(bad).is_err(), "{bad} was taken");
        }
    }
}
