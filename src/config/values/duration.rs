//! Durations as Go writes them.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A span of time as Go's `time.ParseDuration` takes it, such as `1m30s` or `500ms`.
///
/// The flags and the configuration file of kube-proxy use this form. It may be negative, like Go's; no option takes
/// one that is, which is for [`duration`](Self::duration) to tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration {
    nanoseconds: i64,
}

/// The text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDuration {
    /// It isn't made of numbers with units.
    #[error("{0:?} is no duration: expected something like 30s, 1m30s or 500ms")]
    Malformed(String),
    /// Go holds at most 292 years.
    #[error("{0:?} is too long")]
    TooLong(String),
}

impl GoDuration {
    /// A duration of whole seconds.
    pub(in crate::config) const fn from_seconds(seconds: u32) -> Self {
        Self { nanoseconds: seconds as i64 * 1_000_000_000 }
    }

    /// A duration of nanoseconds, which may be negative.
    pub(in crate::config) const fn from_nanoseconds(nanoseconds: i64) -> Self {
        Self { nanoseconds }
    }

    /// The duration, unless it is negative.
    pub(crate) fn duration(self) -> Option<Duration> {
        u64::try_from(self.nanoseconds).ok().map(Duration::from_nanos)
    }
}

/// Go's units in nanoseconds. A longer unit stands before its prefix: `ms` before `m`.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl FromStr for GoDuration {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unsigned = text.strip_prefix('+').or(text.strip_prefix('-')).unwrap_or(text);
        let nanoseconds = nanoseconds(unsigned, text)?;
        Ok(Self { nanoseconds: if text.starts_with('-') { -nanoseconds } else { nanoseconds } })
    }
}

/// The sum of the terms; `whole` is what the errors quote.
fn nanoseconds(mut rest: &str, whole: &str) -> Result<i64, InvalidDuration> {
    if rest == "0" {
        return Ok(0);
    }
    let malformed = || InvalidDuration::Malformed(whole.to_owned());
    let too_long = || InvalidDuration::TooLong(whole.to_owned());
    if rest.is_empty() {
        return Err(malformed());
    }
    let mut sum = 0i64;
    while !rest.is_empty() {
        let (integer, after) = digits(rest);
        let (fraction, after) = after.strip_prefix('.').map_or(("", after), digits);
        if integer.is_empty() && fraction.is_empty() {
            return Err(malformed());
        }
        let (after, unit) = UNITS
            .iter()
            .find_map(|(name, unit)| Some((after.strip_prefix(name)?, *unit)))
            .ok_or_else(malformed)?;
        let term =
            integer_part(integer, unit).and_then(|term| term.checked_add(fraction_part(fraction, unit)));
        sum = term.and_then(|term| sum.checked_add_unsigned(term)).ok_or_else(too_long)?;
        rest = after;
    }
    Ok(sum)
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

fn integer_part(digits: &str, unit: u64) -> Option<u64> {
    digits
        .bytes()
        .try_fold(0u64, |value, digit| value.checked_mul(10)?.checked_add(u64::from(digit - b'0')))?
        .checked_mul(unit)
}

/// Digit by digit, each worth a tenth of the one before, so that nothing is lost to floating point.
fn fraction_part(digits: &str, unit: u64) -> u64 {
    let mut worth = unit;
    digits.bytes().fold(0, |value, digit| {
        worth /= 10;
        value + u64::from(digit - b'0') * worth
    })
}

/// As Go writes it: `1h0m0s`, `1m30s`, `1.5s`, `500ms`, `0s`.
impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanoseconds < 0 {
            f.write_str("-")?;
        }
        let nanoseconds = self.nanoseconds.unsigned_abs();
        match nanoseconds {
            0 => return f.write_str("0s"),
            1..1_000 => return write!(f, "{nanoseconds}ns"),
            1_000..1_000_000 => return decimal(f, nanoseconds, 1_000, "\u{b5}s"),
            1_000_000..1_000_000_000 => return decimal(f, nanoseconds, 1_000_000, "ms"),
            _ => {}
        }
        let minutes = nanoseconds / 60_000_000_000;
        if minutes >= 60 {
            write!(f, "{}h", minutes / 60)?;
        }
        if minutes > 0 {
            write!(f, "{}m", minutes % 60)?;
        }
        decimal(f, nanoseconds % 60_000_000_000, 1_000_000_000, "s")
    }
}

/// `nanoseconds` in a unit of so many, with as many digits after the point as it takes.
fn decimal(f: &mut fmt::Formatter<'_>, nanoseconds: u64, unit: u64, name: &str) -> fmt::Result {
    write!(f, "{}", nanoseconds / unit)?;
    let digits = unit.ilog10() as usize;
    let fraction = format!("{:0digits$}", nanoseconds % unit);
    let fraction = fraction.trim_end_matches('0');
    if !fraction.is_empty() {
        write!(f, ".{fraction}")?;
    }
    f.write_str(name)
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Duration, InvalidDuration> {
        text.parse().map(|duration: GoDuration| duration.duration().unwrap())
    }

    #[test]
    fn durations_read_as_go_reads_them() {
        for (text, milliseconds) in [
            ("0", 0),
            ("0s", 0),
            ("-0s", 0),
            ("30s", 30_000),
            ("+30s", 30_000),
            ("500ms", 500),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("1.s", 1000),
            ("24h0m0s", 86_400_000),
            ("1000\u{b5}s", 1),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
    }

    #[test]
    fn what_go_refuses_is_refused() {
        for text in ["", "30", "s", ".s", "1x", "1m30", "- 1s", "1 s", "one second", "+", "0.0"] {
            assert_eq!(parse(text), Err(InvalidDuration::Malformed(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn a_negative_duration_is_none_to_us() {
        assert_eq!("-1s".parse::<GoDuration>().map(GoDuration::duration), Ok(None));
    }

    #[test]
    fn durations_are_written_as_go_writes_them() {
        for text in [
            "0s",
            "1ns",
            "1.1\u{b5}s",
            "2.2ms",
            "500ms",
            "3.3s",
            "4m5s",
            "4m5.001s",
            "5h6m7.001s",
            "24h0m0s",
            "8m0.000000001s",
            "-1m0s",
            "2562047h47m16.854775807s",
        ] {
            assert_eq!(text.parse::<GoDuration>().unwrap().to_string(), text);
        }
        assert_eq!("90m".parse::<GoDuration>().unwrap().to_string(), "1h30m0s");
    }

    #[test]
    fn a_duration_beyond_go_s_range_is_refused() {
        for text in ["2562048h", "99999999999999999999s", "9223372036s1h"] {
            assert_eq!(parse(text), Err(InvalidDuration::TooLong(text.to_owned())), "{text}");
        }
    }
}
