//! `kube-ipvs status`.

mod text;

use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::bail;
use kubernetes::api::WatchState;
use reconciler::SyncState;

use super::{Ask, output::print_as};
use crate::{
    config::GoDuration,
    serve::control::{Control as _, DaemonStatus, SourceInfo},
};
use text::synced;
pub(super) use text::text;

/// The time between two questions while what is wanted is not programmed yet.
const PAUSE: Duration = Duration::from_millis(500);

/// Whose status, and what is made of it.
#[derive(clap::Args, Debug)]
pub(super) struct Status {
    #[command(flatten)]
    ask: Ask,
    /// Exit with 1, and print the reason, unless the desired state is programmed and the API server is watched
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

/// Prints the status of the daemon, and checks it if that is wanted.
pub(super) fn status(asked: &Status) -> anyhow::Result<ExitCode> {
    let patience = asked.wait.and_then(GoDuration::duration).unwrap_or_default();
    let started = Instant::now();
    let status = loop {
        let is_last = started.elapsed() >= patience;
        match asked.ask.daemon.client().status() {
            Ok(status) if is_last || not_in_order(&status).is_none() => break status,
            Err(error) if is_last => return Err(error.into()),
            // It may be about to start.
            _ => thread::sleep(PAUSE),
        }
    };
    print_as(asked.ask.output.format, &status, || text(&status))?;
    if (asked.check || asked.wait.is_some())
        && let Some(reason) = not_in_order(&status)
    {
        bail!("the check failed: {reason}");
    }
    Ok(ExitCode::SUCCESS)
}

/// How long a change may wait: Services may change all the time, and each change waits for a moment.
const MOMENT: Duration = Duration::from_secs(10);

/// Why the desired state is not fully programmed, or not known. What is wrong with an object or with
/// the node is none of it: programming goes on.
fn not_in_order(status: &DaemonStatus) -> Option<String> {
    let DaemonStatus { daemon, programmed, .. } = status;
    let waits_for_a_moment = programmed.sync_state == SyncState::Behind && programmed.sync_state_age < MOMENT;
    if programmed.sync_state != SyncState::Synced && !waits_for_a_moment {
        return Some(format!("synced: {}", synced(programmed, daemon)));
    }
    let SourceInfo::ApiServer { watches, .. } = &daemon.source else { return None };
    let failing = watches.iter().find(|watch| watch.state == WatchState::Failing)?;
    let cause = failing.last_failure.as_ref().map(|failure| format!(": {}", failure.cause));
    Some(format!("{} are not watched{}", failing.resource, cause.unwrap_or_default()))
}

#[cfg(test)]
pub(super) mod tests;
