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
}

impl NodeUsage {
    /// Collects what the desired state uses.
    pub fn from_state(state: &State) -> Self {
        let dns = state
            .virtual_servers()
            .filter(|server| server.kind == AddressKind::ClusterIp && server.address.port == DNS_PORT);
        let at_node_ports = state.virtual_servers().filter(|server| server.kind == AddressKind::NodePort);
        // There is a hairpin element for each pod of this node that is a real server: it can be its own
        // client.
        let local_endpoint = |element| match element {
            Element::Hairpin(flow) => Some(flow.pod.ip),
            _ => None,
        };
        Self {
            node_ports: at_node_ports.map(|server| server.address.port).collect(),
            local_endpoints: state.elements().filter_map(local_endpoint).collect(),
            dns: dns.map(|server| server.address.ip).collect(),
        }
    }
}
