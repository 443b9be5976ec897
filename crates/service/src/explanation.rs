//! Why a Service is served on this node as it is: the values, and how they read.

use std::{fmt, net::IpAddr};

use ipvs::{Family, Protocol, RealServerAddress, Scheduler, ServiceAddress};
use serde::{Deserialize, Serialize};

use crate::{AddressKind, HealthCheck, ObjectName, Refused, Traffic, TrafficPolicy, Weight};

/// What becomes of one Service on this node, and which field of which object decides it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The Service.
    pub service: ObjectName,
    /// Why nothing is served; the rest is empty then, but for the problems.
    pub not_served: Option<NotServed>,
    /// How its connections are balanced, if its annotations ask for anything and it is served.
    pub balancing: Option<ExplainedBalancing>,
    /// Its addresses with their endpoints: one part for each port, family and choice of endpoints.
    pub parts: Vec<Part>,
    /// Slices of a family in which the Service has no ClusterIP: nothing of them is used.
    pub unused_slices: Vec<ObjectName>,
    /// The external addresses that it asks for and does not get.
    pub refused: Vec<Refused>,
    /// What a load balancer is told of this node, if it asks.
    pub health_check: Option<HealthCheck>,
    /// What was wrong with the Service and its slices, in words, the object first.
    pub problems: Vec<String>,
}

/// Why a Service is not served at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NotServed {
    /// No Service of this name is known: there is none, or the API server does not tell of it, as of those that are
    /// headless or that another proxy serves.
    Unknown,
    /// The label `service.kubernetes.io/service-proxy-name` gives it to another proxy.
    OtherProxy,
    /// `spec.type: ExternalName`.
    ExternalName,
    /// It is headless, or has no ClusterIP yet, or none that can be read.
    NoClusterIp,
}

/// Addresses of one port and family that choose among the same endpoints in the same way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The name of the port; empty for the only one.
    pub port: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// The family of addresses and endpoints.
    pub family: Family,
    /// What they choose.
    pub choice: Choice,
    /// The external policy is Local and no endpoint is on this node, so that those elsewhere stand in. They see the
    /// client's address and answer it past this node: only pods of this node get an answer.
    pub stands_in: bool,
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
}

/// An address at which a port is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedAddress {
    /// Where.
    pub address: ServiceAddress,
    /// What it is to the Service.
    pub kind: AddressKind,
    /// The policy that counts there: `spec.internalTrafficPolicy` or `spec.externalTrafficPolicy`.
    pub policy: TrafficPolicy,
    /// Whether the address is bound to kube-ipvs0; otherwise an interface of the node has it.
    pub vip: bool,
    /// Another Service, which has it because its claim comes first.
    pub held_by: Option<ObjectName>,
    /// The ranges of clients that are let in, first and last; `None`: everybody.
    pub allowed_sources: Option<Vec<(IpAddr, IpAddr)>>,
}

/// An endpoint in a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedEndpoint {
    /// Where it listens.
    pub address: RealServerAddress,
    /// The EndpointSlice that has it.
    pub slice: ObjectName,
    /// Whether it is used.
    pub verdict: Verdict,
    /// Its share of new connections, if it is used.
    // A daemon of an earlier release, which knows no weights, may be asked.
    #[serde(default = "one")]
    pub weight: Weight,
}

fn one() -> Weight {
    Weight::MIN
}

/// How the connections of a Service are balanced on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedBalancing {
    /// What picks the real server of a new connection.
    pub scheduler: Scheduler,
    /// Its flags, by the names that ipvsadm gives them.
    pub scheduler_flags: Vec<Box<str>>,
    /// With so many connections an endpoint gets no new ones; `None`: there is no limit.
    pub max_connections: Option<u32>,
    /// With fewer than so many it gets new ones again; `None`: as the kernel has it, below three quarters of the limit.
    pub resume_below: Option<u32>,
}

/// Which endpoints of a port are used: a decision over all of them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "use", content = "reach", rename_all = "kebab-case")]
pub enum Choice {
    /// The ready endpoints within reach.
    Ready(Reach),
    /// None of them is ready. Those that terminate but still serve are better than nothing (KEP-1669).
    Draining(Reach),
    /// There are neither.
    Nothing,
}

/// How far traffic may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// To every endpoint of the cluster.
    Cluster,
    /// To the endpoints that run on this node: the policy demands it.
    Local,
    /// To the endpoints that are hinted for this node (KEP-3015).
    HintedNode,
    /// To the endpoints that are hinted for this node's zone (KEP-2433).
    HintedZone,
}

/// Whether an endpoint is used, and what decides if it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is a real server at those addresses of its part that no other Service has.
    Used,
    /// `conditions.ready` is false, and it does not terminate.
    NotReady,
    /// `conditions.terminating` is true and `conditions.serving` false.
    NoLongerServing,
    /// `conditions.terminating` is true, and there are ready ones.
    Terminating,
    /// Its `nodeName` is not this node, and the policy is Local.
    OnAnotherNode,
    /// Its `hints.forNodes` do not name this node.
    HintedForOtherNodes,
    /// Its `hints.forZones` do not name this node's zone.
    HintedForOtherZones,
    /// The virtual server has as many real servers as it may: [`MOST_OF_A_VIRTUAL_SERVER`](crate::MOST_OF_A_VIRTUAL_SERVER).
    BeyondLimit,
    /// The same address is listed once more, and what is said there counts.
    ListedAgain,
}

/// Why hints do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HintsIgnored {
    /// A ready endpoint has none.
    NotOnEveryEndpoint,
    /// No ready endpoint is hinted for this node or its zone.
    NoneForThisNode,
    /// The Node has no label `topology.kubernetes.io/zone`.
    NodeWithoutZone,
    /// A policy demands where hints only prefer.
    PolicyLocal,
}

impl fmt::Display for NotServed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => {
                "no such Service is known (headless ones, and those with the label \
                 service.kubernetes.io/service-proxy-name, are not asked for)"
            }
            Self::OtherProxy => {
                "the label service.kubernetes.io/service-proxy-name gives it to another proxy"
            }
            Self::ExternalName => "spec.type is ExternalName",
            Self::NoClusterIp => "spec.clusterIPs has no address",
        })
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(reach) => write!(f, "the ready endpoints {reach}"),
            Self::Draining(reach) => {
                write!(f, "none is ready {reach}: those that terminate and still serve")
            }
            Self::Nothing => f.write_str("no endpoint can be used: clients are refused"),
        }
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster => "of the cluster",
            Self::Local => "on this node",
            Self::HintedNode => "hinted for this node",
            Self::HintedZone => "hinted for this node's zone",
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Used => "used",
            Self::NotReady => "not used: conditions.ready is false",
            Self::NoLongerServing => "not used: conditions.terminating is true, and conditions.serving false",
            Self::Terminating => "not used: conditions.terminating is true, and others are ready",
            Self::OnAnotherNode => "not used: nodeName is another node, and the policy is Local",
            Self::HintedForOtherNodes => "not used: hints.forNodes are other nodes",
            Self::HintedForOtherZones => "not used: hints.forZones are other zones",
            Self::BeyondLimit => "not used: as many as a virtual server can have come before it",
            Self::ListedAgain => "passed over: another entry has the same address, and that one counts",
        })
    }
}

impl fmt::Display for HintsIgnored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotOnEveryEndpoint => "not every ready endpoint has them",
            Self::NoneForThisNode => "none is for this node or its zone",
            Self::NodeWithoutZone => "the Node has no label topology.kubernetes.io/zone",
            Self::PolicyLocal => "the policy is Local",
        })
    }
}

impl AddressKind {
    /// Where traffic comes in at such an address.
    pub fn traffic(self) -> Traffic {
        match self {
            Self::ClusterIp => Traffic::Internal,
            Self::NodePort | Self::LoadBalancer | Self::ExternalIp => Traffic::External,
        }
    }
}
