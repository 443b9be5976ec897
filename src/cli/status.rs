//! `kube-ipvs status`.

#[cfg(test)]
pub(in crate::cli) mod sample;
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
        bail!("not all is in order: {reason}");
    }
    Ok(ExitCode::SUCCESS)
}

/// How long a change may wait: Services may change all the time, and each change waits for a moment.
const MOMENT: Duration = Duration::from_secs(10);

/// Why not all that is wanted is programmed, or why what is wanted is not known. What is wrong with an object or with the
/// node is none of it: programming goes on.
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
mod tests {
    use super::{super::documented::assert_documented, *};

    #[test]
    fn its_json_is_documented() {
        assert_documented("status", &sample::status());
    }

    /// A status in order, after this was done to it.
    fn reason(change: impl FnOnce(&mut DaemonStatus)) -> Option<String> {
        let mut status = sample::status();
        status.programmed.sync_state = SyncState::Synced;
        if let SourceInfo::ApiServer { watches, .. } = &mut status.daemon.source {
            watches.retain(|watch| watch.state == WatchState::Watching);
        }
        change(&mut status);
        not_in_order(&status)
    }

    #[test]
    fn what_is_synced_and_watched_is_in_order_whatever_is_wrong_with_objects_and_the_node() {
        let status = sample::status();
        assert!(!status.programmed.problems.is_empty() && !status.advice.is_empty());
        assert_eq!(reason(|_| {}), None);
    }

    #[test]
    fn what_is_not_programmed_or_not_watched_is_not_in_order() {
        let state = |state, seconds| {
            reason(|status| {
                status.programmed.sync_state = state;
                status.programmed.sync_state_age = Duration::from_secs(seconds);
                status.programmed.scheduler_changes = 0;
            })
        };
        assert_eq!(state(SyncState::Failing, 5).as_deref(), Some("synced: no, something fails for 5.0 s"));
        assert_eq!(state(SyncState::Behind, 9), None);
        assert_eq!(state(SyncState::Behind, 10).as_deref(), Some("synced: no, a change waits for 10 s"));
        assert!(state(SyncState::NotListed, 0).is_some());
        let unwatched = reason(|status| status.daemon.source = sample::status().daemon.source);
        let words = "endpointslices are not watched: the server answered 503 Service Unavailable";
        assert_eq!(unwatched.as_deref(), Some(words));
    }
}
