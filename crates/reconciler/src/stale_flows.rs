//! Which UDP flows conntrack may still send where the kernel has just been told not to send them.
//!
//! They follow from the operations that were carried out, so that a change which concerns no UDP asks
//! conntrack for nothing. Whether such flows exist is not known here: to delete them costs a reading of
//! conntrack's table. To delete the entry of a flow that is still right costs that flow nothing but a new
//! source port where it is masqueraded: its next packet makes a new entry, to the same real server.

use std::{collections::BTreeSet, net::IpAddr};

use dummy_interface::Change::Bind;
use ipvs::{Command, Protocol, RealServerAddress, ServiceAddress};
use netfilter::conntrack::StaleFlow;
use watcher::{Observed, Operation};

/// Gathers stale flows while a plan is carried out.
#[derive(Debug, Default)]
pub(crate) struct StaleFlows {
    flows: BTreeSet<StaleFlow>,
    /// The VIPs that were bound; before, their packets went elsewhere.
    bound: BTreeSet<IpAddr>,
}

impl StaleFlows {
    /// Takes in an operation that was carried out, or may have been, and what was there before it.
    pub(crate) fn take(&mut self, operation: &Operation, before: &Observed) {
        match operation {
            Operation::Ipvs(command) => self.take_command(command, before),
            Operation::Link(Bind(vip)) => {
                self.bound.insert(*vip);
            }
            Operation::Link(_) | Operation::Netfilter(_) => {}
        }
    }

    fn take_command(&mut self, command: &Command, before: &Observed) {
        let Some(to) = command.address() else { return };
        if to.protocol != Protocol::Udp {
            return;
        }
        let flow = |answered_by: &RealServerAddress| StaleFlow { to, answered_by: *answered_by };
        match command {
            Command::AddVirtualServer(_) => self.flows.extend([untranslated(to)]),
            Command::DeleteRealServer(_, server) => self.flows.extend([flow(server)]),
            Command::DeleteVirtualServer(_) => {
                let image = before.virtual_servers.get(&to);
                self.flows.extend(image.iter().flat_map(|image| image.real_servers.addresses().map(flow)));
            }
            Command::EditVirtualServer(_) | Command::AddRealServer(..) | Command::EditRealServer(..) => {}
        }
    }

    /// Adds what came of a second plan.
    pub(crate) fn extend(&mut self, other: Self) {
        self.flows.extend(other.flows);
        self.bound.extend(other.bound);
    }

    /// Returns the stale flows, after the last plan. `after` is what the kernel has now, if that is known:
    /// the flows of a real server that was removed and came back are not stale.
    pub(crate) fn finish(mut self, after: Option<&Observed>) -> BTreeSet<StaleFlow> {
        let Some(after) = after else { return self.flows };
        if !self.bound.is_empty() {
            let udp = after.virtual_servers.keys().filter(|to| to.protocol == Protocol::Udp);
            self.flows.extend(udp.filter(|to| self.bound.contains(&to.ip)).copied().map(untranslated));
        }
        self.flows.retain(|StaleFlow { to, answered_by }| {
            let image = after.virtual_servers.get(to);
            !image.is_some_and(|image| image.real_servers.contains(answered_by))
        });
        self.flows
    }
}

/// The flows from before the virtual server existed, or before its VIP was bound. In conntrack the address
/// itself answers them, and IPVS leaves them so.
fn untranslated(to: ServiceAddress) -> StaleFlow {
    StaleFlow { to, answered_by: RealServerAddress { ip: to.ip, port: to.port } }
}
