//! The checks of this node, in one list: each runs before the start (`kube-ipvs preflight`), while the daemon
//! runs, or both.
//!
//! A check reads what it needs, and never changes the node or keeps the daemon from its work. Before the
//! start nothing is tried either: what only a write would show, or a query that makes the kernel load a
//! module, is reported as not known.

mod arp;
mod before_start;
mod bypass;
mod connections;
mod facts;
mod first_sync;
mod kernel;
mod modules;
mod node_ports;
mod other_programs;
mod parameters;
mod ports;
mod proxy;
mod reverse_path;
mod while_running;

use self::{
    Check::{Before, Both, Running},
    facts::Facts,
    while_running::WhileRunning,
};
pub(crate) use self::{
    before_start::{BeforeStart, FirstSync, KernelRead},
    kernel::missing_features,
    modules::Modules,
    while_running::{CheckLoop, CurrentFindings, FoundElsewhere, Recheck, start},
};
use crate::finding::{Cause, Finding};

/// A check, by when it runs. Findings about a running daemon's node have a cause.
enum Check {
    Before(fn(&mut BeforeStart<'_>) -> Vec<Finding>),
    Both(Cause, fn(&Facts) -> Vec<Finding>),
    Running(Cause, fn(&mut WhileRunning) -> Vec<Finding>),
}

/// Every check, in the order of their findings.
const CHECKS: [Check; 26] = [
    Before(kernel::check),
    Before(proxy::check),
    Before(first_sync::check),
    Before(parameters::to_set),
    Before(before_start::host_firewall),
    Running(Cause::HostFirewall, while_running::host_firewall),
    Before(bypass::flowtables_before_start),
    Running(Cause::Flowtable, bypass::flowtables_while_running),
    Both(Cause::Bridge, bypass::bridges),
    Both(Cause::NodeLocalDns, bypass::node_local_dns),
    Both(Cause::NodePorts, node_ports::check),
    Before(node_ports::host_ports_before_start),
    Running(Cause::HostPorts, node_ports::host_ports_while_running),
    Both(Cause::Timeouts, connections::timeouts),
    Before(arp::check),
    Before(ports::check),
    Running(Cause::Parameter, parameters::differing),
    Both(Cause::Parameter, parameters::uncounted),
    Running(Cause::ReversePath, reverse_path::check),
    Running(Cause::MostSilent, while_running::most_silent),
    Running(Cause::ConntrackFull, connections::conntrack_full),
    Running(Cause::IpvsTable, connections::ipvs_table),
    Running(Cause::AnotherProxy, other_programs::another_proxy),
    Running(Cause::LockKept, other_programs::lock_kept),
    Running(Cause::Tunnel, while_running::filtered_tunnels),
    Running(Cause::Contested, other_programs::contested),
];

/// What the checks before the start find. Blocks.
pub(crate) fn before_start(node: &mut BeforeStart<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for check in CHECKS {
        match check {
            Before(check) => findings.extend(check(node)),
            Both(_, check) => findings.extend(check(&node.facts)),
            Running(..) => {}
        }
    }
    findings
}

/// What the checks of a running daemon find, in the calling thread's network namespace. Blocks.
fn while_running(node: &mut WhileRunning) -> Vec<Finding> {
    let mut findings = Vec::new();
    for check in CHECKS {
        let (cause, found) = match check {
            Before(_) => continue,
            Both(cause, check) => (cause, check(&node.facts)),
            Running(cause, check) => (cause, check(node)),
        };
        findings.extend(found.into_iter().map(|finding| finding.cause(cause)));
    }
    findings
}
