//! What a guest's kernel has printed.

use std::fmt::{self, Display};
use std::fs;
use std::path::Path;

/// How many of its last lines are printed, and how many an error repeats: of a long run only the end may be kept.
const PRINTED: usize = 40;
const IN_AN_ERROR: usize = 8;

/// A guest has ended by itself before its command did.
#[derive(Debug)]
pub struct EndedEarly {
    how: String,
    last: String,
}

impl Display for EndedEarly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { how, last } = self;
        write!(f, "the guest ended before the command did ({how}); its console ended with: {last}")
    }
}

impl std::error::Error for EndedEarly {}

/// The text of a console.
pub(crate) struct Console(String);

impl Console {
    /// Reads it; it is empty where the guest has not begun.
    pub(crate) fn read(file: &Path) -> Self {
        Self(String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned())
    }

    /// Prints the last lines to stderr.
    pub(crate) fn print_end(&self) {
        for line in self.last(PRINTED) {
            eprintln!("console: {line}");
        }
    }

    /// The error of a guest that has ended, in this way, before its command did.
    pub(crate) fn ended_early(&self, how: impl Display) -> EndedEarly {
        let last: Vec<&str> = self.last(IN_AN_ERROR).collect();
        EndedEarly { how: how.to_string(), last: last.join(" | ") }
    }

    fn last(&self, count: usize) -> impl Iterator<Item = &str> {
        let lines: Vec<&str> = self.0.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        let first = lines.len().saturating_sub(count);
        lines.into_iter().skip(first)
    }
}
