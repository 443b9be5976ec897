//! What the checks before the start read: the kernel as far as that loads no module, and what a daemon would
//! make of it.

use host_rules::host_firewall::{FirewallChains as _, HostChains, LegacyChains};
use ipvs::{Info, KernelIpvs, Timeouts};
use netfilter::Policy;
use reconciler::{ForeignVirtualServers, NodeUsage};
use service::State;
use watcher::{Observed, Plan};

use super::{facts::Facts, modules::Modules, parameters};
use crate::{
    config::Settings,
    finding::Finding,
    node::{host_firewall::findings, requirements, sysctl::conntrack::TCP_ESTABLISHED},
};

/// What the checks before the start read.
pub(crate) struct BeforeStart<'a> {
    /// The settings of the daemon; `None` where its flags are not known.
    pub(super) settings: Option<&'a Settings>,
    /// The desired state; `None` where the Services are not known.
    pub(super) state: Option<&'a State>,
    /// What the first sync would do, where the Services are known.
    pub(super) first_sync: Option<FirstSync>,
    /// The policy of our tables.
    pub(super) policy: Policy,
    pub(super) kernel: KernelRead,
    pub(super) facts: Facts,
    /// The finding that conntrack's parameters could not be read, if that is so.
    pub(super) unread_parameters: Option<Finding>,
}

/// What was read of the kernel; empty where nothing is there or could be read.
pub(crate) struct KernelRead {
    /// As `uname -r` prints it.
    pub(crate) release: String,
    pub(crate) modules: Modules,
    /// IPVS and its version, if it is loaded.
    pub(crate) ipvs: Option<(KernelIpvs, Info)>,
    pub(crate) ipvs_timeouts: Option<Timeouts>,
    pub(crate) observed: Observed,
    /// Whether nf_tables has answered.
    pub(crate) nf_tables: bool,
}

/// What the first sync would do.
pub(crate) struct FirstSync {
    pub(crate) plan: Plan,
    /// The foreign virtual servers that stay.
    pub(crate) kept: ForeignVirtualServers,
}

impl<'a> BeforeStart<'a> {
    /// For a daemon with these settings, as far as they are known, and its desired state, as far as it is
    /// known.
    pub(crate) fn new(
        settings: Option<&'a Settings>,
        state: Option<&'a State>,
        first_sync: Option<FirstSync>,
        policy: Policy,
        kernel: KernelRead,
    ) -> Self {
        let mut facts = Facts::default();
        let mut unread_parameters = None;
        if let Some(settings) = settings {
            facts.ejects = !settings.services.ejection.is_empty();
            (facts.changes, unread_parameters) = parameters::changes(settings, &facts.sysctl);
            if let Some(state) = state {
                facts.in_use = NodeUsage::from_state(state);
                facts.masquerade_all = settings.masquerade_all;
                let timeouts = settings.ipvs_timeouts.resolve(facts.number(TCP_ESTABLISHED));
                let resulting = |found| requirements::resulting(found, timeouts);
                facts.ipvs_timeouts = kernel.ipvs_timeouts.map(resulting);
            }
        }
        Self { settings, state, first_sync, policy, kernel, facts, unread_parameters }
    }

    /// Whether other nodes would tunnel to this one.
    pub(super) fn direct_return(&self) -> bool {
        self.state.is_some_and(|state| !state.unpacking().is_empty())
    }
}

/// The host's own firewall, before our rules are applied.
pub(super) fn host_firewall(node: &mut BeforeStart<'_>) -> Vec<Finding> {
    let policy = &node.policy;
    let nf_tables = node.kernel.modules.ask_nf_tables(|| HostChains::open()?.closed_chains(policy));
    let legacy = LegacyChains::open()
        .and_then(|mut chains| Ok((chains.closed_chains(policy)?, chains.unseen().to_vec())));
    findings::before_start(nf_tables, legacy, policy)
}
