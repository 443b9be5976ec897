//! Values as Go and kube-proxy write them, in flags and in the file.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    time::Duration,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A span of time as Go's `time.ParseDuration` takes it, such as `1m30s` or `500ms`.
///
/// The flags and the configuration file of kube-proxy use this form. It may be negative, like Go's;
/// [`duration`](Self::duration) refuses that, as every option does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration {
    nanoseconds: i64,
}

/// The text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDuration {
    /// The text is not made of numbers with units.
    #[error("invalid duration {0:?}: expected for example 30s, 1m30s or 500ms")]
    Malformed(String),
    /// Go holds at most 292 years.
    #[error("invalid duration {0:?}: expected at most 292 years")]
    TooLong(String),
}

impl GoDuration {
    /// A duration of whole seconds.
    pub(super) const fn from_seconds(seconds: u32) -> Self {
        Self { nanoseconds: seconds as i64 * 1_000_000_000 }
    }

    /// A duration of nanoseconds, which may be negative.
    pub(super) const fn from_nanoseconds(nanoseconds: i64) -> Self {
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

/// When IPVS forgets an idle TCP connection. `auto` is ours: kube-proxy knows only durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TcpTimeout {
    /// After this time; zero leaves the kernel's value.
    After(GoDuration),
    /// When conntrack does.
    Auto,
}

const AUTO: &str = "auto";

impl Default for TcpTimeout {
    fn default() -> Self {
        Self::After(GoDuration::default())
    }
}

impl FromStr for TcpTimeout {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, InvalidDuration> {
        if text == AUTO { Ok(Self::Auto) } else { text.parse().map(Self::After) }
    }
}

impl fmt::Display for TcpTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::After(duration) => duration.fmt(f),
            Self::Auto => f.write_str(AUTO),
        }
    }
}

impl<'de> Deserialize<'de> for TcpTimeout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for TcpTimeout {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Whether `spec.externalIPs` are served; on unless it is switched off (KEP-5707).
const EXTERNAL_IPS: &str = "AllowServiceExternalIPs";

/// Features that are switched on and off by name: the flag `--feature-gates`, the field `featureGates`.
///
/// Gates come and go with every release of Kubernetes and most do not concern this program, so there is no
/// list of those that exist: any other gate is named in a warning, whereas kube-proxy refuses it unless that
/// very release knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FeatureGates(BTreeMap<String, bool>);

/// The text is not a list of gates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidGates {
    /// A gate without a value.
    #[error("invalid feature gate {0:?}: expected NAME=true or NAME=false")]
    Malformed(String),
    /// A value that is not a boolean.
    #[error("invalid value {value:?} of the feature gate {name}: expected true or false")]
    Value {
        /// The gate.
        name: String,
        /// What it is set to.
        value: String,
    },
}

impl FeatureGates {
    /// All gates in one list; of a gate that is set twice the last counts.
    pub(super) fn merged<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        Self(all.flat_map(|gates| gates.0.clone()).collect())
    }

    /// The gates that were given, and whether they are on.
    pub(super) fn given(&self) -> impl Iterator<Item = (&str, bool)> {
        self.0.iter().map(|(name, on)| (name.as_str(), *on))
    }

    /// Whether `spec.externalIPs` are served.
    pub(super) fn external_ips(&self) -> bool {
        self.0.get(EXTERNAL_IPS).copied().unwrap_or(true)
    }

    /// Removes and returns the gates that do nothing here.
    pub(super) fn take_ignored(&mut self) -> Vec<String> {
        let ignored = self.ignored().map(str::to_owned).collect();
        self.0.retain(|name, _| name == EXTERNAL_IPS);
        ignored
    }

    /// The gates that do nothing here.
    pub(super) fn ignored(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str).filter(|name| *name != EXTERNAL_IPS)
    }
}

impl FromStr for FeatureGates {
    type Err = InvalidGates;

    fn from_str(list: &str) -> Result<Self, Self::Err> {
        list.split(',').filter(|gate| !gate.is_empty()).map(gate).collect::<Result<_, _>>().map(Self)
    }
}

fn gate(text: &str) -> Result<(String, bool), InvalidGates> {
    let (name, value) = text.split_once('=').ok_or_else(|| InvalidGates::Malformed(text.to_owned()))?;
    let (name, value) = (name.trim().to_owned(), value.trim());
    match switch(value) {
        Ok(on) => Ok((name, on)),
        Err(_) => Err(InvalidGates::Value { name, value: value.to_owned() }),
    }
}

/// A boolean as Go's `strconv.ParseBool` takes it.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

/// An address with a port at which health or metrics are served. An empty one means that they are not served,
/// which only a flag can ask for: in a file it is the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct ListenAddress(pub(super) String);

impl ListenAddress {
    /// The address with this port, if it has none. What is not an address stays as it is, to be refused
    /// later.
    pub(super) fn with_port(&self, port: u16) -> Self {
        Self(match self.0.parse::<IpAddr>() {
            Ok(address) => SocketAddr::new(address, port).to_string(),
            Err(_) => self.0.clone(),
        })
    }

    /// Whether nothing is served.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A duration that older files give as a number of nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct FlushFrequency(pub(super) GoDuration);

impl<'de> Deserialize<'de> for FlushFrequency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a duration such as 5s, or a number of nanoseconds")]
        enum Given {
            Duration(GoDuration),
            Nanoseconds(i64),
        }

        Ok(Self(match Given::deserialize(deserializer)? {
            Given::Duration(duration) => duration,
            Given::Nanoseconds(number) => GoDuration::from_nanoseconds(number),
        }))
    }
}

/// A size such as `64Ki`, or a number. Nothing here has a buffer of that size, so it is kept as it is
/// written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct Quantity(pub(super) String);

impl Default for Quantity {
    fn default() -> Self {
        Self("0".to_owned())
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a size such as 64Ki")]
        enum Given {
            Text(String),
            Number(i64),
        }

        Ok(Self(match Given::deserialize(deserializer)? {
            Given::Text(text) => text,
            Given::Number(number) => number.to_string(),
        }))
    }
}

#[cfg(test)]
impl From<BTreeMap<String, bool>> for FeatureGates {
    fn from(gates: BTreeMap<String, bool>) -> Self {
        Self(gates)
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

    fn external_ips(lists: &[&str]) -> bool {
        let gates: Vec<FeatureGates> = lists.iter().map(|list| list.parse().unwrap()).collect();
        FeatureGates::merged(gates.iter()).external_ips()
    }

    #[test]
    fn external_ips_are_served_unless_their_gate_is_off() {
        assert!(external_ips(&[]));
        assert!(external_ips(&[""]));
        assert!(external_ips(&["AllAlpha=false,AllBeta=false"]));
        assert!(!external_ips(&["Other=true, AllowServiceExternalIPs = F ,"]));
        assert!(!external_ips(&["AllowServiceExternalIPs=0", "Other=1"]));
    }

    #[test]
    fn of_a_gate_that_is_set_twice_the_last_counts() {
        assert!(external_ips(&["AllowServiceExternalIPs=false,AllowServiceExternalIPs=true"]));
        assert!(!external_ips(&["AllowServiceExternalIPs=true", "AllowServiceExternalIPs=false"]));
    }

    #[test]
    fn what_is_not_a_gate_with_a_switch_is_refused() {
        assert_eq!("A=true,B".parse::<FeatureGates>(), Err(InvalidGates::Malformed("B".to_owned())));
        for (list, value) in [("B=yes", "yes"), ("B=", ""), ("A=true,B=1=1", "1=1")] {
            let expected = InvalidGates::Value { name: "B".to_owned(), value: value.to_owned() };
            assert_eq!(list.parse::<FeatureGates>(), Err(expected), "{list}");
        }
    }
}
