//! Elements, as many as a cluster has.

use std::net::IpAddr;

use ipvs::ServiceAddress;
use rustc_hash::FxHashSet;

use crate::Element;

/// Elements, each once, in no particular order.
///
/// Nearly all are VIPs and ClusterIPs. By themselves they take less than half the memory of an [`Element`], which has
/// room for the clients of a load balancer too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElementSet {
    vips: FxHashSet<IpAddr>,
    cluster_ips: FxHashSet<ServiceAddress>,
    others: FxHashSet<Element>,
}

impl ElementSet {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.vips.len() + self.cluster_ips.len() + self.others.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it has this element.
    pub fn contains(&self, element: &Element) -> bool {
        match element {
            Element::Vip(ip) => self.vips.contains(ip),
            Element::ClusterIp(address) => self.cluster_ips.contains(address),
            other => self.others.contains(other),
        }
    }

    /// Adds an element. Returns whether it is new.
    pub fn insert(&mut self, element: Element) -> bool {
        match element {
            Element::Vip(ip) => self.vips.insert(ip),
            Element::ClusterIp(address) => self.cluster_ips.insert(address),
            other => self.others.insert(other),
        }
    }

    /// Removes an element. Returns whether it was there.
    pub fn remove(&mut self, element: &Element) -> bool {
        match element {
            Element::Vip(ip) => self.vips.remove(ip),
            Element::ClusterIp(address) => self.cluster_ips.remove(address),
            other => self.others.remove(other),
        }
    }

    /// Removes the elements that are not to be kept.
    pub fn retain(&mut self, mut keep: impl FnMut(&Element) -> bool) {
        self.vips.retain(|ip| keep(&Element::Vip(*ip)));
        self.cluster_ips.retain(|address| keep(&Element::ClusterIp(*address)));
        self.others.retain(keep);
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Element> {
        let vips = self.vips.iter().copied().map(Element::Vip);
        let cluster_ips = self.cluster_ips.iter().copied().map(Element::ClusterIp);
        vips.chain(cluster_ips).chain(self.others.iter().copied())
    }
}

impl Extend<Element> for ElementSet {
    fn extend<I: IntoIterator<Item = Element>>(&mut self, elements: I) {
        elements.into_iter().for_each(|element| _ = self.insert(element));
    }
}

impl FromIterator<Element> for ElementSet {
    fn from_iter<I: IntoIterator<Item = Element>>(elements: I) -> Self {
        let mut set = Self::default();
        set.extend(elements);
        set
    }
}
