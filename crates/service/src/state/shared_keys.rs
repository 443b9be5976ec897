//! Keys that several Services can want at once: VIPs, and elements that belong to no virtual server.

use std::net::IpAddr;

use netfilter::Element;

use super::{Computed, Touched};
use crate::{compute::Urgency, ref_counts::RefCounts};

/// The keys that at least one Service wants.
#[derive(Debug, Default)]
pub(crate) struct SharedKeys {
    pub(crate) vips: RefCounts<IpAddr>,
    pub(crate) elements: RefCounts<Element>,
    /// Every address at which an urgent Service is served, once for each port.
    pub(crate) urgent_ips: RefCounts<IpAddr>,
}

impl SharedKeys {
    /// Counts the keys of one more Service.
    pub(crate) fn add(&mut self, computed: &Computed, touched: &mut Touched) {
        for &vip in &computed.desired.vips {
            if self.vips.add(vip) {
                touched.toggle_vip(vip);
                touched.toggle_element(Element::Vip(vip));
            }
        }
        for &element in &computed.desired.shared_elements {
            if self.elements.add(element) {
                touched.toggle_element(element);
            }
        }
        for ip in urgent_ips(computed) {
            self.urgent_ips.add(ip);
        }
    }

    /// Removes the keys of one Service from the counts.
    pub(crate) fn remove(&mut self, computed: &Computed, touched: &mut Touched) {
        for vip in &computed.desired.vips {
            if self.vips.remove(vip) {
                touched.toggle_vip(*vip);
                touched.toggle_element(Element::Vip(*vip));
            }
        }
        for element in &computed.desired.shared_elements {
            if self.elements.remove(element) {
                touched.toggle_element(*element);
            }
        }
        for ip in urgent_ips(computed) {
            self.urgent_ips.remove(&ip);
        }
    }
}

fn urgent_ips(computed: &Computed) -> impl Iterator<Item = IpAddr> {
    let urgent = (computed.urgency == Urgency::First).then(|| computed.addresses());
    urgent.into_iter().flatten().map(|address| address.ip)
}
