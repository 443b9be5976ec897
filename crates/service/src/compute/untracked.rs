//! Which flows of a Service are kept out of conntrack: those of pods to its ClusterIPs, and straight to its endpoints.
//!
//! IPVS keeps the addresses of its connections itself. Conntrack is needed where something else translates an address:
//! where a flow is masqueraded, by us or by the network plugin; and with direct return, which directs pods to the
//! ClusterIP. Whether a flow to an external address is masqueraded depends on the Service's policy, which can change
//! while the flow is open: such flows are tracked.

use std::collections::BTreeSet;

use ipvs::Family;
use netfilter::{Element, PodPort};

use super::{AddressKind, Frontend, MAX_REAL_SERVERS_PER_VIRTUAL_SERVER, PortGroup};
use crate::input::{DNS_PORT, Options, Service, ServiceInputs, ServicePort, UntrackedServices};

/// The ports and families in which flows of pods to a Service are not tracked.
#[derive(Debug, Default)]
pub(crate) struct Untracked {
    families: BTreeSet<Family>,
    /// Only the port of name servers: the others of cluster DNS are for other purposes.
    dns_alone: bool,
    /// Why flows are tracked although the Service asks for it, or the operator.
    pub(crate) problems: Vec<String>,
}

impl Untracked {
    /// Decides about a Service, some of whose addresses may be answered directly.
    pub(super) fn new(inputs: ServiceInputs<'_>, is_answered_directly: bool) -> Self {
        let ServiceInputs { service, options, .. } = inputs;
        let mut untracked = Self::default();
        match wish(service, options) {
            Wish::Tracked => return untracked,
            Wish::Refused => {
                untracked.problems.push(format!(
                    "metadata.annotations[kube-ipvs.io/conntrack]: ignored: node {} does not allow annotations to request \
                     it (--untracked-services)",
                    options.node_name
                ));
                return untracked;
            }
            Wish::Untracked => {}
            Wish::DnsUntracked => untracked.dns_alone = true,
        }
        let families: BTreeSet<_> = service.cluster_ips.iter().copied().map(Family::from).collect();
        for family in families {
            match obstacle(inputs, family, is_answered_directly) {
                None => _ = untracked.families.insert(family),
                Some(why) => untracked.problems.push(format!("tracked by conntrack ({family}): {why}")),
            }
        }
        untracked
    }

    /// Whether pods' flows to a frontend are not tracked.
    pub(crate) fn is_for(&self, frontend: &Frontend<'_>) -> bool {
        frontend.kind == AddressKind::ClusterIp && self.covers(frontend.port, frontend.family())
    }

    fn covers(&self, port: &ServicePort, family: Family) -> bool {
        self.families.contains(&family) && (port.port == DNS_PORT || !self.dns_alone)
    }

    /// The elements by which the answers of the group's endpoints are recognised. They include endpoints that are not
    /// used here, since other nodes may use them.
    pub(super) fn elements(&self, group: &PortGroup<'_>) -> impl Iterator<Item = Element> {
        let endpoints = if self.covers(group.port, group.family) { &group.endpoints[..] } else { &[] };
        let protocol = group.port.protocol;
        endpoints.iter().flat_map(move |endpoint| {
            let pod = endpoint.address;
            [Element::UntrackedEndpoint(PodPort { protocol, pod }), Element::TrackedClient(pod.ip)]
        })
    }
}

/// What is asked for a Service's flows.
enum Wish {
    Tracked,
    /// An annotation asks for what the operator does not allow.
    Refused,
    Untracked,
    /// The same for the port of name servers alone.
    DnsUntracked,
}

fn wish(service: &Service, options: &Options) -> Wish {
    let allowed = |services| options.untracked_services.contains(services);
    match service.balancing.as_ref().and_then(|it| it.conntrack) {
        Some(true) => Wish::Tracked,
        Some(false) if allowed(UntrackedServices::ANNOTATED) => Wish::Untracked,
        _ if allowed(UntrackedServices::CLUSTER_DNS) && service.is_cluster_dns() => Wish::DnsUntracked,
        Some(false) => Wish::Refused,
        None => Wish::Tracked,
    }
}

/// Why flows of pods have to be tracked in a family.
fn obstacle(
    ServiceInputs { slices, node, options, .. }: ServiceInputs<'_>,
    family: Family,
    is_answered_directly: bool,
) -> Option<String> {
    if is_answered_directly {
        return Some("direct return directs pods to the ClusterIP".to_owned());
    }
    let Some(pods) = options.untracked_pods.iter().find(|range| Family::from(range.addr()) == family) else {
        return Some(format!(
            "node {} does not know the range of all pods (clusterCIDR), or masquerades them (masqueradeAll), or its kernel \
             cannot leave packets out of conntrack",
            options.node_name
        ));
    };
    let of_family = slices.iter().filter(|slice| slice.family == family);
    let addresses = || of_family.clone().flat_map(|slice| &slice.endpoints).map(|endpoint| endpoint.address);
    if addresses().count() > MAX_REAL_SERVERS_PER_VIRTUAL_SERVER {
        return Some(format!("it has more than {MAX_REAL_SERVERS_PER_VIRTUAL_SERVER} endpoints"));
    }
    // The network plugin may masquerade what pods send to others than pods, and what a node answers itself begins in
    // output.
    let other = addresses().find(|ip| !pods.contains(ip) || node.is_node_address(ip))?;
    Some(format!("its endpoint {other} is not the address of a pod in {pods} (clusterCIDR)"))
}
