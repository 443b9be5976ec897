//! Prints the status as text, in the order of an operator's questions: is all well, since when, what was done last,
//! what is wrong, and how to remedy it. Notes, which hold on most nodes and for as long as they run, are left to
//! `preflight` and `explain`.

use std::{collections::BTreeSet, fmt::Write, net::IpAddr};

use kubernetes::api::{Watch, WatchState};
use reconciler::{
    BusyWith, Drain, FirstNamed, ForeignVirtualServers, KernelDifference, LastSync, SyncState, Trigger,
};
use service::{ObjectName, printable_line};

use super::{
    super::{output::Time, requests::summary},
    operations::{done, for_services},
    verdict::{Verdict, not_synced},
};
use crate::{
    config::VipBinding,
    finding::{Finding, Severity},
    serve::control::{CountedPackets, DaemonInfo, DaemonStatus, KernelInfo, RecentPackets, SourceInfo},
    serve::liveness::{AnswersSummary, EndpointCounts},
};

/// The limit of printed differences, and of repairs of the last sync that had any.
const FIRST_REPAIRS: usize = 5;
/// The limit of printed addresses that are not bound.
const FIRST_UNBOUND: usize = 5;
/// The limit of printed endpoints that fail.
const FIRST_FAILING: usize = 5;
/// The limit of printed draining real servers: a rollout can have hundreds.
const FIRST_DRAINS: usize = 5;

/// Where the words of each line begin.
pub(super) const INDENT: usize = 17;

/// The status, from its verdict on.
pub(in crate::cli) fn text(status: &DaemonStatus) -> String {
    let DaemonStatus { daemon, programmed, packets, advice, endpoints } = status;
    let mut lines = Lines::default();
    let Verdict { subject, words, .. } = Verdict::from_status(status);
    lines.line(subject, &words);
    lines.daemon(daemon);
    lines.programmed(programmed, daemon);
    lines.packets(packets);
    lines.source(&daemon.source);
    if let Some(kernel) = &daemon.kernel {
        lines.kernel(kernel);
    }
    lines.endpoints(endpoints);
    lines.troubles(programmed, advice);
    lines.0
}

/// Prints each line with its subject before it, unless the line before had the same subject.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn line(&mut self, about: &str, words: &str) {
        let about = if about.is_empty() { String::new() } else { format!("{about}:") };
        let _ = writeln!(self.0, "{about:<16} {}", printable_line(words));
    }

    fn daemon(&mut self, DaemonInfo { version, node, uptime, .. }: &DaemonInfo) {
        self.line("kube-ipvs", &format!("{version} on {node} for {}", Time(*uptime)));
    }

    fn programmed(&mut self, status: &reconciler::SyncStatus, daemon: &DaemonInfo) {
        self.line("synced", &synced(status, daemon));
        self.difference(status.difference.as_ref());
        self.wanted(status);
        self.foreign("kept", &status.kept_foreign);
        self.foreign("removed since the start", &status.removed_foreign);
        let last_sync = status.last_sync.as_ref();
        self.line("last sync", &last_sync.map_or("none yet".to_owned(), sync));
        if let Some(changed) = &status.last_change {
            self.change(changed);
        }
        if let Some(repaired) = &status.last_repair {
            self.repair(repaired, status.repaired);
        }
        let last_full = status.last_full_sync.as_ref().map_or("none yet".to_owned(), |last| {
            format!("{} ago; `kube-ipvs resync` reads the kernel now", Time(last.age))
        });
        self.line("last full read", &last_full);
        if status.scheduler_changes > 0 {
            self.line("schedulers", &format!("{} still to be changed", status.scheduler_changes));
        }
        self.busy(status.busy.as_ref());
    }

    /// The first operations that would make the kernel as desired, if it was compared and differs.
    fn difference(&mut self, difference: Option<&KernelDifference>) {
        let Some(KernelDifference { by_kind, first, .. }) = difference else { return };
        let listed = first.iter().take(FIRST_REPAIRS);
        for (number, operation) in listed.clone().enumerate() {
            self.line(if number == 0 { "differs" } else { "" }, operation);
        }
        self.and_more(by_kind.values().sum(), listed.len());
    }

    /// The Service that is programmed in parts because it takes long; nothing if there is none.
    fn busy(&mut self, busy: Option<&BusyWith>) {
        let Some(BusyWith { service, left, age }) = busy else { return };
        let service = service.as_ref().map_or("deleted Services".to_owned(), ToString::to_string);
        let words =
            format!("{service} for {}; {left} changes left, others are served in between", Time(*age));
        self.line("busy with", &words);
    }

    /// The desired numbers, if they are known: before that, zeros would look like the kernel's.
    fn wanted(&mut self, status: &reconciler::SyncStatus) {
        if status.sync_state == SyncState::NotListed {
            let words = "not known yet; what was programmed before stays: `kube-ipvs list` shows it";
            return self.line("virtual servers", words);
        }
        self.services(status.services, &status.without_endpoints);
        self.line("virtual servers", &status.virtual_servers.to_string());
        self.line("real servers", &status.real_servers.to_string());
        self.line("VIPs", &status.vips.to_string());
        self.unbound(&status.unbound);
        self.draining(status);
        self.ejected(status);
    }

    /// The endpoints that get no new connections because clients fail there; nothing where there are none.
    fn ejected(&mut self, status: &reconciler::SyncStatus) {
        if status.ejected + status.on_trial == 0 {
            return;
        }
        self.line("ejected", &format!("{}, and {} on trial", status.ejected, status.on_trial));
        let listed = status.ejections.iter().take(FIRST_FAILING);
        for ejection in listed.clone() {
            self.line("", &ejection.to_string());
        }
        self.and_more(status.ejected + status.on_trial, listed.len());
    }

    /// How many Services are served, and which of them have no endpoint.
    fn services(&mut self, all: usize, without: &FirstNamed<ObjectName>) {
        let without =
            if without.count == 0 { String::new() } else { format!(", without endpoint: {without}") };
        self.line("Services", &format!("{all}{without}"));
    }

    /// External addresses that are served here and belong to another host; nothing where there are none.
    fn unbound(&mut self, unbound: &BTreeSet<IpAddr>) {
        let first: Vec<_> = unbound.iter().take(FIRST_UNBOUND).map(ToString::to_string).collect();
        if !first.is_empty() {
            let noun = if unbound.len() == 1 { "external address" } else { "external addresses" };
            let words = format!("{} {noun} that another host has: {}", unbound.len(), first.join(", "));
            self.line("not bound", &words);
            self.and_more(unbound.len(), first.len());
        }
    }

    fn draining(&mut self, status: &reconciler::SyncStatus) {
        if status.draining == 0 {
            return self.line("draining", "0");
        }
        let longest = Time(status.longest_drain);
        self.line("draining", &format!("{}, the first for {longest}", status.draining));
        let listed = status.drains.iter().take(FIRST_DRAINS);
        for Drain { service, virtual_server, real_server, age } in listed.clone() {
            let service = service.as_ref().map_or("no Service".to_owned(), ToString::to_string);
            self.line("", &format!("{real_server} for {}, of {virtual_server}, {service}", Time(*age)));
        }
        self.and_more(status.draining, listed.len());
    }

    /// Virtual servers that no Service made, and what became of them; nothing where there are none.
    fn foreign(&mut self, what_became: &str, found: &ForeignVirtualServers) {
        let noun = if found.count == 1 { "virtual server" } else { "virtual servers" };
        if found.count > 0 {
            self.line("foreign", &format!("{} {noun} {what_became}: {found}", found.count));
        }
    }

    /// What the last sync that changed something did, and for which Services.
    fn change(&mut self, LastSync { report, age }: &LastSync) {
        let services = for_services(&report.services);
        let words = format!(
            "{} ago, {}: {}{services}",
            Time(*age),
            cause(report.trigger),
            done(&report.done_by_kind)
        );
        self.line("last change", &words);
    }

    /// The repairs of the last sync that had any, and the number of repairs since the start.
    fn repair(&mut self, LastSync { report, age }: &LastSync, all: usize) {
        let noun = if all == 1 { "operation" } else { "operations" };
        let when = format!("{} ago, {}", Time(*age), cause(report.trigger));
        let services = for_services(&report.services);
        self.line(
            "last repair",
            &format!(
                "{when}{services}; since the start {all} {noun} repaired what another program had changed"
            ),
        );
        let listed = report.repairs.iter().take(FIRST_REPAIRS);
        for repair in listed.clone() {
            self.line("", repair);
        }
        if report.repairs.len() > listed.len() {
            self.line("", "and more");
        }
    }

    /// What our nf_tables rules did to packets recently; nothing where they did nothing.
    fn packets(&mut self, RecentPackets { window, counted }: &RecentPackets) {
        let each = counted.iter().map(|CountedPackets { verdict, reason, packets }| {
            format!("{} {packets} ({})", participle(verdict), reason_text(reason))
        });
        let each = each.collect::<Vec<_>>().join(", ");
        if !each.is_empty() {
            self.line("packets", &format!("{each} in the last {}", Time(*window)));
        }
    }

    /// The number of entries that were not printed.
    fn and_more(&mut self, all: usize, printed: usize) {
        match all.saturating_sub(printed) {
            0 => {}
            more => self.line("", &format!("and {more} more")),
        }
    }

    fn source(&mut self, source: &SourceInfo) {
        match source {
            SourceInfo::Manifests { directory } => self.line("manifests", &directory.display().to_string()),
            SourceInfo::ApiServer { address, watches } => {
                self.line("API server", address);
                for watch in watches {
                    self.watch(watch);
                }
            }
        }
    }

    fn watch(&mut self, Watch { resource, state, age, last_failure }: &Watch) {
        let state = match state {
            WatchState::Listing => "being listed",
            WatchState::Watching => "watched",
            WatchState::Failing => "NOT watched",
        };
        let mut words = format!("{resource} {state} for {}", Time(*age));
        if let Some(failure) = last_failure {
            let _ = write!(words, "; last failure {} ago: {}", Time(failure.age), failure.cause);
        }
        self.line("", &words);
    }

    fn kernel(&mut self, kernel: &KernelInfo) {
        let KernelInfo { release, ipvs, families, vip_binding, scheduler, lacks } = kernel;
        let families: Vec<_> = families.iter().map(ToString::to_string).collect();
        let binding = match vip_binding {
            VipBinding::Address => "addresses",
            VipBinding::Route => "routes",
        };
        let families = families.join(" and ");
        self.line(
            "kernel",
            &format!("{release}, IPVS {ipvs}; {families}; VIPs as {binding}; scheduler {scheduler}"),
        );
        if lacks.is_empty() {
            self.line("nf_tables", "has every feature that is used, source ranges (nft_set_pipapo) included");
        }
        for feature in lacks {
            self.line("kernel lacks", feature);
        }
    }

    /// Endpoints at which clients fail; nothing where there are none.
    fn endpoints(&mut self, AnswersSummary { unknown, counts, failing }: &AnswersSummary) {
        if let Some(why) = unknown {
            self.line("endpoints", &format!("not known whether they answer: {why}"));
        }
        let EndpointCounts { refusing, silent, .. } = *counts;
        let parts = [(silent, "DO NOT ANSWER"), (refusing, "REFUSE")];
        let parts = parts.into_iter().filter(|(count, _)| *count > 0);
        let parts: Vec<_> = parts.map(|(count, what)| format!("{count} {what}")).collect();
        if parts.is_empty() {
            return;
        }
        self.line("endpoints", &format!("{}; {} answer", parts.join(", "), counts.answering));
        let listed = failing.iter().take(FIRST_FAILING);
        for failing in listed.clone() {
            self.line("", &failing.to_string());
        }
        self.and_more(silent + refusing, listed.len());
    }

    fn troubles(&mut self, status: &reconciler::SyncStatus, advice: &[Finding]) {
        for failure in status.last_sync.iter().flat_map(|last| &last.report.failures) {
            self.line("failed", failure);
        }
        for problem in &status.problems {
            self.line("problem", problem);
        }
        for advice in advice.iter().filter(|advice| advice.severity > Severity::Note) {
            self.line(advice.severity.name(), &advice.to_string());
        }
    }
}

fn participle(verdict: &str) -> &str {
    match verdict {
        "drop" => "dropped",
        "reject" => "rejected",
        "masquerade" => "masqueraded",
        other => other,
    }
}

/// The reason for which packets are counted; an unknown one is printed unchanged.
fn reason_text(reason: &str) -> &str {
    match reason {
        "vip-as-source" => "a VIP as the source",
        "source-range" => "source ranges",
        "no-local-endpoint" => "policy Local without an endpoint here",
        "tunnel" => "not from a node's tunnel",
        "no-service" => "no Service has this port",
        "marked" => "flows to Services",
        "hairpin" => "pods that reach themselves",
        "no-tunnel" => "endpoints without a tunnel",
        other => other,
    }
}

/// Whether the kernel is synced, since when, and if not, why.
fn synced(status: &reconciler::SyncStatus, daemon: &DaemonInfo) -> String {
    match not_synced(status, daemon) {
        // The kernel sends no notifications about IPVS: only the next sync finds what something else has changed.
        None => format!("yes, for {} as of the last full read", Time(status.sync_state_age)),
        Some(why) => format!("no, {why}"),
    }
}

fn sync(LastSync { report, age }: &LastSync) -> String {
    format!("{} ago, {}: {}", Time(*age), cause(report.trigger), summary(report))
}

/// Why a sync ran.
fn cause(trigger: Trigger) -> &'static str {
    match trigger {
        Trigger::Start => "at the start",
        Trigger::Change => "after a change",
        Trigger::Period => "for the period",
        Trigger::KernelEvent => "after a change of kube-ipvs0",
        Trigger::TablesChanged => "after a change of our nf_tables tables",
        Trigger::NodeAddresses => "after a change of the node's addresses",
        Trigger::VirtualServerLost => "after a virtual server was lost",
        Trigger::Retry => "after a failure",
        Trigger::Forced => "on request",
        Trigger::Drain => "for draining real servers",
        Trigger::Continue => "to go on",
    }
}

#[cfg(test)]
mod tests;
