//! Which external addresses of a Service are answered directly: the client keeps its address, every endpoint of the
//! cluster is used, and the node of the endpoint answers itself.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use ipvs::{Family, Protocol, RealServerAddress, ServiceAddress, TunnelKind};
use netfilter::{ClusterIpFor, Element, MaxSegmentSize, TunnelExit, tunnel};
use serde::Serialize;

use crate::{
    compute::{AddressKind, ExternalAddresses, Frontend, PolicyGroup, PortEndpoint},
    input::{ServiceInputs, ThisNode, Traffic, TrafficPolicy, Traits},
};

/// The families in which a Service's load-balancer addresses and external IPs are answered directly.
#[derive(Debug, Default)]
pub(crate) struct DirectReturn {
    families: BTreeSet<Family>,
    /// Why a Service that asks for it is not answered directly.
    pub(crate) problems: Vec<String>,
}

impl DirectReturn {
    /// Decides about a Service with these external addresses.
    pub(crate) fn new(inputs: ServiceInputs<'_>, external: &ExternalAddresses) -> Self {
        let ServiceInputs { service, node, options, .. } = inputs;
        let policy = service.policy(Traffic::External, options);
        let refused = options.external_forwarding.refuses_tunnel_of(service);
        let asked = refused || options.external_forwarding.tunnels(service);
        if !asked || policy != TrafficPolicy::Cluster {
            return Self::default();
        }
        if !refused && node.tunnels.link_mtu.is_none() {
            // How large segments may be is still unknown. That is not a problem of the Service.
            return Self::default();
        }
        let asked: BTreeSet<_> =
            external.served().filter(|ip| !node.ips().contains(ip)).map(|ip| Family::from(*ip)).collect();
        let mut direct_return = Self::default();
        for family in asked {
            match obstacle(inputs, family) {
                None => _ = direct_return.families.insert(family),
                Some(why) => direct_return.problems.push(format!("no direct return ({family}): {why}")),
            }
        }
        direct_return
    }

    /// Whether any address is answered directly.
    pub(crate) fn is_used(&self) -> bool {
        !self.families.is_empty()
    }

    /// Whether an address is answered directly. One of this node's IPs is answered by this node alone, as a NodePort
    /// is: the answer would come from another node with an address of this one, which networks do not let pass. An
    /// address that only an interface has is moved from node to node (keepalived, kube-vip).
    pub(crate) fn is_for(&self, kind: AddressKind, ip: &IpAddr, node: &ThisNode) -> bool {
        kind.is_external() && self.families.contains(&Family::from(*ip)) && !node.ips().contains(ip)
    }
}

/// Why direct return is not possible in a family; the Service is masqueraded then.
fn obstacle(
    ServiceInputs { service, node, options, .. }: ServiceInputs<'_>,
    family: Family,
) -> Option<String> {
    if options.external_forwarding.refuses_tunnel_of(service) {
        Some(format!(
            "node {} does not allow annotations to request it (--external-forwarding-method)",
            options.node_name
        ))
    } else if service.internal_traffic_policy == TrafficPolicy::Local {
        Some(
            "spec.internalTrafficPolicy is Local, and nodes and pods would be directed to the ClusterIP"
                .to_owned(),
        )
    } else if !options.knows_pods.contains(&family) {
        Some(format!("node {} does not know its pods (clusterCIDR, detectLocalMode)", options.node_name))
    } else if !options.answers_peers {
        Some(format!(
            "other nodes cannot ask node {} whether it takes part (healthzBindAddress)",
            options.node_name
        ))
    } else {
        let device = tunnel::module(family);
        let modules = match options.tunnel.kind {
            TunnelKind::Gue => format!("modules {device}, fou"),
            _ => format!("module {device}"),
        };
        node.tunnels
            .missing
            .contains(&family)
            .then(|| format!("the kernel of node {} lacks tunnels ({modules})", options.node_name))
    }
}

/// The parts that direct return needs beside a virtual server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DirectReturnParts {
    /// The endpoints of this node to which others may tunnel, sorted. They include endpoints that are not ready, and do
    /// not depend on what the Service asks for, since nodes learn of changes at different moments. They exist only
    /// while this node [unpacks](crate::State::unpacks).
    pub exits: Arc<[RealServerAddress]>,
    /// The entrance by which this node lets clients in itself, if it does.
    pub entrance: Option<Entrance>,
}

/// The parts that direct return needs on the nodes by which clients come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Entrance {
    /// Where this node and its own pods are sent instead.
    pub cluster_ip: RealServerAddress,
    /// How many bytes of data a TCP segment may have that comes in at the virtual server; `None` for other protocols.
    pub max_segment_size: Option<u16>,
}

impl Entrance {
    /// The entrance at an address, if that is answered directly.
    fn new(frontend: &Frontend<'_>, inputs: ServiceInputs<'_>) -> Option<Self> {
        let mut cluster_ips = inputs.service.cluster_ips.iter().copied();
        let ip = cluster_ips.find(|ip| frontend.direct_return && Family::from(*ip) == frontend.family())?;
        let is_tcp = frontend.address.protocol == Protocol::Tcp;
        Some(Self {
            cluster_ip: RealServerAddress { ip, port: frontend.port.port },
            max_segment_size: is_tcp.then(|| max_segment_size(inputs, frontend.family())).flatten(),
        })
    }
}

impl DirectReturnParts {
    /// The parts that direct return needs at an address, if it is possible there.
    pub(crate) fn new(
        frontend: &Frontend<'_>,
        exits: &Arc<[RealServerAddress]>,
        inputs: ServiceInputs<'_>,
    ) -> Option<Box<Self>> {
        if !frontend.kind.is_external() {
            return None;
        }
        let parts = Self { exits: exits.clone(), entrance: Entrance::new(frontend, inputs) };
        (parts.entrance.is_some() || !parts.exits.is_empty()).then(|| Box::new(parts))
    }

    /// Its elements, for the virtual server at this address.
    pub(crate) fn elements(&self, to: ServiceAddress) -> impl Iterator<Item = Element> {
        let entrance =
            self.entrance.into_iter().flat_map(move |Entrance { cluster_ip, max_segment_size }| {
                let cluster_ip = Element::ClusterIpFor(ClusterIpFor { to, cluster_ip });
                let size =
                    max_segment_size.map(|bytes| Element::MaxSegmentSize(MaxSegmentSize { to, bytes }));
                [cluster_ip].into_iter().chain(size)
            });
        let exits = self.exits.iter().map(move |pod| Element::TunnelExit(TunnelExit { to, pod: *pod }));
        entrance.chain(exits)
    }

    /// Whether an element is among them.
    pub(crate) fn has_element(&self, element: &Element) -> bool {
        let entrance = self.entrance.as_ref();
        match element {
            Element::ClusterIpFor(it) => {
                entrance.is_some_and(|entrance| entrance.cluster_ip == it.cluster_ip)
            }
            Element::MaxSegmentSize(it) => {
                entrance.and_then(|entrance| entrance.max_segment_size) == Some(it.bytes)
            }
            Element::TunnelExit(it) => self.exits.binary_search(&it.pod).is_ok(),
            _ => false,
        }
    }
}

/// Whether other nodes may tunnel what comes in at some frontends of a group, now or until they learn of a change.
fn may_be_answered_directly(group: &PolicyGroup<'_>) -> bool {
    group.policy == TrafficPolicy::Cluster && group.frontends.iter().any(|it| it.kind.is_external())
}

/// The endpoints of this node to which others may tunnel.
pub(crate) fn exits(
    group: &PolicyGroup<'_>,
    endpoints: &[PortEndpoint],
    node: &ThisNode,
) -> Arc<[RealServerAddress]> {
    if !may_be_answered_directly(group) {
        return Arc::default();
    }
    // Two pods of one node with the same end of their addresses cannot be distinguished.
    let mut ends = BTreeSet::new();
    let here = endpoints.iter().filter(|it| is_here(it) && belongs_to_pod(it, node)).map(|it| it.address);
    here.filter(|address| ends.insert(tunnel::address_end(address.ip))).collect()
}

/// The elements that tunnels to and from endpoints need, whether they are ready or not.
pub(crate) fn tunnel_elements(
    group: &PolicyGroup<'_>,
    endpoints: &[PortEndpoint],
    node: &ThisNode,
) -> impl Iterator<Item = Element> {
    let possible = may_be_answered_directly(group);
    endpoints.iter().filter(move |it| possible && belongs_to_pod(it, node)).map(|endpoint| {
        let ip = endpoint.address.ip;
        if is_here(endpoint) { Element::EndpointHere(ip) } else { Element::EndpointElsewhere(ip) }
    })
}

/// Whether what is sent to an endpoint's address is for it alone. One on the network of its node shares the node's
/// address: what comes there in packets of IP in IP may be for others, an overlay of pods for example.
fn belongs_to_pod(endpoint: &PortEndpoint, node: &ThisNode) -> bool {
    !node.is_node_address(&endpoint.address.ip)
}

fn is_here(endpoint: &PortEndpoint) -> bool {
    endpoint.traits.contains(Traits::LOCAL)
}

/// How many bytes of data a TCP segment may have, so that with its headers and those of the tunnel it fits into links
/// of this MTU. What every host must be able to take fits anyway: larger packets are split (RFC 791, RFC 8200).
fn max_segment_size(inputs: ServiceInputs<'_>, family: Family) -> Option<u16> {
    const TCP: u32 = 20;
    const UDP_AND_GUE: u32 = 8 + 4;
    let (ip, least) = match family {
        Family::V4 => (20, 536),
        Family::V6 => (40, 1220),
    };
    let encapsulation = ip + if inputs.options.tunnel.kind == TunnelKind::Gue { UDP_AND_GUE } else { 0 };
    let bytes = inputs.node.tunnels.link_mtu?.saturating_sub(encapsulation + ip + TCP).max(least);
    Some(u16::try_from(bytes).unwrap_or(u16::MAX))
}
