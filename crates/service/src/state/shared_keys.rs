//! Keys that several Services can want at once: VIPs, and elements that belong to no virtual server.

use std::{net::IpAddr, sync::Arc};

use ipvs::Family;
use netfilter::Element;

use super::{Computed, Dirty};
use crate::{compute::Urgency, ref_counts::RefCounts};

/// The keys that at least one Service wants.
#[derive(Debug, Default)]
pub(crate) struct SharedKeys {
    pub(crate) vips: RefCounts<IpAddr>,
    pub(crate) elements: RefCounts<Element>,
    /// The families in which a Service is answered directly, once for each address and port.
    pub(crate) direct_return: RefCounts<Family>,
    /// The nodes with endpoints of Services that are answered directly.
    pub(crate) direct_return_nodes: RefCounts<Arc<str>>,
    /// Whether these have changed since that was taken note of.
    pub(crate) has_other_nodes: bool,
    /// Every address at which an urgent Service is served, once for each port.
    pub(crate) urgent_ips: RefCounts<IpAddr>,
}

impl SharedKeys {
    /// Counts the keys of one more Service.
    pub(crate) fn add(&mut self, computed: &Computed, dirty: &mut Dirty) {
        for vip in computed.desired.vips() {
            if self.vips.add(vip) {
                dirty.toggle_vip(vip);
                dirty.toggle_element(Element::Vip(vip));
            }
        }
        for &element in computed.desired.shared_elements() {
            if self.elements.add(element) {
                dirty.toggle_element(element);
            }
        }
        for family in answered_directly(computed) {
            self.direct_return.add(family);
        }
        for node in &computed.direct_return_nodes {
            self.has_other_nodes |= self.direct_return_nodes.add(node.clone());
        }
        for ip in urgent_ips(computed) {
            self.urgent_ips.add(ip);
        }
    }

    /// Removes the keys of one Service from the counts.
    pub(crate) fn remove(&mut self, computed: &Computed, dirty: &mut Dirty) {
        for vip in computed.desired.vips() {
            if self.vips.remove(&vip) {
                dirty.toggle_vip(vip);
                dirty.toggle_element(Element::Vip(vip));
            }
        }
        for element in computed.desired.shared_elements() {
            if self.elements.remove(element) {
                dirty.toggle_element(*element);
            }
        }
        for family in answered_directly(computed) {
            self.direct_return.remove(&family);
        }
        for node in &computed.direct_return_nodes {
            self.has_other_nodes |= self.direct_return_nodes.remove(node);
        }
        for ip in urgent_ips(computed) {
            self.urgent_ips.remove(&ip);
        }
    }
}

fn answered_directly(computed: &Computed) -> impl Iterator<Item = Family> {
    let servers = computed.desired.virtual_servers.iter();
    servers.filter(|server| server.is_answered_directly()).map(|server| Family::from(server.address.ip))
}

fn urgent_ips(computed: &Computed) -> impl Iterator<Item = IpAddr> {
    let urgent = (computed.urgency == Urgency::First).then(|| computed.addresses());
    urgent.into_iter().flatten().map(|address| address.ip)
}
