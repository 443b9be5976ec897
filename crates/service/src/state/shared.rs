//! What several Services can ask for at once: VIPs, and elements that belong to no virtual server.

use std::net::IpAddr;

use netfilter::Element;

use super::{Demand, Touched};
use crate::{compute::Urgency, counted::Counted};

/// What at least one Service asks for.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) vips: Counted<IpAddr>,
    pub(crate) elements: Counted<Element>,
    /// Every address at which an urgent Service is served, once for each port.
    pub(crate) urgent_ips: Counted<IpAddr>,
}

impl Shared {
    /// Counts what one more Service asks for.
    pub(crate) fn add(&mut self, demand: &Demand, touched: &mut Touched) {
        for &vip in &demand.desired.vips {
            if self.vips.add(vip) {
                touched.toggle_vip(vip);
                touched.toggle_element(Element::Vip(vip));
            }
        }
        for &element in &demand.desired.shared_elements {
            if self.elements.add(element) {
                touched.toggle_element(element);
            }
        }
        for ip in urgent_ips(demand) {
            self.urgent_ips.add(ip);
        }
    }

    /// Takes what one Service asked for out of the count.
    pub(crate) fn remove(&mut self, demand: &Demand, touched: &mut Touched) {
        for vip in &demand.desired.vips {
            if self.vips.remove(vip) {
                touched.toggle_vip(*vip);
                touched.toggle_element(Element::Vip(*vip));
            }
        }
        for element in &demand.desired.shared_elements {
            if self.elements.remove(element) {
                touched.toggle_element(*element);
            }
        }
        for ip in urgent_ips(demand) {
            self.urgent_ips.remove(&ip);
        }
    }
}

fn urgent_ips(demand: &Demand) -> impl Iterator<Item = IpAddr> {
    let urgent = (demand.urgency == Urgency::First).then(|| demand.addresses());
    urgent.into_iter().flatten().map(|address| address.ip)
}
