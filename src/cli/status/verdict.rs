//! The verdict on a node, in one line: whether it serves the desired state.

use std::time::Duration;

use kubernetes::api::WatchState;
use operator::terminal::Grade;
use reconciler::{KernelDifference, SyncState, SyncStatus};

use super::{
    super::output::Time,
    operations::{for_services, to_do},
};
use crate::{
    finding::Severity,
    serve::control::{DaemonInfo, DaemonStatus, SourceInfo},
};

/// The first line of the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) grade: Grade,
    /// What stands before its colon.
    pub(super) subject: &'static str,
    pub(super) words: String,
}

/// The time for which a change may wait: Services may change all the time, and each change waits for a moment.
const MOMENT: Duration = Duration::from_secs(10);

impl Verdict {
    /// The verdict that a status leads to.
    pub(super) fn from_status(status: &DaemonStatus) -> Self {
        fault(status).unwrap_or_else(|| serving(status))
    }

    /// Whether the node is not in order, so that a check fails.
    pub(super) fn is_bad(&self) -> bool {
        self.grade == Grade::Bad
    }
}

/// Why the desired state is not fully programmed, or not known. What is wrong with an object or with the node is none of
/// it: programming goes on.
fn fault(DaemonStatus { daemon, programmed, .. }: &DaemonStatus) -> Option<Verdict> {
    let bad = |subject, words| Some(Verdict { grade: Grade::Bad, subject, words });
    if let Some(why) = not_synced(programmed, daemon).filter(|_| !waits_for_a_moment(programmed)) {
        return bad("NOT in sync", why);
    }
    if let Some(KernelDifference { by_kind, services, .. }) =
        programmed.difference.as_ref().filter(|it| !it.by_kind.is_empty())
    {
        let words = format!("the kernel differs: {}{}", to_do(by_kind), for_services(services));
        return bad("NOT in sync", words);
    }
    let SourceInfo::ApiServer { watches, .. } = &daemon.source else { return None };
    let failing = watches.iter().find(|watch| watch.state == WatchState::Failing)?;
    let cause = failing.last_failure.as_ref().map(|failure| format!(": {}", failure.cause));
    bad("NOT up to date", format!("{} are not watched{}", failing.resource, cause.unwrap_or_default()))
}

fn waits_for_a_moment(programmed: &SyncStatus) -> bool {
    programmed.sync_state == SyncState::Behind && programmed.sync_state_age < MOMENT
}

/// The served Services, and the number of each concern.
fn serving(DaemonStatus { programmed, advice, endpoints, .. }: &DaemonStatus) -> Verdict {
    let as_desired = match &programmed.last_full_sync {
        _ if programmed.sync_state == SyncState::Behind => "; a change is being programmed".to_owned(),
        _ if programmed.difference.is_some() => ", all as desired".to_owned(),
        Some(last) => format!(", all as desired when last read, {} ago", Time(last.age)),
        None => String::new(),
    };
    let warnings = advice.iter().filter(|advice| advice.severity >= Severity::Warning).count();
    let concerns: Vec<_> = [
        (programmed.without_endpoints.count, "Service without endpoint", "Services without endpoint"),
        (
            endpoints.counts.silent + endpoints.counts.refusing,
            "endpoint does not answer",
            "endpoints do not answer",
        ),
        (programmed.ejected, "endpoint ejected", "endpoints ejected"),
        (programmed.problems.len(), "problem", "problems"),
        (warnings, "warning", "warnings"),
    ]
    .into_iter()
    .filter(|(count, ..)| *count > 0)
    .map(|(count, one, many)| format!("{count} {}", if count == 1 { one } else { many }))
    .collect();
    let grade = if concerns.is_empty() { Grade::Good } else { Grade::Doubtful };
    let services = if programmed.services == 1 { "Service" } else { "Services" };
    let concerns = if concerns.is_empty() { String::new() } else { format!("; {}", concerns.join(", ")) };
    Verdict {
        grade,
        subject: "serving",
        words: format!("{} {services}{as_desired}{concerns}", programmed.services),
    }
}

/// Why the kernel is not synced, and for how long; `None` if it is, as of the last full read.
pub(super) fn not_synced(status: &SyncStatus, daemon: &DaemonInfo) -> Option<String> {
    let time = Time(status.sync_state_age);
    Some(match status.sync_state {
        SyncState::Synced => return None,
        SyncState::Behind if status.scheduler_changes > 0 => {
            format!("schedulers are being changed for {time}")
        }
        SyncState::Behind => format!("a change has been waiting for {time}"),
        SyncState::Failing => format!("syncs have been failing for {time}"),
        SyncState::NotListed if waits_for_node(&daemon.source) => {
            format!("waiting for the Node {} and its IPs for {time}", daemon.node)
        }
        SyncState::NotListed => format!("Services and EndpointSlices are not listed yet, for {time}"),
    })
}

/// Services are listed once the Node is known, or half a minute has passed.
fn waits_for_node(source: &SourceInfo) -> bool {
    match source {
        SourceInfo::ApiServer { watches, .. } => !watches.iter().any(|watch| watch.resource == "services"),
        SourceInfo::Manifests { .. } => false,
    }
}

#[cfg(test)]
mod tests;
