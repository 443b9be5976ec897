//! Prints the output of commands. All that both programs print goes through here, but for an archive and the screen of
//! `top`: this is where characters that act on a terminal are escaped.

use std::{
    fmt::{self, Display},
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use serde::Serialize;
use service::{printable, printable_json, printable_line};

/// The flag that chooses the form.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Args {
    /// The form of the output
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "text")]
    pub format: Format,
}

/// The form.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "clap would print it in each help")]
pub enum Format {
    Text,
    Json,
    Yaml,
}

/// The readers of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// The reader is there, as far as is known.
    There,
    /// The reader is gone (`| head`).
    Gone,
}

/// Prints text. It is not an error if the reader goes away.
pub fn print(text: &str) -> io::Result<()> {
    print_to_readers(text).map(drop)
}

/// Prints a part of the output. Returns whether there is still a reader.
pub fn print_to_readers(text: &str) -> io::Result<Readers> {
    write_to_readers(&printable(text))
}

/// Prints a script of this program's own, in which tabs are white space.
pub fn print_script(script: &str) -> io::Result<()> {
    write_to_readers(script).map(drop)
}

pub(crate) fn write_to_readers(text: &str) -> io::Result<Readers> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Readers::Gone),
        result => result.map(|()| Readers::There),
    }
}

/// Says something on one line of standard error.
pub fn say(what: impl Display) {
    write_to_stderr(&format!("{}\n", printable_line(&what.to_string())));
}

/// Says several lines on standard error, each ended.
pub fn say_lines(lines: &str) {
    write_to_stderr(&printable(lines));
}

fn write_to_stderr(text: &str) {
    // There is nowhere else to print it.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// The exit code for a command line, or a configuration file, that cannot be used: `EX_USAGE` of sysexits.h.
pub const USAGE: u8 = 64;

/// Prints help or the version, or what is wrong with the command line of this program.
pub fn refuse(program: &str, error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if !error.use_stderr() {
        return print(&text).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    say_lines(&format!("{program}: {}", text.strip_prefix("error: ").unwrap_or(&text)));
    ExitCode::from(USAGE)
}

/// Prints why the desired state may be out of date or wrong.
pub fn doubt(troubles: &[String]) {
    for trouble in troubles {
        say(format_args!("kube-ipvs: the desired state may be out of date: {trouble}"));
    }
}

/// Prints the text, or the value in another form.
pub fn print_as(format: Format, value: &impl Serialize, text: impl FnOnce() -> String) -> io::Result<()> {
    print(&match format {
        Format::Text => text(),
        Format::Json => json(value)?,
        Format::Yaml => yaml(value)?,
    })
}

/// One of many values, of which each is a line of JSON or a document of YAML.
pub fn one_of_many(
    format: Format,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> io::Result<String> {
    Ok(match format {
        Format::Text => printable(&text()).into_owned(),
        Format::Json => format!("{}\n", printable_json(&serde_json::to_string(value)?)),
        Format::Yaml => format!("---\n{}", printable(&yaml(value)?)),
    })
}

/// One value as JSON.
pub fn json(value: &impl Serialize) -> io::Result<String> {
    Ok(format!("{}\n", printable_json(&serde_json::to_string_pretty(value)?)))
}

/// One value as YAML.
pub fn yaml(value: &impl Serialize) -> io::Result<String> {
    serde_saphyr::to_string(value).map_err(io::Error::other)
}

/// A duration, in its two largest units at most: `3.2 s`, `62 s`, `5 min 10 s`, `3 h 12 min`, `4 d 3 h`.
pub struct Time(pub Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
        match seconds {
            0..10 => write!(f, "{:.1} s", self.0.as_secs_f64()),
            10..100 => write!(f, "{seconds} s"),
            100..3600 => write!(f, "{minutes} min {} s", seconds % 60),
            3600..86_400 => write!(f, "{hours} h {} min", minutes % 60),
            _ => write!(f, "{days} d {} h", hours % 24),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nothing_that_acts_on_a_terminal_is_printed_in_any_form(text in "[\\x00-\\xff\\u{200b}-\\u{2030}]{0,40}") {
            for format in [Format::Text, Format::Json, Format::Yaml] {
                let printed = one_of_many(format, &[&text], || text.clone()).unwrap();
                let printed = printable(&printed);
                let acts = |c: char| c != '\n' && (c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c));
                prop_assert!(!printed.chars().any(acts), "{format:?}: {printed:?}");
                if format == Format::Json {
                    prop_assert_eq!(&serde_json::from_str::<Vec<String>>(&printed).unwrap()[0], &text);
                }
            }
        }
    }

    #[test]
    fn a_time_has_its_two_largest_units() {
        let shown = |milliseconds| Time(Duration::from_millis(milliseconds)).to_string();
        assert_eq!([0, 3_210, 61_700, 310_000].map(shown), ["0.0 s", "3.2 s", "61 s", "5 min 10 s"]);
        assert_eq!([11_520_000, 356_400_000].map(shown), ["3 h 12 min", "4 d 3 h"]);
    }
}
