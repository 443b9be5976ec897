//! How long a new endpoint takes to get all of its weight.

use std::time::Duration;

use service::Balancing;

use crate::objects::{Problems, field::Quoted, metadata::Annotation};

/// A duration in the accepted range.
pub(super) fn slow_start(
    Annotation { at, text }: &Annotation<'_>,
    problems: &mut Problems,
) -> Option<Duration> {
    let accepted = Balancing::SHORTEST_SLOW_START..=Balancing::LONGEST_SLOW_START;
    let found = duration(text.trim()).filter(|duration| accepted.contains(duration));
    let (shortest, longest) = (accepted.start().as_secs(), accepted.end().as_secs());
    let text = Quoted(text);
    problems.require(
        found,
        at,
        format_args!("{text} is not a duration between {shortest} s and {longest} s, such as 30s or 2m"),
    )
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
