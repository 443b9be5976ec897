//! Which UDP flows conntrack may still hold to a way that the kernel was just told is another one.
//!
//! They follow from what was done, so that a change which concerns no UDP asks conntrack for nothing. Whether
//! there are such flows is not known here; to ask for their deletion costs a reading of conntrack's table, and
//! to delete the entry of a flow that is still right after all costs it nothing but a new source port where it
//! is masqueraded: its next packet makes a new entry, to the same real server.

use std::{collections::BTreeSet, net::IpAddr};

use dummy_interface::Change::Bind;
use ipvs::{Command, Id, Protocol, RealServerAddress, ServiceAddress};
use netfilter::conntrack::StaleFlow;
use watcher::{Observed, Operation};

/// Gathers them while a plan is carried out.
#[derive(Debug, Default)]
pub(crate) struct StaleFlows {
    flows: BTreeSet<StaleFlow>,
    /// The VIPs that were bound: until then their packets went elsewhere.
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
        let Id::Address(to) = command.virtual_server() else { return };
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

    /// The flows, after the last plan. `after` is what is there now, if that is known: what was removed and came
    /// back serves again.
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

/// The flows from before there was a virtual server, or before its VIP was bound: for them the address itself
/// answers, and IPVS leaves them so.
fn untranslated(to: ServiceAddress) -> StaleFlow {
    StaleFlow { to, answered_by: RealServerAddress { ip: to.ip, port: to.port } }
}
