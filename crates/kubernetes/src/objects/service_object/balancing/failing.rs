//! What a Service asks for where endpoints fail or are new.

use std::time::Duration;

use service::{Balancing, Ejection};

use crate::objects::{Problems, field::Quoted, metadata::Annotation};

/// Which failing endpoints are ejected.
pub(super) fn ejection(
    Annotation { at, text }: &Annotation<'_>,
    problems: &mut Problems,
) -> Option<Ejection> {
    let found = text.parse::<Ejection>();
    found.inspect_err(|error| problems.add(at, format_args!("invalid value {}: {error}", Quoted(text)))).ok()
}

/// Whether endpoints answer every datagram.
pub(super) fn answers_datagrams(Annotation { at, text }: &Annotation<'_>, problems: &mut Problems) -> bool {
    match text.trim() {
        "true" => true,
        "false" => false,
        _ => {
            problems.add(at, format_args!("{} is neither true nor false", Quoted(text)));
            false
        }
    }
}

/// How long a new endpoint takes to get all of its weight.
pub(super) fn slow_start(
    Annotation { at, text }: &Annotation<'_>,
    problems: &mut Problems,
) -> Option<Duration> {
    let accepted = Balancing::SHORTEST_SLOW_START..=Balancing::LONGEST_SLOW_START;
    let found = duration(text.trim()).filter(|duration| accepted.contains(duration));
    if found.is_none() {
        problems.add(
            at,
            format_args!(
                "{} is not a duration between {} s and {} s, such as 30s or 2m",
                Quoted(text),
                accepted.start().as_secs(),
                accepted.end().as_secs()
            ),
        );
    }
    found
}

/// A duration as Go writes it, in whole hours, minutes and seconds: `30s`, `1m30s`.
fn duration(mut text: &str) -> Option<Duration> {
    let mut sum = Duration::ZERO;
    loop {
        let (number, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
        let unit = rest.chars().next()?;
        let seconds = match unit {
            'h' => 3_600,
            'm' => 60,
            's' => 1,
            _ => return None,
        };
        sum = sum.checked_add(Duration::from_secs(seconds).checked_mul(number.parse().ok()?)?)?;
        text = rest.strip_prefix(unit)?;
        if text.is_empty() {
            return Some(sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{asked, problems};
    use super::*;

    #[test]
    fn the_failing_endpoints_that_are_ejected_are_named() {
        let ejection = |text: &str| asked(&json!({"kube-ipvs.io/eject": text})).ejection;
        assert_eq!(ejection("silent"), Some(Ejection::SILENT));
        assert_eq!(ejection("refusing"), Some(Ejection::REFUSING));
        assert_eq!(ejection("silent, refusing"), Some(Ejection::all()));
        assert_eq!(ejection("off"), Some(Ejection::empty()), "also where the flag says otherwise");
        for text in ["dead", "silent,dead", "true", ""] {
            assert_eq!(
                problems(&json!({"kube-ipvs.io/eject": text})),
                [format!(
                    "metadata.annotations[kube-ipvs.io/eject]: invalid value {text:?}: expected off, silent, refusing or \
                     silent,refusing"
                )]
            );
        }
    }

    #[test]
    fn whether_every_datagram_is_answered_is_true_or_false() {
        assert!(asked(&json!({"kube-ipvs.io/udp-answers": "true"})).answers_datagrams);
        assert!(!asked(&json!({"kube-ipvs.io/udp-answers": "false"})).answers_datagrams);
        for text in ["yes", "True", "1", ""] {
            assert_eq!(
                problems(&json!({"kube-ipvs.io/udp-answers": text})),
                [format!(
                    "metadata.annotations[kube-ipvs.io/udp-answers]: {text:?} is neither true nor false"
                )]
            );
        }
    }

    #[test]
    fn a_slow_start_takes_between_ten_seconds_and_an_hour() {
        let slow_start = |text: &str| asked(&json!({"kube-ipvs.io/slow-start": text})).slow_start;
        for (text, seconds) in [
            ("10s", 10),
            ("30s", 30),
            ("2m", 120),
            ("1m30s", 90),
            ("1h", 3_600),
            ("0h59m60s", 3_600),
            (" 45s ", 45),
        ] {
            assert_eq!(slow_start(text), Some(Duration::from_secs(seconds)), "{text:?}");
        }
        for text in [
            "9s",
            "1h1s",
            "0",
            "0s",
            "-30s",
            "30",
            "s",
            "1.5m",
            "30 s",
            "30s5",
            "99999999999s",
            "9999999h",
            "1d",
            "",
        ] {
            assert_eq!(
                problems(&json!({"kube-ipvs.io/slow-start": text})),
                [format!(
                    "metadata.annotations[kube-ipvs.io/slow-start]: {text:?} is not a duration between 10 s and 3600 s, \
                     such as 30s or 2m"
                )]
            );
        }
    }
}
