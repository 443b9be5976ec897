//! What becomes of one client's new connections to an address: by the elements that are wanted for it, as the rules of
//! `netfilter`'s `table/ruleset/chains.rs` read them.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use ipvs::Family;
use netfilter::{Element, HairpinFlow, LocalTraffic, MasqueradeSet, Policy};
use serde::{Deserialize, Serialize};

use super::{ExplainedAddress, Explanation};
use crate::{
    compute::{AddressKind, DesiredVirtualServer},
    state::State,
};

/// A client, and the policy of our tables, by which pods of this node are recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its address, or one of this node's for the node itself.
    pub ip: IpAddr,
    /// The policy.
    pub policy: Policy,
}

/// What becomes of a client's new connections to an address, if they reach this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedClient {
    /// The client.
    pub ip: IpAddr,
    /// Whether it is let in.
    pub admission: Admission,
    /// Which source address the endpoint sees.
    pub source: SourceAddress,
    /// It is a pod of this node, and IPVS may choose it as the endpoint; it is masqueraded then.
    pub may_reach_itself: bool,
}

/// Whether a client is let in, and what decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Admission {
    /// Every client is.
    Everyone,
    /// It is in this range of `spec.loadBalancerSourceRanges`, as the Service writes it.
    SourceRange(IpNet),
    /// It is this node, one of whose addresses is in the source ranges.
    ThisNode,
    /// `spec.loadBalancerSourceRanges` has no range with it: its packets are dropped.
    OutsideSourceRanges,
    /// The external policy is Local, and no endpoint is on this node: it is dropped, unless it is a pod of this node.
    NoLocalEndpoint,
    /// The same where pods of this node are recognised by their interface: it is dropped unless it comes in there.
    OnlyPodsOfThisNode,
    /// No endpoint is selected: it is refused.
    NoEndpoint,
    /// The address is not local to this node, which serves only its own connections there.
    NotBound,
    /// The address is of the other family.
    OtherFamily,
}

/// Which source address the endpoint sees, and why. A masqueraded client appears as this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceAddress {
    /// Masqueraded: `masqueradeAll`.
    MasqueradeAll,
    /// Masqueraded: it is not a pod of this node, and the endpoint would answer past this node.
    NotAPodOfThisNode,
    /// Masqueraded: by `externalTrafficPolicy: Cluster` the endpoint may be on another node.
    PolicyCluster,
    /// Masqueraded: it is this node.
    ThisNode,
    /// Its own: it is a pod of this node.
    PodOfThisNode,
    /// Its own: pods of this node are not recognised in this family.
    PodsUnknown,
    /// Its own if it comes in by an interface of this node's pods; masqueraded otherwise.
    ByInterface,
    /// Its own: `externalTrafficPolicy: Local`.
    PolicyLocal,
    /// Its own: the node of the endpoint answers it directly.
    DirectReturn,
}

impl Admission {
    /// Whether it may be let in.
    pub fn is_let_in(self) -> bool {
        matches!(self, Self::Everyone | Self::SourceRange(_) | Self::ThisNode | Self::OnlyPodsOfThisNode)
    }
}

/// How a client appears to our rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    ThisNode,
    PodOfThisNode,
    Elsewhere,
    /// Only the interface by which it comes in says whether it is a pod of this node.
    ByInterface,
    /// Pods of this node are not recognised in the family.
    PodsUnknown,
}

impl State {
    /// Adds to each address of an explanation what becomes of a client there.
    pub fn explain_client(&self, explanation: &mut Explanation, client: &Client) {
        for at in explanation.parts.iter_mut().flat_map(|part| &mut part.addresses) {
            at.client = self.virtual_server(&at.address).map(|server| self.client_at(at, server, client));
        }
    }

    fn client_at(
        &self,
        at: &ExplainedAddress,
        server: &DesiredVirtualServer,
        client: &Client,
    ) -> ExplainedClient {
        let origin = self.origin(client);
        let hairpin = |pod| Element::Hairpin(HairpinFlow { protocol: at.address.protocol, pod });
        let mut itself = server.real_servers.iter().filter(|it| it.address.ip == client.ip);
        ExplainedClient {
            ip: client.ip,
            admission: self.admission(at, server, client.ip, origin),
            source: source(server.masquerade, client.policy.masquerade_all, origin),
            may_reach_itself: itself.any(|it| self.wants_element(&hairpin(it.address))),
        }
    }

    /// How the rules recognise a client.
    fn origin(&self, Client { ip, policy }: &Client) -> Origin {
        let family = Family::from(*ip);
        if self.inputs.node.has(ip) || ip.is_loopback() {
            return Origin::ThisNode;
        }
        match (&policy.local_traffic, policy.local_traffic.range(family)) {
            (LocalTraffic::Source { .. }, Some(range)) if range.contains(ip) => Origin::PodOfThisNode,
            (LocalTraffic::Source { .. }, Some(_)) => Origin::Elsewhere,
            (LocalTraffic::Source { .. }, None) => Origin::PodsUnknown,
            (LocalTraffic::Bridge(_) | LocalTraffic::InterfacePrefix(_), _) => Origin::ByInterface,
        }
    }

    fn admission(
        &self,
        at: &ExplainedAddress,
        server: &DesiredVirtualServer,
        client: IpAddr,
        origin: Origin,
    ) -> Admission {
        let to = at.address;
        if Family::from(client) != Family::from(to.ip) {
            return Admission::OtherFamily;
        }
        let (is_node, is_local) = (origin == Origin::ThisNode, at.vip || self.inputs.node.has(&to.ip));
        if !is_node && !is_local && at.kind != AddressKind::NodePort {
            return Admission::NotBound;
        }
        // What a node sends to one of its own addresses has that address for its source.
        let source = if is_node && is_local { to.ip } else { client };
        let allows = |sources: &[netfilter::AllowedSource]| {
            sources.iter().any(|allowed| allowed.first <= source && source <= allowed.last)
        };
        if server.allowed_sources.as_deref().is_some_and(|sources| !allows(sources)) {
            return Admission::OutsideSourceRanges;
        }
        match origin {
            _ if server.real_servers.is_empty() => Admission::NoEndpoint,
            Origin::Elsewhere if server.stands_in => Admission::NoLocalEndpoint,
            Origin::ByInterface if server.stands_in => Admission::OnlyPodsOfThisNode,
            _ => match (&server.allowed_sources, &at.source_ranges) {
                (Some(_), Some(ranges)) => ranges
                    .iter()
                    .find(|range| range.contains(&source))
                    .map_or(Admission::ThisNode, |range| Admission::SourceRange(*range)),
                _ => Admission::Everyone,
            },
        }
    }
}

/// What the rules of prerouting and output decide about the source address, and those of postrouting carry out.
fn source(set: MasqueradeSet, masquerade_all: bool, origin: Origin) -> SourceAddress {
    match (set, origin) {
        (MasqueradeSet::External, _) => SourceAddress::PolicyCluster,
        (_, Origin::ThisNode) => SourceAddress::ThisNode,
        (MasqueradeSet::ExternalLocal, _) => SourceAddress::PolicyLocal,
        // A pod of this node is sent to the ClusterIP instead.
        (MasqueradeSet::DirectReturn, Origin::Elsewhere | Origin::ByInterface | Origin::PodsUnknown) => {
            SourceAddress::DirectReturn
        }
        _ if masquerade_all => SourceAddress::MasqueradeAll,
        (_, Origin::PodOfThisNode) => SourceAddress::PodOfThisNode,
        (MasqueradeSet::ClusterIps, Origin::Elsewhere) => SourceAddress::NotAPodOfThisNode,
        (MasqueradeSet::ClusterIps, Origin::ByInterface) => SourceAddress::ByInterface,
        (MasqueradeSet::ClusterIps, Origin::PodsUnknown) => SourceAddress::PodsUnknown,
    }
}

impl fmt::Display for ExplainedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ip, admission, source, may_reach_itself } = self;
        write!(f, "{ip} {admission}")?;
        if admission.is_let_in() {
            write!(f, "; {source}")?;
        }
        if admission.is_let_in() && *may_reach_itself {
            f.write_str("; masqueraded where it is its own endpoint")?;
        }
        Ok(())
    }
}

/// As the end of a sentence about the client.
impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Everyone => "is let in",
            Self::SourceRange(range) => return write!(f, "is let in by the source range {range}"),
            Self::ThisNode => "is let in: it is this node, which has an address in the source ranges",
            Self::OutsideSourceRanges => "is dropped: it is in no range of spec.loadBalancerSourceRanges",
            Self::NoLocalEndpoint => {
                "is dropped: no endpoint is on this node, and externalTrafficPolicy is Local"
            }
            Self::OnlyPodsOfThisNode => {
                "is let in only if it is a pod of this node: no endpoint is on this node, and externalTrafficPolicy is \
                 Local"
            }
            Self::NoEndpoint => "is refused: no endpoint can be used",
            Self::NotBound => "is not served here: the address is not local to this node",
            Self::OtherFamily => "cannot connect there: the address is of the other family",
        })
    }
}

impl fmt::Display for SourceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MasqueradeAll => "masqueraded: --masquerade-all",
            Self::NotAPodOfThisNode => "masqueraded: not a pod of this node",
            Self::PolicyCluster => "masqueraded: externalTrafficPolicy is Cluster",
            Self::ThisNode => "masqueraded: it is this node",
            Self::PodOfThisNode => "not masqueraded: a pod of this node",
            Self::PodsUnknown => "not masqueraded: pods of this node are not recognised in this family",
            Self::ByInterface => "masqueraded unless it is a pod of this node",
            Self::PolicyLocal => "not masqueraded: externalTrafficPolicy is Local",
            Self::DirectReturn => {
                "not masqueraded where its endpoint answers it directly; masqueraded where that has no tunnel"
            }
        })
    }
}
