//! The keys that a change touched.

use std::{collections::BTreeSet, net::IpAddr};

use ipvs::{Family, ServiceAddress};
use netfilter::Element;

/// The keys whose desired value may have changed: what a Service asked for before and asks for now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Virtual servers.
    pub virtual_servers: BTreeSet<ServiceAddress>,
    /// Addresses to be local to this node.
    pub vips: BTreeSet<IpAddr>,
    /// Elements of our nf_tables sets.
    pub elements: BTreeSet<Element>,
    /// Families in which this node began or ceased to unpack what other nodes send to its pods.
    pub tunnels: BTreeSet<Family>,
    /// Whether [`State::health_checks`](crate::State::health_checks),
    /// [`State::without_local_endpoint`](crate::State::without_local_endpoint) or
    /// [`State::refused`](crate::State::refused) has changed. The kernel has none of it.
    /// But load balancers and metrics get it after a sync, and must not wait for the next one that is due for another
    /// reason.
    pub reports: bool,
}

impl Touched {
    /// Whether nothing may have changed.
    pub fn is_empty(&self) -> bool {
        self.virtual_servers.is_empty()
            && self.vips.is_empty()
            && self.elements.is_empty()
            && self.tunnels.is_empty()
            && !self.reports
    }

    /// Adds the keys of `other`.
    pub fn merge(&mut self, other: Self) {
        self.virtual_servers.extend(other.virtual_servers);
        self.vips.extend(other.vips);
        self.elements.extend(other.elements);
        self.tunnels.extend(other.tunnels);
        self.reports |= other.reports;
    }

    /// Marks an address that began or ceased to be wanted. Both within one change cancel out.
    pub(crate) fn toggle_vip(&mut self, vip: IpAddr) {
        toggle(&mut self.vips, vip);
    }

    /// Marks an element that began or ceased to be wanted, likewise.
    pub(crate) fn toggle_element(&mut self, element: Element) {
        toggle(&mut self.elements, element);
    }
}

fn toggle<K: Ord + Copy>(keys: &mut BTreeSet<K>, key: K) {
    if !keys.remove(&key) {
        keys.insert(key);
    }
}
