//! The other nodes of the cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use ipvs::{Family, Tunnel, TunnelKind};

use super::Node;

/// What a node has said that it unpacks, of what is sent to its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpacking {
    /// The families, as IP in IP.
    pub families: BTreeSet<Family>,
    /// Whether the same by generic UDP encapsulation.
    pub gue: bool,
}

/// The nodes that have said so, by name. Only to their pods packets are tunnelled.
pub type UnpackingPeers = BTreeMap<Arc<str>, Unpacking>;

/// The other nodes, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Peers {
    by_name: BTreeMap<Arc<str>, Addresses>,
    ips: BTreeSet<IpAddr>,
    overlay_ips: BTreeSet<IpAddr>,
    /// The ranges of their pods, by the first address; none that another one contains.
    pod_cidrs: BTreeMap<IpAddr, IpNet>,
    /// Whether all of them were listed.
    listed: bool,
    /// They cannot be listed, and nothing waits for them any more.
    unavailable: bool,
    unpacking: UnpackingPeers,
    /// The endpoints to which an earlier daemon has tunnelled.
    tunnelled_before: BTreeMap<IpAddr, Tunnel>,
}

/// The addresses of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Addresses {
    ips: Vec<IpAddr>,
    overlay_ips: Vec<IpAddr>,
    pod_cidrs: Vec<IpNet>,
}

impl Peers {
    /// The same without the nodes whose name is none of these: these are all.
    pub(crate) fn all_listed(&self, is_there: impl Fn(&str) -> bool) -> Self {
        Self { listed: true, ..self.only(is_there) }
    }

    /// With nodes that are new or different.
    pub(crate) fn with(&self, nodes: impl IntoIterator<Item = Node>) -> Self {
        let mut all = self.clone();
        all.by_name.extend(nodes.into_iter().map(|node| {
            let Node { name, ips, overlay_ips, pod_cidrs, .. } = node;
            (name, Addresses { ips, overlay_ips, pod_cidrs })
        }));
        all.with_all_ips()
    }

    /// Without the nodes whose name is none of these.
    pub(crate) fn only(&self, is_there: impl Fn(&str) -> bool) -> Self {
        let mut all = self.clone();
        all.by_name.retain(|name, _| is_there(name));
        all.with_all_ips()
    }

    /// Whether nothing is new about a node.
    pub(crate) fn has_exactly(&self, node: &Node) -> bool {
        let known = self.by_name.get(&node.name);
        known.is_some_and(|known| {
            known.ips == node.ips
                && known.overlay_ips == node.overlay_ips
                && known.pod_cidrs == node.pod_cidrs
        })
    }

    /// Whether all endpoints are reached as with the other.
    pub(crate) fn tunnel_like(&self, other: &Self) -> bool {
        self.unpacking == other.unpacking && self.tunnelled_before == other.tunnelled_before
    }

    /// With these among them that have answered, and no others.
    pub(crate) fn unpacking(&self, unpacking: UnpackingPeers) -> Self {
        Self { unpacking, ..self.clone() }
    }

    /// With these endpoints to which an earlier daemon has tunnelled.
    pub(crate) fn tunnelled_before(&self, tunnelled_before: BTreeMap<IpAddr, Tunnel>) -> Self {
        Self { tunnelled_before, ..self.clone() }
    }

    fn with_all_ips(mut self) -> Self {
        self.ips = self.by_name.values().flat_map(|it| &it.ips).copied().collect();
        self.overlay_ips = self.by_name.values().flat_map(|it| &it.overlay_ips).copied().collect();
        let mut ranges: Vec<_> =
            self.by_name.values().flat_map(|it| &it.pod_cidrs).map(IpNet::trunc).collect();
        ranges.sort_unstable();
        // Of two ranges that overlap one contains the other, and comes before it.
        ranges.dedup_by(|range, outer| outer.contains(&*range));
        self.pod_cidrs = ranges.into_iter().map(|range| (range.network(), range)).collect();
        self
    }

    /// How packets are tunnelled to an endpoint of a node, if that unpacks: as is wanted, if it understands that.
    pub(crate) fn tunnel_to(&self, node: &str, endpoint: IpAddr, wanted: Tunnel) -> Option<Tunnel> {
        let Some(unpacking) = self.unpacking.get(node) else {
            return self.tunnelled_before.get(&endpoint).copied();
        };
        let understood = wanted.kind != TunnelKind::Gue || unpacking.gue;
        let tunnel = if understood { wanted } else { Tunnel::default() };
        unpacking.families.contains(&Family::from(endpoint)).then_some(tunnel)
    }

    /// The addresses of a node.
    pub(crate) fn ips_of(&self, node: &str) -> Option<&[IpAddr]> {
        self.by_name.get(node).map(|known| &*known.ips)
    }

    /// Whether all of them were listed. Before, it is not known who may send.
    pub(crate) fn are_listed(&self) -> bool {
        self.listed
    }

    /// With no hope that they will be listed soon.
    pub(crate) fn unavailable(&self) -> Self {
        Self { unavailable: true, ..self.clone() }
    }

    /// Whether their addresses are known, or nothing waits for them any more.
    pub(crate) fn are_settled(&self) -> bool {
        self.listed || self.unavailable
    }

    /// Whether an address is in the range of the pods of one of them.
    pub(crate) fn have_pods_in(&self, ip: &IpAddr) -> bool {
        let nearest = self.pod_cidrs.range(..=ip).next_back();
        nearest.is_some_and(|(_, range)| range.contains(ip))
    }

    /// Whether one of them has this address.
    pub(crate) fn has(&self, ip: &IpAddr) -> bool {
        self.ips.contains(ip)
    }

    /// Whether they have the same addresses as the others, and their pods the same ranges.
    pub(crate) fn have_ips_like(&self, other: &Self) -> bool {
        self.ips == other.ips && self.pod_cidrs == other.pod_cidrs
    }

    /// Whether one of them may send from this address.
    pub(crate) fn send_from(&self, ip: &IpAddr) -> bool {
        self.ips.contains(ip) || self.overlay_ips.contains(ip)
    }

    /// The addresses of a family from which they may send.
    pub(crate) fn senders(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        self.ips.union(&self.overlay_ips).copied().filter(move |ip| Family::from(*ip) == family)
    }
}
