//! Which UDP flows conntrack may still send where the kernel has just been told not to send them.
//!
//! They follow from the operations that were carried out, so that a change which concerns no UDP asks
//! conntrack for nothing. Whether such flows exist is not known here: to delete them costs a reading of
//! conntrack's table. A flow that is still right is left alone: its next packet would make a new entry, to the same
//! real server, but where it is masqueraded an answer that is under way would not find its way back.

use std::{collections::BTreeSet, mem, net::IpAddr};

use dummy_interface::Operation::Bind;
use ipvs::{Command, Family, Protocol, ServiceAddress};
use netfilter::{Operation::InstallTable, conntrack::StaleFlows};
use watcher::{Observed, Operation};

/// What was changed that makes flows stale, gathered while plans are carried out.
#[derive(Debug, Default)]
pub(crate) struct Rerouted {
    /// Virtual servers that are new or gone, or lost a real server.
    addresses: BTreeSet<ServiceAddress>,
    /// The addresses that became this node's: VIPs that were bound, and its own that came back. Before, their packets
    /// went elsewhere.
    local_again: BTreeSet<IpAddr>,
    /// The families whose table was installed. Before, flows may have begun that were not masqueraded, and while
    /// another table has a rule for that, conntrack does not ask again (`nf_nat_inet_fn` in
    /// net/netfilter/nf_nat_core.c).
    installed: BTreeSet<Family>,
}

impl Rerouted {
    /// Takes in an operation that was carried out, or may have been.
    pub(crate) fn take(&mut self, operation: &Operation) {
        match operation {
            Operation::Ipvs(command) => self.take_command(command),
            Operation::DummyInterface(Bind(vip)) => {
                self.local_again.insert(*vip);
            }
            Operation::Netfilter(InstallTable(family)) => {
                self.installed.insert(*family);
            }
            Operation::DummyInterface(_) | Operation::Netfilter(_) => {}
        }
    }

    fn take_command(&mut self, command: &Command) {
        match command {
            Command::AddVirtualServer(_)
            | Command::DeleteRealServer(..)
            | Command::DeleteVirtualServer(_) => {
                self.addresses.extend(command.address().filter(|to| to.protocol == Protocol::Udp));
            }
            Command::EditVirtualServer(_) | Command::AddRealServer(..) | Command::EditRealServer(..) => {}
        }
    }

    /// Takes in addresses that became this node's without an operation of ours.
    pub(crate) fn came(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.local_again.extend(addresses);
    }

    /// Adds what came of another plan.
    pub(crate) fn extend(&mut self, other: Self) {
        self.addresses.extend(other.addresses);
        self.local_again.extend(other.local_again);
        self.installed.extend(other.installed);
    }

    /// Takes out the flows to all this that none of the real servers answers which the kernel has now. Without
    /// knowledge of the kernel everything waits for the next sync.
    pub(crate) fn stale_flows(&mut self, now: Option<&Observed>) -> StaleFlows {
        let Some(now) = now else { return StaleFlows::default() };
        let Self { mut addresses, local_again, installed } = mem::take(self);
        let udp = || now.virtual_servers.keys().filter(|to| to.protocol == Protocol::Udp);
        if !local_again.is_empty() {
            addresses.extend(udp().filter(|to| local_again.contains(&to.ip)));
        }
        let served = |to: ServiceAddress| {
            let image = now.virtual_servers.get(&to);
            (to, image.into_iter().flat_map(|image| image.real_servers.addresses()).copied().collect())
        };
        let mut flows: StaleFlows = addresses.into_iter().map(served).collect();
        if !installed.is_empty() {
            let all = udp().filter(|to| installed.contains(&Family::from(to.ip))).copied();
            flows.merge(StaleFlows::unless_masqueraded(all.map(served)));
        }
        flows
    }
}
