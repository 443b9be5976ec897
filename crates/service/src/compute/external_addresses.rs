//! External addresses that no Service gets (CVE-2020-8554). Traffic to them is not meant for Services, and anybody who
//! may write a Service could take it.

use std::{fmt, net::IpAddr};

use serde::{Deserialize, Serialize};

use super::{AddressKind, AddressOwner};
use crate::input::{ExternalIps, Options, Service, ServiceInputs};

/// The external addresses of a Service, in the families that it has.
#[derive(Debug, Default)]
pub(crate) struct ExternalAddresses {
    /// External IPs that are served.
    pub(crate) external_ips: Vec<IpAddr>,
    /// A load balancer's addresses that are served.
    pub(crate) load_balancer_ips: Vec<IpAddr>,
    /// External addresses that are not served, with the reason.
    pub(crate) refused: Vec<RefusedAddress>,
}

/// An external address that a Service asks for and is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RefusedAddress {
    /// The address.
    pub ip: IpAddr,
    /// The kind that it would have: an external IP or a load balancer's address.
    pub kind: AddressKind,
    /// Why it is refused.
    pub why: AddressRefusal,
}

/// Why an address is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AddressRefusal {
    /// It means something else to every host.
    Special(SpecialAddress),
    /// Another Service has it as ClusterIP, at any ports.
    ClusterIp,
    /// It is outside of the ranges that the operator allows.
    NotAllowed,
    /// A node has it, this one or another, and the operator has not allowed it.
    NodeIp,
    /// The API server has it, likewise.
    ApiServer,
    /// It is a gateway of this node, likewise.
    Gateway,
    /// An endpoint has it, likewise.
    Endpoint,
    /// It is in the range of a node's pods, likewise.
    PodRange,
    /// A Service of another namespace has it as external address, likewise.
    OtherNamespace,
}

/// Addresses that mean something else to every host. The API server refuses most of them in a `spec`, but not in a
/// `status`, and manifests in a directory do not pass through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpecialAddress {
    /// `0.0.0.0/8`, "this network" (RFC 1122, section 3.2.1.3), and `::`.
    Unspecified,
    /// `127.0.0.0/8` and `::1`.
    Loopback,
    /// `224.0.0.0/4` and `ff00::/8`.
    Multicast,
    /// `255.255.255.255`.
    Broadcast,
    /// `169.254.0.0/16`, where clouds tell a machine its credentials, and `fe80::/10`.
    LinkLocal,
}

impl ExternalAddresses {
    /// All addresses that are served.
    pub(crate) fn served(&self) -> impl Iterator<Item = &IpAddr> {
        self.load_balancer_ips.iter().chain(&self.external_ips)
    }

    /// Sorts a Service's external addresses into those that are served on this node and those that are not.
    pub(super) fn new(inputs: ServiceInputs<'_>) -> Self {
        let ServiceInputs { service, options, .. } = inputs;
        let mut addresses = Self::default();
        for ip in service.in_its_families(service.possible_external_ips(options)) {
            match refused_everywhere(ip, inputs).or_else(|| refused_as_external_ip(ip, inputs)) {
                None if is_known(inputs) => addresses.external_ips.push(ip),
                None => {}
                Some(why) => {
                    addresses.refused.push(RefusedAddress { ip, kind: AddressKind::ExternalIp, why });
                }
            }
        }
        // These come from a controller, which may give those of nodes: k3s' ServiceLB does.
        for ip in service.in_its_families(&service.load_balancer_ips) {
            match refused_everywhere(ip, inputs) {
                None => addresses.load_balancer_ips.push(ip),
                Some(why) => {
                    addresses.refused.push(RefusedAddress { ip, kind: AddressKind::LoadBalancer, why });
                }
            }
        }
        addresses
    }
}

impl Service {
    /// The external IPs, unless the feature is off. Some of them may be refused.
    pub(crate) fn possible_external_ips(&self, options: &Options) -> &[IpAddr] {
        if options.external_ips == ExternalIps::Off { &[] } else { &self.external_ips }
    }
}

/// Whether the owner of an external IP can be known. Until the other nodes are listed it cannot, and then none is
/// served: the Service would take what this node sends to the port of another one.
fn is_known(ServiceInputs { node, options, .. }: ServiceInputs<'_>) -> bool {
    options.external_ips != ExternalIps::Unowned || node.knows_nodes(options)
}

/// Why no Service may have an external address, under any option.
fn refused_everywhere(ip: IpAddr, inputs: ServiceInputs<'_>) -> Option<AddressRefusal> {
    let is_of_another_service =
        inputs.addresses.is_cluster_ip(&ip) && !inputs.service.cluster_ips.contains(&ip);
    SpecialAddress::from_ip(ip)
        .map(AddressRefusal::Special)
        .or(is_of_another_service.then_some(AddressRefusal::ClusterIp))
}

/// Why an address is not served as external IP, though it could be a load balancer's.
fn refused_as_external_ip(ip: IpAddr, inputs: ServiceInputs<'_>) -> Option<AddressRefusal> {
    let ServiceInputs { service, node, options, addresses, .. } = inputs;
    match &options.external_ips {
        ExternalIps::In(ranges) => {
            (!ranges.iter().any(|range| range.contains(&ip))).then_some(AddressRefusal::NotAllowed)
        }
        ExternalIps::Unowned => match AddressOwner::new(ip, node, options, addresses) {
            AddressOwner::ThisNode | AddressOwner::OtherNode => Some(AddressRefusal::NodeIp),
            AddressOwner::ApiServer => Some(AddressRefusal::ApiServer),
            AddressOwner::Gateway => Some(AddressRefusal::Gateway),
            AddressOwner::Endpoint if addresses.is_endpoint_of_older(&ip, service) => {
                Some(AddressRefusal::Endpoint)
            }
            AddressOwner::PodRange => Some(AddressRefusal::PodRange),
            // An interface of this node has it besides, as keepalived or kube-vip give it.
            _ => {
                let first = addresses.namespace_of(&ip);
                let is_of_another_namespace =
                    first.is_some_and(|namespace| namespace != service.name.namespace());
                is_of_another_namespace.then_some(AddressRefusal::OtherNamespace)
            }
        },
        ExternalIps::Off => Some(AddressRefusal::NotAllowed),
    }
}

impl SpecialAddress {
    /// The kind of a special address; `None` if it is an ordinary one.
    pub fn from_ip(ip: IpAddr) -> Option<Self> {
        match ip.to_canonical() {
            IpAddr::V4(v4) if v4.octets()[0] == 0 => Some(Self::Unspecified),
            ip if ip.is_unspecified() => Some(Self::Unspecified),
            ip if ip.is_loopback() => Some(Self::Loopback),
            ip if ip.is_multicast() => Some(Self::Multicast),
            IpAddr::V4(v4) if v4.is_broadcast() => Some(Self::Broadcast),
            IpAddr::V4(v4) if v4.is_link_local() => Some(Self::LinkLocal),
            IpAddr::V6(v6) if v6.is_unicast_link_local() => Some(Self::LinkLocal),
            _ => None,
        }
    }
}

impl fmt::Display for SpecialAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "the unspecified address",
            Self::Loopback => "a loopback address",
            Self::Multicast => "a multicast address",
            Self::Broadcast => "the broadcast address",
            Self::LinkLocal => "a link-local address",
        })
    }
}

impl fmt::Display for AddressRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = match self {
            Self::Special(special) => return special.fmt(f),
            Self::ClusterIp => return f.write_str("another Service's ClusterIP"),
            Self::NotAllowed => return f.write_str("not in --external-ip-policy"),
            Self::NodeIp => "a node's IP",
            Self::ApiServer => "the API server's",
            Self::Gateway => "a gateway of this node",
            Self::Endpoint => "an endpoint's",
            Self::PodRange => "in the range of a node's pods",
            Self::OtherNamespace => {
                return f.write_str(
                    "an external address of another namespace, and --external-ip-policy does not allow sharing it",
                );
            }
        };
        write!(f, "{owner}, which --external-ip-policy does not allow")
    }
}

/// One sentence for a person, the field first.
impl fmt::Display for RefusedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ip, kind, why } = self;
        write!(f, "{}: {ip} is not served: it is {why}", kind.field())
    }
}
