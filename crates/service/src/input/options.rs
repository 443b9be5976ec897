//! The part of the configuration that shapes the desired state.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use ipvs::{Family, Scheduler, Tunnel};

use super::{ForwardingMethod, Service};

/// The configuration that is the same for every Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The name of this node, lower case; decides which endpoints are local.
    pub node_name: Arc<str>,
    /// The scheduler of every virtual server.
    pub scheduler: Scheduler,
    /// At which of the node's addresses NodePorts are served.
    pub node_port_addresses: NodePortAddresses,
    /// `bindAddress`: counts before the node IPs of its family where [`NodePortAddresses::Primary`] asks
    /// for them. A single address: `0.0.0.0` and `::` are none.
    pub bind_address: Option<IpAddr>,
    /// Which of `spec.externalIPs` are served.
    pub external_ips: ExternalIps,
    /// How what comes in at external addresses reaches the endpoints of every Service that says nothing about it.
    pub forwarding_method: ForwardingMethod,
    /// How packets are put into others for another node.
    pub tunnel: Tunnel,
    /// The families in which pods of this node can be told from others.
    pub knows_pods: BTreeSet<Family>,
    /// Whether other nodes can ask this one what it unpacks.
    pub answers_peers: bool,
}

impl Options {
    /// How what comes in at a Service's external addresses is to reach the endpoints.
    pub(crate) fn forwarding_method_of(&self, service: &Service) -> ForwardingMethod {
        service.forwarding_method().unwrap_or(self.forwarding_method)
    }

    /// The defaults of every option that has one, for the node of this name: rr, NodePorts at all addresses,
    /// external IPs but for the node's own, no tunnels.
    pub fn new(node_name: impl Into<Arc<str>>) -> Self {
        Self {
            node_name: node_name.into(),
            scheduler: Scheduler::RR,
            node_port_addresses: NodePortAddresses::All,
            bind_address: None,
            external_ips: ExternalIps::NoNodeIps,
            forwarding_method: ForwardingMethod::default(),
            tunnel: Tunnel::default(),
            knows_pods: BTreeSet::new(),
            answers_peers: true,
        }
    }
}

/// Which of `spec.externalIPs` are served (CVE-2020-8554). Never a [`SpecialAddress`](crate::SpecialAddress), and
/// never another Service's ClusterIP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExternalIps {
    /// None: the feature gate `AllowServiceExternalIPs` is off.
    Off,
    /// All but the IPs of this node, which its own programs have.
    NoNodeIps,
    /// Those in these ranges and no others, the IPs of this node too: the operator has allowed them.
    In(Vec<IpNet>),
}

/// At which of the node's addresses NodePorts are served (`nodePortAddresses`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// At all of them.
    All,
    /// At the primary node IP of each family, if an interface of the node has it. In a family without, at
    /// no address.
    Primary,
    /// At those in these ranges. A family without any range is served at all its addresses, as
    /// upstream does it.
    Ranges(Vec<IpNet>),
}

impl NodePortAddresses {
    /// Whether every address of a family is meant: all are, or no range is of this family, or one is the whole of it.
    pub fn is_everywhere(&self, family: Family) -> bool {
        match self {
            Self::All => true,
            Self::Primary => false,
            Self::Ranges(ranges) => {
                self.leaves_out(family)
                    || ranges
                        .iter()
                        .any(|range| Family::from(range.addr()) == family && range.prefix_len() == 0)
            }
        }
    }

    /// Whether there are ranges and none is of this family.
    pub fn leaves_out(&self, family: Family) -> bool {
        match self {
            Self::All | Self::Primary => false,
            Self::Ranges(ranges) => ranges.iter().all(|range| Family::from(range.addr()) != family),
        }
    }
}
