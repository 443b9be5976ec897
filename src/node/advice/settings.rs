//! The settings of the node on which what Services use of it depends: reads them, and reports which hurt traffic. Before
//! the start as well as afterwards.

use std::{collections::BTreeSet, net::IpAddr, path::Path};

use dummy_interface::{RouteLookup, addresses_of};
use ipvs::{Family, Timeouts};
use reconciler::NodeUsage;
use service::one_line;
use tracing::debug;

use super::{
    Advice, bridges, node_local_dns, node_ports,
    proc_sys::ProcSys,
    timeouts::{self, OF_CONNTRACK},
};
use crate::node::sysctl::Change;

/// The settings of this node.
#[derive(Clone, Debug)]
pub(crate) struct NodeSettings {
    node: ProcSys,
    changes: Vec<Change>,
}

impl NodeSettings {
    /// Those of the calling thread's network namespace.
    pub(crate) fn of_this_node() -> Self {
        Self { node: ProcSys::at(Path::new("/")), changes: Vec::new() }
    }

    /// As they will be when these parameters are set.
    pub(crate) fn with(self, changes: Vec<Change>) -> Self {
        Self { changes, ..self }
    }

    /// What hurts traffic to Services that use this of the node, where every flow is masqueraded or not. The timeouts of
    /// IPVS are not known where there is none.
    pub(crate) fn check(
        &self,
        in_use: &NodeUsage,
        masquerade_all: bool,
        ipvs: Option<Timeouts>,
    ) -> Vec<Advice> {
        let mut advice = Vec::new();
        // Where every flow is masqueraded the answers come back through the node.
        if !masquerade_all {
            advice.extend(self.bridges(&in_use.local_endpoints));
        }
        advice.extend(self.node_local_dns(&in_use.dns));
        advice.extend(self.node_ports(&in_use.node_ports));
        advice.extend(ipvs.and_then(|ipvs| timeouts::check(ipvs, OF_CONNTRACK.map(|key| self.number(key)))));
        advice
    }

    fn node_local_dns(&self, dns: &BTreeSet<IpAddr>) -> Option<Advice> {
        let interface = self.node.index(node_local_dns::INTERFACE)?;
        match addresses_of(interface) {
            Ok(addresses) => node_local_dns::check(&addresses, dns),
            Err(error) => {
                debug!("the addresses of NodeLocal DNSCache are not known: {}", one_line(&error));
                None
            }
        }
    }

    /// A kernel parameter that is a number.
    pub(super) fn number(&self, key: &str) -> Option<u32> {
        match self.changes.iter().find(|change| change.key == key) {
            Some(change) => change.wanted.parse().ok(),
            None => self.node.number(key),
        }
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
        let for_all = |family: Family| Some(self.number(bridges::switch(family))? != 0);
        bridges::check(&bridges, endpoints, way, for_all)
    }

    fn node_ports(&self, node_ports: &BTreeSet<u16>) -> Option<Advice> {
        let local = self.node.parameter(node_ports::LOCAL_PORTS)?;
        let reserved = self.node.parameter(node_ports::RESERVED_PORTS).unwrap_or_default();
        node_ports::check(node_ports, &local, &reserved)
    }
}
