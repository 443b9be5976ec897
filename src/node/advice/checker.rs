//! One run of all checks: reads what they need, and reports what they find.

use std::{
    mem,
    sync::Weak,
    time::{Duration, Instant},
};

use ipvs::{KernelIpvs, Timeouts};
use reconciler::{NodeUsage, SyncStatus};
use service::one_line;
use tracing::debug;

use super::{
    Advice, CurrentAdvice, Severity,
    dedup::{AdviceDedup, Transition},
    filtered_tunnels::FilteredTunnels,
    ipvs_table, parameters,
    repair_loop::RepairLoop,
    settings::NodeSettings,
};
use crate::{
    config::ConntrackSettings,
    conntrack::table_full,
    node::{
        host_firewall::{self, Finding},
        sysctl::Sysctl,
    },
    takeover::{another_proxy::AnotherProxy, instance_lock::InstanceLock},
};

/// Checks the node, and remembers what was reported.
pub struct NodeChecker {
    /// Whether every flow is masqueraded.
    masquerade_all: bool,
    wanted: WantedParameters,
    settings: NodeSettings,
    elsewhere: FoundElsewhere,
    repair_loop: RepairLoop,
    last_check: Instant,
    dedup: AdviceDedup,
    held: CurrentAdvice,
    publish: Box<dyn Fn(&Advice) + Send>,
}

/// What other parts of the program find on the node.
pub struct FoundElsewhere {
    /// Another proxy that works here.
    pub another_proxy: AnotherProxy,
    /// The instance lock, which others may keep too.
    pub instance_lock: Weak<InstanceLock>,
    /// The nodes to which the network filters tunnels.
    pub filtered_tunnels: FilteredTunnels,
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
        elsewhere: FoundElsewhere,
        sync_period: Duration,
        held: CurrentAdvice,
        publish: impl Fn(&Advice) + Send + 'static,
    ) -> Self {
        Self {
            masquerade_all,
            wanted,
            settings: NodeSettings::of_this_node(),
            elsewhere,
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
        advice.extend(self.settings.check(in_use, self.masquerade_all, Self::ipvs_timeouts()));
        let differing = Sysctl::default().differing(self.wanted.strict_arp, in_use.direct_return);
        advice.extend(parameters::check(differing));
        advice.extend(self.conntrack());
        advice.extend(Self::ipvs_table());
        advice.extend(self.elsewhere.another_proxy.check());
        advice.extend(self.elsewhere.instance_lock.upgrade().and_then(|lock| lock.advice()));
        advice.extend(self.elsewhere.filtered_tunnels.check());
        advice.extend(self.repair_loop(status));
        self.report(&advice);
        self.held.set(advice);
    }

    fn ipvs_timeouts() -> Option<Timeouts> {
        let timeouts = KernelIpvs::open().and_then(|mut kernel| kernel.timeouts());
        if let Err(error) = &timeouts {
            debug!("the timeouts of IPVS are not known: {}", one_line(error));
        }
        timeouts.ok()
    }

    fn conntrack(&self) -> Option<Advice> {
        let (count, most) =
            (self.settings.number(table_full::COUNT)?, self.settings.number(table_full::MOST)?);
        table_full::check(count, most, Sysctl::default().table_size(&self.wanted.conntrack))
    }

    fn ipvs_table() -> Option<Advice> {
        let sysctl = Sysctl::default();
        ipvs_table::check(sysctl.ipvs_entries()?, sysctl.most_entries()?, sysctl.conn_max())
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
