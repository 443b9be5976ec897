//! What a guest's kernel has printed.

use std::{
    fmt::{self, Display},
    fs,
    path::Path,
};

use crate::{Guest, TIMED_OUT};

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

/// What becomes of a guest that has ended, in this way, before its command did: the end of its console is printed to
/// stderr. The exit code, if it was stopped for its time.
pub(crate) fn conclude(
    console: &Path,
    guest: &Guest,
    has_timed_out: bool,
    how: impl Display,
) -> Result<u8, EndedEarly> {
    // It is missing where the guest has not begun.
    let text = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let last = |count| lines.iter().skip(lines.len().saturating_sub(count)).copied();
    for line in last(PRINTED) {
        eprintln!("console: {line}");
    }
    if has_timed_out {
        eprintln!("xtask: the guest was stopped after {} s", guest.timeout.as_secs());
        return Ok(TIMED_OUT);
    }
    Err(EndedEarly { how: how.to_string(), last: last(IN_AN_ERROR).collect::<Vec<_>>().join(" | ") })
}
