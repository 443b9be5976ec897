//! What several Services can ask for at once: VIPs and elements.

use std::{hash::Hash, net::IpAddr};

use netfilter::Element;
use rustc_hash::FxHashMap;

use crate::{Touched, Urgency, record::Demand};

/// The VIPs and elements that at least one Service asks for.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) vips: Counted<IpAddr>,
    /// Those of `vips` that an urgent Service asks for.
    pub(crate) urgent_vips: Counted<IpAddr>,
    pub(crate) elements: Counted<Element>,
}

impl Shared {
    /// One more Service asks for these.
    pub(crate) fn add(&mut self, demand: &Demand, touched: &mut Touched) {
        for &vip in &demand.desired.vips {
            if demand.urgency == Urgency::First {
                self.urgent_vips.add(vip);
            }
            if self.vips.add(vip) {
                touched.toggle_vip(vip);
            }
        }
        for &element in &demand.desired.elements {
            if self.elements.add(element) {
                touched.toggle_element(element);
            }
        }
    }

    /// One Service less asks for these.
    pub(crate) fn remove(&mut self, demand: &Demand, touched: &mut Touched) {
        for vip in &demand.desired.vips {
            if demand.urgency == Urgency::First {
                self.urgent_vips.remove(vip);
            }
            if self.vips.remove(vip) {
                touched.toggle_vip(*vip);
            }
        }
        for element in &demand.desired.elements {
            if self.elements.remove(element) {
                touched.toggle_element(*element);
            }
        }
    }
}

/// Keys, each with the number of Services that ask for it.
#[derive(Debug)]
pub(crate) struct Counted<K>(FxHashMap<K, u32>);

impl<K> Default for Counted<K> {
    fn default() -> Self {
        Self(FxHashMap::default())
    }
}

impl<K: Hash + Eq> Counted<K> {
    /// Whether somebody asks for the key.
    pub(crate) fn contains(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }

    /// Each key once, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }

    /// Whether it is the first to ask for the key.
    fn add(&mut self, key: K) -> bool {
        let count = self.0.entry(key).or_default();
        *count += 1;
        *count == 1
    }

    /// Whether it was the last to ask for the key.
    fn remove(&mut self, key: &K) -> bool {
        let Some(count) = self.0.get_mut(key) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            self.0.remove(key);
        }
        last
    }
}
