//! The sets of our tables, one row each, what their elements hold, and changes of tables and elements.
//!
//! A new set is a row here, the rule that uses it (`table/ruleset/chains.rs`), and the code that wants its
//! elements (crate `service`). What elements of one kind hold is a type, and `table/key.rs` says how the
//! kernel stores it.

use std::{fmt, net::IpAddr};

use ipvs::{Family, Protocol, RealServerAddress, ServiceAddress};
use serde::{Deserialize, Serialize};

#[cfg(feature = "client")]
use crate::{
    nft::element::Key,
    table::key::{Coded as _, KnownSet},
};

/// The purpose of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Every table has it.
    Always,
    /// It exists only where some Service is answered directly.
    DirectReturn,
    /// The same, and its elements are wanted only while this node unpacks what other nodes send to its pods.
    Unpacking,
}

/// Makes [`Element`] of one row for each set: what is in it, the constant for its name, its name, the variant
/// with what that holds, and what the set is needed for. Sets are made, and elements change, in the order of
/// the rows.
macro_rules! sets {
    ($($(#[doc = $doc:literal])+ $constant:ident = $name:literal: $variant:ident($content:ident), $need:ident;)+) => {
        /// One element of one set. The variant names the set.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Element {
            $($(#[doc = $doc])+ $variant($content),)+
        }

        impl Element {
            /// The name of the set that holds it.
            pub fn set(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)+
                }
            }

            const fn need(&self) -> Need {
                match self {
                    $(Self::$variant(_) => Need::$need,)+
                }
            }

            /// Its content.
            pub const fn content(&self) -> Content<'_> {
                match self {
                    $(Self::$variant(content) => Content::$content(content),)+
                }
            }
        }

        /// The names of the sets.
        #[cfg(feature = "client")]
        impl Element {
            $(pub(crate) const $constant: &'static str = $name;)+
        }

        #[cfg(feature = "client")]
        impl From<&Element> for Key {
            fn from(element: &Element) -> Self {
                match element {
                    $(Element::$variant(content) => content.key(),)+
                }
            }
        }

        /// Every set that a table can have.
        #[cfg(feature = "client")]
        pub(crate) static KNOWN_SETS: &[KnownSet] = &[
            $(KnownSet::new::<$content>($name, !matches!(Need::$need, Need::Always), |family, key| {
                <$content>::from_key(family, key).map(Element::$variant)
            }),)+
        ];
    };
}

sets! {
    /// `vips`: an address that is bound to this node for Services. New flows to it are rejected on every port
    /// that is not served.
    VIPS = "vips": Vip(IpAddr), Always;
    /// `restricted`: a load balancer's address, with protocol and port, that only some clients may reach.
    RESTRICTED = "restricted": Restricted(ServiceAddress), Always;
    /// `allowed-sources`: clients that may reach a restricted address.
    ALLOWED_SOURCES = "allowed-sources": AllowedSource(AllowedSource), Always;
    /// `cluster-ips`: a ClusterIP with protocol and port; masqueraded unless the source is a local pod.
    CLUSTER_IPS = "cluster-ips": ClusterIp(ServiceAddress), Always;
    /// `external`: a NodePort, external or load-balancer address, with protocol and port, whose flows may
    /// be sent to another node; masqueraded whatever the source.
    EXTERNAL = "external": External(ServiceAddress), Always;
    /// `external-local`: the same with the external policy Local. The real servers see the client's address,
    /// unless the client is this node itself.
    EXTERNAL_LOCAL = "external-local": ExternalLocal(ServiceAddress), Always;
    /// `local-clients-only`: an address in `external-local` for which endpoints on other nodes stand in,
    /// because this node has none. Only this node and its pods, if they are known, may begin flows to it.
    LOCAL_CLIENTS_ONLY = "local-clients-only": LocalClientsOnly(ServiceAddress), Always;
    /// `hairpin`: a local pod as real server. A flow from that pod that IPVS sent back to the same pod
    /// must be masqueraded, or the pod would answer itself directly.
    HAIRPIN = "hairpin": Hairpin(HairpinFlow), Always;
    /// `health-check-ports`: a TCP port at which load balancers check the health of a Service. It stays
    /// reachable at the VIPs.
    HEALTH_CHECK_PORTS = "health-check-ports": HealthCheckPort(HealthCheckPort), Always;
    /// `untracked`: an address of a Service, with protocol and port, of whose flows conntrack does not learn if the
    /// client is a pod.
    UNTRACKED = "untracked": Untracked(ServiceAddress), Always;
    /// `untracked-endpoints`: an endpoint of such a Service, with protocol and port. What pods send there without
    /// the Service is not tracked either: the answers look the same.
    UNTRACKED_ENDPOINTS = "untracked-endpoints": UntrackedEndpoint(PodPort), Always;
    /// `tracked-clients`: a pod that is such an endpoint. As a client it may be sent to itself, which conntrack has to
    /// masquerade.
    TRACKED_CLIENTS = "tracked-clients": TrackedClient(IpAddr), Always;
    /// `direct-return`: an external or load-balancer address, with protocol and port, whose flows keep the
    /// client's address and go to every endpoint, through a tunnel to those on other nodes.
    DIRECT_RETURN = "direct-return": DirectReturn(ServiceAddress), DirectReturn;
    /// `cluster-ip-for`, a map: the ClusterIP for which this node and its pods use such an address. They
    /// could not take an answer from a VIP, which is an address of their own node.
    CLUSTER_IP_FOR = "cluster-ip-for": ClusterIpFor(ClusterIpFor), DirectReturn;
    /// `max-segment-sizes`, a map: how much data a TCP segment to such an address may have, so that it fits
    /// into a tunnel.
    MAX_SEGMENT_SIZES = "max-segment-sizes": MaxSegmentSize(MaxSegmentSize), DirectReturn;
    /// `tunnel-exits`, a map: a pod of this node as the destination of what leaves the tunnel for it.
    TUNNEL_EXITS = "tunnel-exits": TunnelExit(TunnelExit), Unpacking;
    /// `endpoints-here`: an endpoint of this node to which other nodes tunnel.
    ENDPOINTS_HERE = "endpoints-here": EndpointHere(IpAddr), Unpacking;
    /// `endpoints-elsewhere`: an endpoint of another node to which this one may tunnel.
    ENDPOINTS_ELSEWHERE = "endpoints-elsewhere": EndpointElsewhere(IpAddr), Unpacking;
    /// `tunnel-senders`: an address of a node of the cluster.
    TUNNEL_SENDERS = "tunnel-senders": TunnelSender(IpAddr), Unpacking;
}

impl Element {
    /// Whether its set only exists where something is answered directly.
    pub fn is_of_direct_return(&self) -> bool {
        self.need() != Need::Always
    }

    /// Whether it exists because this node unpacks what other nodes send to its pods, for any Service.
    pub fn is_for_unpacking(&self) -> bool {
        self.need() == Need::Unpacking
    }

    /// Whether it is an interval. Intervals of one set must not overlap.
    #[cfg(feature = "client")]
    pub(crate) const fn is_interval(&self) -> bool {
        matches!(self, Self::AllowedSource(_))
    }

    /// The address family, and so the table, that the element belongs to.
    pub fn family(&self) -> Family {
        match self.content() {
            Content::IpAddr(ip) => Family::from(*ip),
            Content::HairpinFlow(flow) => Family::from(flow.pod.ip),
            Content::PodPort(port) => Family::from(port.pod.ip),
            Content::HealthCheckPort(check) => check.family,
            Content::ServiceAddress(to)
            | Content::AllowedSource(AllowedSource { to, .. })
            | Content::ClusterIpFor(ClusterIpFor { to, .. })
            | Content::MaxSegmentSize(MaxSegmentSize { to, .. })
            | Content::TunnelExit(TunnelExit { to, .. }) => Family::from(to.ip),
        }
    }

    /// The virtual server that the element belongs to; `None` if several can have it in common.
    pub fn virtual_server(&self) -> Option<&ServiceAddress> {
        match self.content() {
            Content::ServiceAddress(to)
            | Content::AllowedSource(AllowedSource { to, .. })
            | Content::ClusterIpFor(ClusterIpFor { to, .. })
            | Content::MaxSegmentSize(MaxSegmentSize { to, .. })
            | Content::TunnelExit(TunnelExit { to, .. }) => Some(to),
            Content::IpAddr(_)
            | Content::HairpinFlow(_)
            | Content::PodPort(_)
            | Content::HealthCheckPort(_) => None,
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.set())?;
        match self.content() {
            Content::IpAddr(ip) => write!(f, "{ip}"),
            Content::ServiceAddress(to) => write!(f, "{to}"),
            Content::AllowedSource(AllowedSource { to, first, last }) => {
                write!(f, "{to} from {first}-{last}")
            }
            Content::HairpinFlow(HairpinFlow { protocol, pod })
            | Content::PodPort(PodPort { protocol, pod }) => {
                write!(f, "{protocol} {pod}")
            }
            Content::HealthCheckPort(HealthCheckPort { family, port }) => write!(f, "{family} TCP {port}"),
            Content::ClusterIpFor(ClusterIpFor { to, cluster_ip }) => write!(f, "{to} is {cluster_ip}"),
            Content::MaxSegmentSize(MaxSegmentSize { to, bytes }) => write!(f, "{to} {bytes} bytes"),
            Content::TunnelExit(TunnelExit { to, pod }) => write!(f, "{to} at {pod}"),
        }
    }
}

/// The content of an element, of any set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// An address.
    IpAddr(&'a IpAddr),
    /// The address, protocol and port of a virtual server.
    ServiceAddress(&'a ServiceAddress),
    /// Clients that may reach a restricted address.
    AllowedSource(&'a AllowedSource),
    /// A pod as real server.
    HairpinFlow(&'a HairpinFlow),
    /// A port of a pod.
    PodPort(&'a PodPort),
    /// A port for health checks.
    HealthCheckPort(&'a HealthCheckPort),
    /// A ClusterIP in place of an external address.
    ClusterIpFor(&'a ClusterIpFor),
    /// The size of TCP segments to an address.
    MaxSegmentSize(&'a MaxSegmentSize),
    /// A pod behind the tunnel.
    TunnelExit(&'a TunnelExit),
}

/// The sets of which exactly one has the address of a virtual server. It decides which of the flows to it are
/// masqueraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasqueradeSet {
    /// `cluster-ips`
    ClusterIps,
    /// `external`
    External,
    /// `external-local`
    ExternalLocal,
    /// `direct-return`
    DirectReturn,
}

impl MasqueradeSet {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::ClusterIps, Self::External, Self::ExternalLocal, Self::DirectReturn];

    /// The element of an address.
    pub fn element(self, of: ServiceAddress) -> Element {
        match self {
            Self::ClusterIps => Element::ClusterIp(of),
            Self::External => Element::External(of),
            Self::ExternalLocal => Element::ExternalLocal(of),
            Self::DirectReturn => Element::DirectReturn(of),
        }
    }
}

/// Clients that may reach a restricted address.
///
/// The ranges of one address must not overlap: the kernel's interval sets refuse that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AllowedSource {
    /// The restricted address.
    pub to: ServiceAddress,
    /// The clients' first address, of the same family.
    pub first: IpAddr,
    /// The clients' last address, not before the first.
    pub last: IpAddr,
}

/// A flow whose client and real server are the same pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HairpinFlow {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The pod as real server; its address is the source too.
    pub pod: RealServerAddress,
}

/// A port at which a pod listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodPort {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The pod's address and the port.
    pub pod: RealServerAddress,
}

/// A port for health checks by load balancers, in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HealthCheckPort {
    /// The family.
    pub family: Family,
    /// The TCP port.
    pub port: u16,
}

/// The ClusterIP that this node and its pods use in place of an external address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClusterIpFor {
    /// The external address.
    pub to: ServiceAddress,
    /// The ClusterIP, of the same family, with its port.
    pub cluster_ip: RealServerAddress,
}

/// How much data a TCP segment may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MaxSegmentSize {
    /// The address that clients connect to.
    pub to: ServiceAddress,
    /// The size in bytes, without the headers of TCP and IP.
    pub bytes: u16,
}

/// A pod as the destination of what leaves the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TunnelExit {
    /// The address that the client connects to.
    pub to: ServiceAddress,
    /// The pod, of the same family, with its port. In the key only the last four bytes of its address count.
    pub pod: RealServerAddress,
}

/// One change. Its `Display` is one line, for logs and golden tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Create the family's table if there is none, without the rules that take new flows from the destination
    /// NAT of other tables; an existing table in any other state is brought to the installed state.
    PrepareTable(Family),
    /// Create the family's table with its sets, chains and rules, or repair them; the elements stay.
    InstallTable(Family),
    /// Add to the family's table what direct return needs besides; do nothing if it is there.
    AddDirectReturn(Family),
    /// Remove that again.
    RemoveDirectReturn(Family),
    /// Add an element; do nothing if it exists.
    AddElement(Element),
    /// Remove an element.
    DeleteElement(Element),
}

impl Operation {
    /// The element that is added (true) or deleted (false); `None` if the operation is on a table.
    pub fn element(&self) -> Option<(bool, &Element)> {
        match self {
            Self::AddElement(element) => Some((true, element)),
            Self::DeleteElement(element) => Some((false, element)),
            Self::PrepareTable(_)
            | Self::InstallTable(_)
            | Self::AddDirectReturn(_)
            | Self::RemoveDirectReturn(_) => None,
        }
    }

    /// The family, and so the table, that is changed.
    pub fn family(&self) -> Family {
        match self {
            Self::PrepareTable(family)
            | Self::InstallTable(family)
            | Self::AddDirectReturn(family)
            | Self::RemoveDirectReturn(family) => *family,
            Self::AddElement(element) | Self::DeleteElement(element) => element.family(),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PrepareTable(family) => write!(f, "prepare table {family}"),
            Self::InstallTable(family) => write!(f, "install table {family}"),
            Self::AddDirectReturn(family) => write!(f, "add direct return {family}"),
            Self::RemoveDirectReturn(family) => write!(f, "remove direct return {family}"),
            Self::AddElement(element) => write!(f, "add element {element}"),
            Self::DeleteElement(element) => write!(f, "delete element {element}"),
        }
    }
}
