//! What Services use of the node itself.

use std::{collections::BTreeSet, net::IpAddr};

use netfilter::Element;
use service::{AddressKind, State};

const DNS_PORT: u16 = 53;

/// What Services use of the node itself, so that the node must be fit for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeUsage {
    /// The NodePorts that are served.
    pub node_ports: BTreeSet<u16>,
    /// The addresses of this node's pods that are real servers.
    pub local_endpoints: BTreeSet<IpAddr>,
    /// The ClusterIPs at which DNS is served.
    pub dns: BTreeSet<IpAddr>,
    /// Whether other nodes may tunnel to this one.
    pub direct_return: bool,
}

impl NodeUsage {
    /// Collects what the desired state uses.
    pub fn from_state(state: &State) -> Self {
        let (mut node_ports, mut dns) = (BTreeSet::new(), BTreeSet::new());
        for server in state.virtual_servers() {
            match (server.kind, server.address.port) {
                (AddressKind::NodePort, port) => _ = node_ports.insert(port),
                (AddressKind::ClusterIp, DNS_PORT) => _ = dns.insert(server.address.ip),
                _ => {}
            }
        }
        // There is a hairpin element for each pod of this node that is a real server: it can be its own
        // client.
        let local_endpoint = |element| match element {
            Element::Hairpin(flow) => Some(flow.pod.ip),
            _ => None,
        };
        Self {
            node_ports,
            local_endpoints: state.elements().filter_map(local_endpoint).collect(),
            dns,
            direct_return: !state.unpacking().is_empty(),
        }
    }
}
