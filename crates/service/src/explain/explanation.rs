//! The values of an explanation.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use ipvs::{Family, Protocol, RealServerAddress, Scheduler, ServiceAddress};
use serde::{Deserialize, Serialize};

use super::ExplainedClient;
use crate::{
    compute::{
        AddressKind, AddressOwner, EndpointReason, EndpointSelection, EndpointWeight, HealthCheck,
        HintsIgnored, NotServed, RefusedAddress,
    },
    input::{ObjectName, TrafficPolicy, Weight},
    liveness::Answering,
};

/// The least session affinity, in seconds, that a client of TCP has, whatever a Service asks for: `TIME_WAIT` of
/// `tcp_timeouts` in ip_vs_proto_tcp.c. `ip_vs_conn_expire` keeps the client's template while that controls a
/// connection.
pub const LEAST_AFFINITY: u32 = 120;

/// How one Service is served on this node, and which field of which object decides that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The Service.
    pub service: ObjectName,
    /// Why nothing is served; the rest is empty then, but for the problems.
    pub not_served: Option<NotServed>,
    /// How its connections are balanced, if its annotations ask for anything and it is served.
    pub balancing: Option<ExplainedBalancing>,
    /// For how many seconds after its last connection a client keeps its endpoint, as `sessionAffinity: ClientIP` asks,
    /// if it is served. IPVS does not forget a client before its connections, and a TCP connection that the client has
    /// closed is one for two minutes ([`LEAST_AFFINITY`]).
    // A daemon of an earlier release may be asked.
    #[serde(default)]
    pub session_affinity: Option<u32>,
    /// Its addresses with their endpoints: one part for each port, family and selection of endpoints.
    pub parts: Vec<ExplainedPart>,
    /// Slices of a family in which the Service has no ClusterIP: nothing of them is used.
    pub unused_slices: Vec<ObjectName>,
    /// The external addresses that are refused.
    pub refused: Vec<RefusedAddress>,
    /// The answer to load balancers that ask about this node.
    pub health_check: Option<HealthCheck>,
    /// The problems of the Service and its slices, each beginning with the object.
    pub problems: Vec<String>,
    /// For an unknown name: which Service may have been meant.
    #[serde(default)]
    pub hints: Vec<String>,
}

impl Explanation {
    /// The addresses at which it is served: no other Service has them.
    pub fn served_addresses(&self) -> impl Iterator<Item = ServiceAddress> {
        let all = self.parts.iter().flat_map(|part| &part.addresses);
        all.filter(|at| at.held_by.is_none()).map(|at| at.address)
    }
}

/// Addresses of one port and family with the same selection of endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedPart {
    /// The name of the port; empty for the only one.
    pub port: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// The family of addresses and endpoints.
    pub family: Family,
    /// Which endpoints they use.
    #[serde(rename = "choice")]
    pub selection: EndpointSelection,
    /// The external policy is Local and no endpoint is on this node, so that those elsewhere stand in, for this
    /// node and its pods. Others get no answer.
    pub stands_in: bool,
    /// How connections are balanced there, if the node of the endpoint answers the client itself.
    // A daemon of an earlier release may be asked.
    #[serde(default)]
    pub direct_return: Option<ExplainedBalancing>,
    /// The zone of this node, as its Node has it.
    pub zone: Option<String>,
    /// Some ready endpoints are hinted for nodes or zones, and that does not count.
    pub hints_ignored: Option<HintsIgnored>,
    /// The addresses, by kind and then sorted.
    pub addresses: Vec<ExplainedAddress>,
    /// The endpoints, those of each slice that has this port, sorted by address.
    pub endpoints: Vec<ExplainedEndpoint>,
    /// Slices of this family with endpoints, but without a port of this name and protocol.
    pub slices_without_port: Vec<ObjectName>,
    /// Slices of this family without any endpoint.
    #[serde(default)]
    pub empty_slices: Vec<ObjectName>,
}

/// An address at which a port is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedAddress {
    /// The address and port at which clients connect.
    pub address: ServiceAddress,
    /// Its kind in the Service.
    pub kind: AddressKind,
    /// The policy that counts there: `spec.internalTrafficPolicy` or `spec.externalTrafficPolicy`.
    pub policy: TrafficPolicy,
    /// Whether the address is bound to this node as a VIP.
    pub vip: bool,
    /// Whether conntrack does not track connections of pods to it.
    #[serde(default)]
    pub untracked: bool,
    /// The other owner of the address; `None`: nothing else has it.
    // A daemon of an earlier release may be asked.
    #[serde(default)]
    pub owner: Option<AddressOwner>,
    /// The other Service that owns it, because its claim comes first.
    pub held_by: Option<ObjectName>,
    /// The ranges of clients that are let in, first and last; `None`: everybody.
    pub allowed_sources: Option<Vec<(IpAddr, IpAddr)>>,
    /// The ranges of `spec.loadBalancerSourceRanges` that apply, as the Service writes them; `None`: everybody.
    #[serde(default)]
    pub source_ranges: Option<Vec<IpNet>>,
    /// What becomes of a client there, if the question names one.
    #[serde(default)]
    pub client: Option<ExplainedClient>,
}

/// An endpoint in a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedEndpoint {
    /// Where it listens.
    pub address: RealServerAddress,
    /// The EndpointSlice that has it.
    pub slice: ObjectName,
    /// Whether it is used, and why.
    #[serde(rename = "verdict")]
    pub reason: EndpointReason,
    /// Its weight, if it is used: its share of new connections.
    // A daemon of an earlier release, which knows no weights, may be asked.
    #[serde(default = "one")]
    pub weight: Weight,
    /// What the weight is made of, if annotations, options or failures make it another than usual.
    #[serde(default)]
    pub weight_parts: Option<EndpointWeight>,
    /// How it is reached, if it is used where the node of the endpoint answers the client itself.
    #[serde(default)]
    pub way: Option<EndpointPath>,
    /// Whether it answers, as IPVS counts at the addresses of this part; `None` if it is not used, or not known.
    #[serde(default)]
    pub answering: Option<Answering>,
}

/// How an endpoint is reached where its node answers the client itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndpointPath {
    /// It is on this node.
    Here,
    /// Through a tunnel to its node.
    Tunnel,
    /// Masqueraded, because its node has not confirmed that it unpacks what comes through a tunnel.
    Masqueraded,
}

impl fmt::Display for EndpointPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Here => "here",
            Self::Tunnel => "tunnel to its node",
            Self::Masqueraded => {
                "masqueraded: its node has not confirmed that it unpacks tunnels, or the network filters them"
            }
        })
    }
}

fn one() -> Weight {
    1
}

/// How the connections of a Service are balanced on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedBalancing {
    /// The scheduler, which picks the real server of a new connection.
    pub scheduler: Scheduler,
    /// Its flags, by the names that ipvsadm gives them.
    pub scheduler_flags: Vec<Box<str>>,
    /// With so many connections an endpoint gets no new ones; `None`: there is no limit.
    pub max_connections: Option<u32>,
    /// With fewer than so many it gets new ones again; `None`: as the kernel has it, below three quarters of
    /// the limit.
    pub resume_below: Option<u32>,
}
