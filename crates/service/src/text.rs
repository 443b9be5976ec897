//! Text for people and scripts: what others wrote is made safe for a terminal and for a line of a log.
//!
//! Names, messages and answers come from the API server, from tenants and from other nodes. A terminal obeys control
//! characters (ECMA-48): one answer could clear the screen, change the title or rewrite lines above it. Format characters
//! of Unicode are not obeyed but deceive the reader: those of bidirectional text (UAX #9, CVE-2021-42574) show a line in
//! another order than it has, others are invisible and make two names look the same. No word that this program prints needs
//! either, so both are escaped.

use std::{borrow::Cow, error::Error, fmt::Write};

/// Whether a character acts on a terminal, reorders a line, ends it for some readers, or is invisible.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Text of any number of lines: each unprintable character but the line break is escaped as in Rust, `\u{1b}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\n' && is_unprintable(c), |out, c| out.extend(c.escape_default()))
}

/// The same for text that is a part of one line: a line break is escaped too.
pub fn printable_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_unprintable, |out, c| out.extend(c.escape_default()))
}

/// JSON with the same meaning, whose strings have unprintable characters as `\u001b`. Encoders escape those below U+0020 alone.
/// Between strings JSON has none but white space.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    escaped(
        json,
        |c| c >= ' ' && is_unprintable(c),
        |out, c| {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        },
    )
}

fn escaped(
    text: &str,
    is_escaped: impl Fn(char) -> bool,
    escape: impl Fn(&mut String, char),
) -> Cow<'_, str> {
    let Some(first) = text.find(&is_escaped) else { return Cow::Borrowed(text) };
    let (sound, rest) = text.split_at(first);
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(sound);
    for c in rest.chars() {
        if is_escaped(c) { escape(&mut out, c) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// An error with its causes as one line, whatever line breaks and control characters others put into them. Some crates'
/// errors name their cause themselves: it is not repeated.
pub fn one_line(error: &(dyn Error + 'static)) -> String {
    let (mut line, mut cause) = (String::new(), Some(error));
    while let Some(error) = cause {
        let words = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        let words = printable_line(&words);
        if !line.contains(&*words) {
            line.push_str(if line.is_empty() { "" } else { ": " });
            line.push_str(&words);
        }
        cause = error.source();
    }
    line
}

/// Durations as seconds with a fraction, for `#[serde(with = …)]`: what scripts can read.
pub mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes a duration as seconds.
    pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(time.as_secs_f64())
    }

    /// Reads a duration from seconds; negative ones and those that no [`Duration`] holds are refused.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_acts_or_deceives_is_escaped_and_all_else_is_as_it_was() {
        for (text, expected) in [
            ("default/web: 10.96.0.10:80 – größer, 網, 🦀", "default/web: 10.96.0.10:80 – größer, 網, 🦀"),
            ("\u{1b}[2J\u{7}\r\u{7f}\t", r"\u{1b}[2J\u{7}\r\u{7f}\t"),
            ("\u{9b}31m", r"\u{9b}31m"),
            ("web\u{202e}gnp\u{2066}", r"web\u{202e}gnp\u{2066}"),
            ("web\u{200b}\u{feff}\u{e0041}", r"web\u{200b}\u{feff}\u{e0041}"),
        ] {
            assert_eq!(printable(text), expected);
            assert_eq!(printable_line(text), expected);
        }
        assert_eq!(printable("one\ntwo\u{2028}"), "one\ntwo\\u{2028}");
        assert_eq!(printable_line("one\ntwo"), r"one\ntwo");
    }

    /// Every control character, and others.
    const HOSTILE: &str = "[\\x00-\\xff\\u{200b}-\\u{2030}\\u{e0000}-\\u{e0080}]{0,40}";

    proptest! {
        #[test]
        fn nothing_unprintable_is_left(text in HOSTILE) {
            prop_assert!(!printable(&text).chars().any(|c| c != '\n' && is_unprintable(c)));
            prop_assert!(!printable_line(&text).chars().any(is_unprintable));
        }

        #[test]
        fn json_means_what_it_meant(text in HOSTILE) {
            let json = serde_json::to_string_pretty(&[&text]).unwrap();
            let safe = printable_json(&json);
            prop_assert!(!safe.chars().any(|c| c != '\n' && is_unprintable(c)));
            prop_assert_eq!(serde_json::from_str::<Vec<String>>(&safe).unwrap(), [text]);
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Caused {
        text: &'static str,
        source: Option<Box<Self>>,
    }

    fn chain(texts: &[&'static str]) -> Option<Box<Caused>> {
        let (text, causes) = texts.split_first()?;
        Some(Box::new(Caused { text, source: chain(causes) }))
    }

    #[test]
    fn an_error_is_one_line_with_its_causes_and_none_is_said_twice() {
        let error =
            chain(&["cannot read\n  the file: gone", "gone", "no such file", "no such file"]).unwrap();
        assert_eq!(one_line(&*error), "cannot read the file: gone: no such file");
        let error = chain(&["refused:\u{1b}[2J\r\nall is well"]).unwrap();
        assert_eq!(one_line(&*error), r"refused:\u{1b}[2J all is well");
    }
}
