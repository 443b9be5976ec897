//! `kube-ipvs status`.

mod operations;
mod text;
mod verdict;

use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::bail;
use operator::terminal::print_verdict;

use super::{Ask, Format, output::print_as};
use crate::{config::GoDuration, serve::control::Control as _};
pub(super) use text::text;
use verdict::Verdict;

/// The interval between two checks while the desired state is not programmed yet.
const PAUSE: Duration = Duration::from_millis(500);

/// The daemon, the check, and the form of the output.
#[derive(clap::Args, Debug)]
pub(super) struct Status {
    #[command(flatten)]
    ask: Ask,
    /// Compare the kernel with the desired state, as diff does. Exit with 1, and print the reason, unless they are equal, or
    /// will be in a moment, and the API server is watched
    #[arg(long)]
    check: bool,
    /// Repeat the check for this long until it succeeds
    #[arg(
        long,
        value_name = "DURATION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "60s"
    )]
    wait: Option<GoDuration>,
}

/// Prints the status of the daemon, and checks it if asked to.
pub(super) fn status(asked: &Status) -> anyhow::Result<ExitCode> {
    let patience = asked.wait.and_then(GoDuration::duration).unwrap_or_default();
    let (started, compare) = (Instant::now(), asked.check || asked.wait.is_some());
    let status = loop {
        let is_last = started.elapsed() >= patience;
        let client = asked.ask.daemon.client();
        // A comparison keeps the daemon from its work: only where all else is well.
        let answer = client.status().and_then(|status| {
            if compare && !Verdict::from_status(&status).is_bad() {
                client.checked_status()
            } else {
                Ok(status)
            }
        });
        match answer {
            Ok(status) if is_last || !Verdict::from_status(&status).is_bad() => break status,
            Err(error) if is_last => return Err(error.into()),
            // It may be about to start.
            _ => thread::sleep(PAUSE),
        }
    };
    let verdict = Verdict::from_status(&status);
    match asked.ask.output.format {
        Format::Text => drop(print_verdict(&text(&status), verdict.grade, text::INDENT, terminal_width)?),
        format => print_as(format, &status, || text(&status))?,
    }
    if compare && verdict.is_bad() {
        bail!("the check failed: {}: {}", verdict.subject, verdict.words);
    }
    if compare && status.programmed.difference.is_none() {
        bail!("the check failed: the daemon is of an earlier release, and did not compare the kernel");
    }
    Ok(ExitCode::SUCCESS)
}

/// The columns of the terminal, if they are known.
fn terminal_width() -> Option<usize> {
    #[cfg(feature = "tui")]
    let columns = ratatui::crossterm::terminal::window_size().ok().map(|size| size.columns);
    #[cfg(not(feature = "tui"))]
    let columns = None;
    columns.filter(|columns: &u16| *columns > 0).map(usize::from)
}

#[cfg(test)]
pub(super) mod tests;
