//! Stale UDP flows: conntrack would go on sending them to where a sync has just stopped sending them.
//!
//! They follow from the operations that were carried out: a change without UDP costs nothing. Whether such
//! flows exist is not known here: deleting them means reading conntrack's table. A flow that is still right
//! is left alone: its next packet would make a new entry, to the same real server, but an answer to a
//! masqueraded flow that is under way would be lost.

use std::{collections::BTreeSet, mem, net::IpAddr};

use dummy_interface::Operation::Bind;
use ipvs::{
    Command::{AddVirtualServer, DeleteRealServer, DeleteVirtualServer},
    Family, Protocol, ServiceAddress,
};
use netfilter::{Operation::InstallTable, conntrack::StaleFlows};
use watcher::{Observed, Operation, VirtualServerImage};

/// The changes that make flows stale, collected while plans are carried out.
#[derive(Debug, Default)]
pub(crate) struct Rerouted {
    /// Virtual servers that are new or gone, or lost a real server.
    addresses: BTreeSet<ServiceAddress>,
    /// The addresses that became this node's: VIPs that were bound, and its own that came back. Until then,
    /// their packets went to other nodes.
    local_again: BTreeSet<IpAddr>,
    /// The families whose table was installed. Until then, flows may have begun without masquerade, and while
    /// another table has a rule for that, conntrack does not evaluate it again (`nf_nat_inet_fn` in
    /// net/netfilter/nf_nat_core.c).
    installed: BTreeSet<Family>,
}

impl Rerouted {
    /// Records an operation that was carried out, or may have been.
    pub(crate) fn record(&mut self, operation: &Operation) {
        match operation {
            Operation::Ipvs(
                command @ (AddVirtualServer(_) | DeleteRealServer(..) | DeleteVirtualServer(_)),
            ) => self.addresses.extend(command.address().filter(|to| to.protocol == Protocol::Udp)),
            Operation::DummyInterface(Bind(vip)) => _ = self.local_again.insert(*vip),
            Operation::Netfilter(InstallTable(family)) => _ = self.installed.insert(*family),
            Operation::Ipvs(_) | Operation::DummyInterface(_) | Operation::Netfilter(_) => {}
        }
    }

    /// Records addresses that became local without an operation of ours.
    pub(crate) fn record_local_addresses(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.local_again.extend(addresses);
    }

    /// Adds the changes of another plan.
    pub(crate) fn extend(&mut self, other: Self) {
        self.addresses.extend(other.addresses);
        self.local_again.extend(other.local_again);
        self.installed.extend(other.installed);
    }

    /// Takes the flows to the recorded addresses, except those to real servers that the kernel has now.
    /// Without an image of the kernel they wait for the next sync.
    pub(crate) fn take_stale_flows(&mut self, now: Option<&Observed>) -> StaleFlows {
        let Some(now) = now else { return StaleFlows::default() };
        let Self { mut addresses, local_again, installed } = mem::take(self);
        let udp = || now.virtual_servers.keys().filter(|to| to.protocol == Protocol::Udp);
        if !local_again.is_empty() {
            addresses.extend(udp().filter(|to| local_again.contains(&to.ip)));
        }
        let served = |to: ServiceAddress| {
            let image = now.virtual_servers.get(&to);
            let real_servers = image.into_iter().flat_map(VirtualServerImage::real_servers);
            (to, real_servers.map(|server| server.config.address).collect())
        };
        let mut flows: StaleFlows = addresses.into_iter().map(served).collect();
        if !installed.is_empty() {
            let all = udp().filter(|to| installed.contains(&Family::from(to.ip))).copied();
            flows.merge(StaleFlows::unless_masqueraded(all.map(served)));
        }
        flows
    }
}
