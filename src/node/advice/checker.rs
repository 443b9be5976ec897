//! One run of all checks: reads what they need, and reports what they find.

use std::{
    collections::BTreeSet,
    mem,
    net::IpAddr,
    path::Path,
    time::{Duration, Instant},
};

use dummy_interface::RouteLookup;
use ipvs::{Family, KernelIpvs};
use reconciler::{NodeUsage, SyncStatus};
use service::one_line;
use tracing::debug;

use super::{
    Advice, CurrentAdvice, Severity, bridges,
    dedup::{AdviceDedup, Transition},
    node_ports, parameters,
    proc_sys::ProcSys,
    repair_loop::RepairLoop,
    timeouts::{self, OF_CONNTRACK},
};
use crate::{
    config::ConntrackSettings,
    conntrack::table_full,
    node::{
        host_firewall::{self, Finding},
        sysctl::Sysctl,
    },
    takeover::another_proxy::AnotherProxy,
};

/// Checks the node, and remembers what was reported.
pub struct NodeChecker {
    /// Whether every flow is masqueraded.
    masquerade_all: bool,
    wanted: WantedParameters,
    node: ProcSys,
    another_proxy: AnotherProxy,
    repair_loop: RepairLoop,
    last_check: Instant,
    dedup: AdviceDedup,
    held: CurrentAdvice,
    publish: Box<dyn Fn(&Advice) + Send>,
}

/// What the configuration asks of the kernel's parameters.
#[derive(Clone, Copy, Debug)]
pub struct WantedParameters {
    /// The size of conntrack's table, and what else of it is set.
    pub conntrack: ConntrackSettings,
    /// Whether the node is to answer ARP only where an address is.
    pub strict_arp: bool,
}

impl NodeChecker {
    /// Keeps `held` up to date, and calls `publish` with each warning when it is reported.
    pub fn new(
        masquerade_all: bool,
        wanted: WantedParameters,
        another_proxy: AnotherProxy,
        sync_period: Duration,
        held: CurrentAdvice,
        publish: impl Fn(&Advice) + Send + 'static,
    ) -> Self {
        Self {
            masquerade_all,
            wanted,
            node: ProcSys::at(Path::new("/")),
            another_proxy,
            repair_loop: RepairLoop::new(sync_period),
            last_check: Instant::now(),
            dedup: AdviceDedup::default(),
            held,
            publish: Box::new(publish),
        }
    }

    /// Runs every check, in the calling thread's network namespace: with what Services use of the node, the writer's
    /// status, and what is left to report about the host's chains. Blocks.
    pub(crate) fn check(&mut self, in_use: &NodeUsage, status: &SyncStatus, firewall: &[Finding]) {
        let mut advice = host_firewall::check::check(firewall);
        // Where every flow is masqueraded the answers come back through the node.
        if !self.masquerade_all {
            advice.extend(self.bridges(&in_use.local_endpoints));
        }
        advice.extend(self.node_ports(&in_use.node_ports));
        advice.extend(parameters::check(Sysctl::default().differing(self.wanted.strict_arp)));
        advice.extend(self.timeouts());
        advice.extend(self.conntrack());
        advice.extend(self.another_proxy.check());
        advice.extend(self.repair_loop(status));
        self.report(&advice);
        self.held.set(advice);
    }

    fn bridges(&self, endpoints: &BTreeSet<IpAddr>) -> Vec<Advice> {
        let bridges = self.node.bridges();
        if bridges.is_empty() || endpoints.is_empty() {
            return Vec::new();
        }
        let mut ways = match RouteLookup::open() {
            Ok(ways) => ways,
            Err(error) => {
                debug!("not known which pods are behind a bridge: {}", one_line(&error));
                return Vec::new();
            }
        };
        let way = |endpoint| ways.interface_to(endpoint).ok().flatten();
        let for_all = |family: Family| Some(self.node.number(bridges::switch(family))? != 0);
        bridges::check(&bridges, endpoints, way, for_all)
    }

    fn node_ports(&self, node_ports: &BTreeSet<u16>) -> Option<Advice> {
        let local = self.node.parameter(node_ports::LOCAL_PORTS)?;
        let reserved = self.node.parameter(node_ports::RESERVED_PORTS).unwrap_or_default();
        node_ports::check(node_ports, &local, &reserved)
    }

    fn timeouts(&self) -> Option<Advice> {
        match KernelIpvs::open().and_then(|mut kernel| kernel.timeouts()) {
            Ok(ipvs) => timeouts::check(ipvs, OF_CONNTRACK.map(|key| self.node.number(key))),
            Err(error) => {
                debug!("the timeouts of IPVS are not known: {}", one_line(&error));
                None
            }
        }
    }

    fn conntrack(&self) -> Option<Advice> {
        let (count, most) = (self.node.number(table_full::COUNT)?, self.node.number(table_full::MOST)?);
        table_full::check(count, most, Sysctl::default().table_size(&self.wanted.conntrack))
    }

    fn repair_loop(&mut self, status: &SyncStatus) -> Option<Advice> {
        let last = status.last_repair.as_ref().and_then(|last| last.report.first_repair());
        let after = mem::replace(&mut self.last_check, Instant::now()).elapsed();
        self.repair_loop.check(status.repaired, last, after)
    }

    fn report(&mut self, advice: &[Advice]) {
        for transition in self.dedup.update(advice, Instant::now()) {
            match transition {
                Transition::Begins(advice) => {
                    advice.log_begin();
                    if advice.severity == Severity::Warning {
                        (self.publish)(&advice);
                    }
                }
                Transition::Ends(advice) => advice.log_end(),
            }
        }
    }
}
