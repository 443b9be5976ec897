//! This node.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipvs::{Family, Scheduler};

use super::{Absence, Node, NodePortAddresses, Options};

/// This node, as far as it is known and Services depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThisNode {
    node: Node,
    addresses: BTreeSet<IpAddr>,
    /// Those that it had a moment ago.
    lost: BTreeSet<IpAddr>,
    node_port_addresses: Box<[IpAddr]>,
    /// Those, and the lost ones that would be among them.
    node_port_frontends: Box<[IpAddr]>,
    /// Those that cannot be used on it.
    missing_schedulers: BTreeMap<Scheduler, Absence>,
}

impl ThisNode {
    /// Finds out anew where NodePorts are served.
    fn settled(mut self, options: &Options) -> Self {
        let of = |addresses: &BTreeSet<IpAddr>| node_port_addresses(&self.node.ips, addresses, options);
        let either = &self.addresses | &self.lost;
        (self.node_port_addresses, self.node_port_frontends) = (of(&self.addresses), of(&either));
        self
    }

    /// This node with another description. One without IPs is not finished, or not whole: the earlier IPs
    /// hold.
    pub(crate) fn described(&self, mut node: Node, options: &Options) -> Self {
        if node.ips.is_empty() {
            node.ips.clone_from(&self.node.ips);
        }
        // No Service depends on it.
        node.leaving = false;
        Self { node, ..self.clone() }.settled(options)
    }

    /// This node with other addresses on its interfaces, and others that these had a moment ago.
    pub(crate) fn with_addresses(
        &self,
        addresses: BTreeSet<IpAddr>,
        lost: BTreeSet<IpAddr>,
        options: &Options,
    ) -> Self {
        Self { addresses, lost, ..self.clone() }.settled(options)
    }

    /// This node with these schedulers as the missing ones.
    pub(crate) fn without_schedulers(&self, missing_schedulers: BTreeMap<Scheduler, Absence>) -> Self {
        Self { missing_schedulers, ..self.clone() }
    }

    /// Why a scheduler cannot be used on it; `None`: as far as is known, it can.
    pub(crate) fn lacks(&self, scheduler: Scheduler) -> Option<Absence> {
        self.missing_schedulers.get(&scheduler).copied()
    }

    /// The zone it is in.
    pub(crate) fn zone(&self) -> Option<&str> {
        self.node.zone.as_deref()
    }

    /// The node IPs.
    pub(crate) fn ips(&self) -> &[IpAddr] {
        &self.node.ips
    }

    /// Whether an interface of its own has this address.
    pub(crate) fn has(&self, ip: &IpAddr) -> bool {
        self.addresses.contains(ip)
    }

    /// Those of its addresses at which NodePorts are served, sorted.
    pub(crate) fn node_port_addresses(&self) -> &[IpAddr] {
        &self.node_port_addresses
    }

    /// Where NodePorts have virtual servers, sorted: at these addresses, and at those that it had a moment ago.
    pub(crate) fn node_port_frontends(&self) -> &[IpAddr] {
        &self.node_port_frontends
    }
}

/// Those of a node's addresses at which NodePorts are served, sorted.
fn node_port_addresses(
    node_ips: &[IpAddr],
    addresses: &BTreeSet<IpAddr>,
    options: &Options,
) -> Box<[IpAddr]> {
    let served = |ip: &IpAddr| match &options.node_port_addresses {
        NodePortAddresses::All => true,
        NodePortAddresses::Primary => primary(Family::from(*ip), node_ips, options) == Some(*ip),
        NodePortAddresses::Ranges(ranges) => {
            options.node_port_addresses.is_everywhere(Family::from(*ip))
                || ranges.iter().any(|range| range.contains(ip))
        }
    };
    addresses.iter().filter(|ip| served(ip)).copied().collect()
}

/// The node's primary address of a family. Behind NAT, for example, no interface of the node has it.
fn primary(family: Family, node_ips: &[IpAddr], options: &Options) -> Option<IpAddr> {
    options.bind_address.iter().chain(node_ips).copied().find(|ip| Family::from(*ip) == family)
}
