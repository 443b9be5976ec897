//! Which flows of a Service are kept out of conntrack: those of pods, where nothing needs their entries.
//!
//! IPVS keeps the addresses of its connections itself. Conntrack is needed where a flow is masqueraded, or where its
//! destination is translated before IPVS, as direct return does for pods.

use std::collections::BTreeSet;

use ipvs::Family;
use netfilter::{Element, MasqueradeSet, PodPort};

use super::PortGroup;
use crate::input::{Options, Service, ServiceInputs, Traits, UntrackedServices};

/// The families in which flows of pods to a Service are not tracked.
#[derive(Debug, Default)]
pub(crate) struct Untracked {
    families: BTreeSet<Family>,
    /// Why they are tracked although the Service asks for it, or the operator.
    pub(crate) problems: Vec<String>,
}

impl Untracked {
    /// Decides about a Service, some of whose addresses may be answered directly.
    pub(super) fn new(inputs: ServiceInputs<'_>, is_answered_directly: bool) -> Self {
        let ServiceInputs { service, options, .. } = inputs;
        let mut untracked = Self::default();
        match wish(service, options) {
            Wish::Tracked => {}
            Wish::Refused => untracked.problems.push(format!(
                "metadata.annotations[kube-ipvs.io/conntrack]: ignored: node {} does not allow annotations to request it \
                 (--untracked-services)",
                options.node_name
            )),
            Wish::Untracked => {
                let families: BTreeSet<_> = service.cluster_ips.iter().copied().map(Family::from).collect();
                for family in families {
                    match obstacle(inputs, family, is_answered_directly) {
                        None => _ = untracked.families.insert(family),
                        Some(why) => {
                            untracked.problems.push(format!("tracked by conntrack ({family}): {why}"));
                        }
                    }
                }
            }
        }
        untracked
    }

    /// Whether pods' flows to an address are not tracked. To others of a Service they are masqueraded.
    pub(crate) fn is_for(&self, family: Family, masquerade: MasqueradeSet) -> bool {
        let keeps_source = matches!(masquerade, MasqueradeSet::ClusterIps | MasqueradeSet::ExternalLocal);
        keeps_source && self.families.contains(&family)
    }

    /// The elements by which the answers of the group's endpoints are recognised. They include endpoints that are not
    /// used here, since other nodes may use them.
    pub(super) fn elements(&self, group: &PortGroup<'_>) -> impl Iterator<Item = Element> {
        let endpoints = group.endpoints.iter().filter(|_| self.families.contains(&group.family));
        let protocol = group.port.protocol;
        endpoints.flat_map(move |endpoint| {
            let pod = endpoint.address;
            [Element::UntrackedEndpoint(PodPort { protocol, pod }), Element::TrackedClient(pod.ip)]
        })
    }
}

/// What is asked for a Service's flows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    Tracked,
    /// An annotation asks for what the operator does not allow.
    Refused,
    Untracked,
}

fn wish(service: &Service, options: &Options) -> Wish {
    let allowed = |services| options.untracked_services.contains(services);
    match service.balancing.as_ref().and_then(|it| it.conntrack) {
        Some(true) => Wish::Tracked,
        Some(false) if allowed(UntrackedServices::ANNOTATED) => Wish::Untracked,
        _ if service.is_cluster_dns() && allowed(UntrackedServices::CLUSTER_DNS) => Wish::Untracked,
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
    let pods = options.untracked_pods.as_deref().unwrap_or(node.pod_cidrs());
    let Some(pods) = pods.iter().find(|range| Family::from(range.addr()) == family) else {
        return Some(format!(
            "node {} does not recognise its pods by a range (clusterCIDR, detectLocalMode), or masquerades them \
             (masqueradeAll)",
            options.node_name
        ));
    };
    // Its answers would begin in output.
    let of_family = slices.iter().filter(|slice| slice.family == family);
    let mut endpoints = of_family.flat_map(|slice| &slice.endpoints);
    let on_host = endpoints
        .find(|endpoint| endpoint.traits.contains(Traits::LOCAL) && !pods.contains(&endpoint.address))?;
    Some(format!(
        "its endpoint {} on node {} is not in the pods' range {pods}",
        on_host.address, options.node_name
    ))
}
