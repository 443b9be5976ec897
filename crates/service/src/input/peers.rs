//! The other nodes of the cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use ipvs::Family;

use super::Node;

/// The other nodes, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Peers {
    by_name: BTreeMap<Arc<str>, Addresses>,
    ips: BTreeSet<IpAddr>,
    overlay_ips: BTreeSet<IpAddr>,
    /// The ranges of their pods, by the first address; none that another one contains.
    pod_cidrs: BTreeMap<IpAddr, IpNet>,
    /// Whether all of them were listed. Until then it is not known which nodes may send.
    pub(crate) listed: bool,
    /// They cannot be listed, and nothing waits for them any more.
    pub(crate) unavailable: bool,
}

/// The addresses of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Addresses {
    ips: Vec<IpAddr>,
    overlay_ips: Vec<IpAddr>,
    pod_cidrs: Vec<IpNet>,
}

impl Peers {
    /// Ends a list: the nodes of these names are all.
    pub(crate) fn end_list(&mut self, is_listed: impl Fn(&str) -> bool) {
        self.listed = true;
        self.retain(is_listed);
    }

    /// Adds nodes that are new or different.
    pub(crate) fn add(&mut self, nodes: impl IntoIterator<Item = Node>) {
        self.by_name.extend(nodes.into_iter().map(|node| {
            let Node { name, ips, overlay_ips, pod_cidrs, .. } = node;
            (name, Addresses { ips, overlay_ips, pod_cidrs })
        }));
        self.index();
    }

    /// Removes the nodes of other names than these.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.by_name.retain(|name, _| is_kept(name));
        self.index();
    }

    fn index(&mut self) {
        let nodes = || self.by_name.values();
        let mut ranges: Vec<_> = nodes().flat_map(|it| &it.pod_cidrs).map(IpNet::trunc).collect();
        ranges.sort_unstable();
        // Of two ranges that overlap one contains the other, and comes before it.
        ranges.dedup_by(|range, outer| outer.contains(&*range));
        self.ips = nodes().flat_map(|it| &it.ips).copied().collect();
        self.overlay_ips = nodes().flat_map(|it| &it.overlay_ips).copied().collect();
        self.pod_cidrs = ranges.into_iter().map(|range| (range.network(), range)).collect();
    }

    /// Whether a node is known and has these addresses.
    pub(crate) fn has_exactly(&self, node: &Node) -> bool {
        let known = self.by_name.get(&node.name);
        known.is_some_and(|known| {
            known.ips == node.ips
                && known.overlay_ips == node.overlay_ips
                && known.pod_cidrs == node.pod_cidrs
        })
    }

    /// The addresses of a node.
    pub(crate) fn ips_of(&self, node: &str) -> Option<&[IpAddr]> {
        self.by_name.get(node).map(|known| &*known.ips)
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

    /// Whether the nodes have the same addresses as with the other, and their pods the same ranges.
    pub(crate) fn have_same_addresses(&self, other: &Self) -> bool {
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
