//! `kube-ipvs status`.

mod check;
#[cfg(test)]
pub(in crate::cli) mod sample;
mod text;

use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::bail;

use super::{Ask, output::print_as};
use crate::{
    config::GoDuration,
    serve::control::{Control as _, DaemonStatus},
};

/// The time between two questions while what is wanted is not programmed yet.
const PAUSE: Duration = Duration::from_millis(500);

/// Whose status, and what is made of it.
#[derive(clap::Args, Debug)]
pub(super) struct Status {
    #[command(flatten)]
    ask: Ask,
    /// Exit with 1, and say why, unless all that is wanted is programmed and the API server is watched
    #[arg(long)]
    check: bool,
    /// Check again and again for this long, until it is so
    #[arg(
        long,
        value_name = "DURATION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "60s"
    )]
    wait: Option<GoDuration>,
}

/// Prints the status of the daemon, and checks it if that is wanted.
pub(super) fn status(asked: &Status) -> anyhow::Result<ExitCode> {
    let patience = asked.wait.and_then(GoDuration::duration).unwrap_or_default();
    let started = Instant::now();
    let status = loop {
        let is_last = started.elapsed() >= patience;
        match asked.ask.daemon.client().status() {
            Ok(status) if is_last || check::not_in_order(&status).is_none() => break status,
            Err(error) if is_last => return Err(error.into()),
            // It may be about to start.
            _ => thread::sleep(PAUSE),
        }
    };
    print_as(asked.ask.output.format, &status, || text(&status))?;
    if (asked.check || asked.wait.is_some())
        && let Some(reason) = check::not_in_order(&status)
    {
        bail!("not all is in order: {reason}");
    }
    Ok(ExitCode::SUCCESS)
}

/// The status for people.
pub(super) fn text(status: &DaemonStatus) -> String {
    text::text(status)
}

#[cfg(test)]
mod tests {
    use super::{super::documented::assert_documented, sample};

    #[test]
    fn its_json_is_documented() {
        assert_documented("status", &sample::status());
    }
}
