//! What depends on whether this node unpacks what other nodes send to its pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
    sync::Arc,
};

use ipvs::Family;
use netfilter::Element;

use super::{Dirty, State};
use crate::input::Peers;

impl State {
    /// Whether this node unpacks what other nodes send to its pods in a family: a Service is answered directly, or one was
    /// and has open connections yet.
    pub fn unpacks(&self, family: Family) -> bool {
        self.shared.direct_return.contains(&family) || self.inputs.node().has_tunnel_in_use(family)
    }

    /// The families in which this node does.
    pub fn unpacking(&self) -> BTreeSet<Family> {
        Family::BOTH.into_iter().filter(|family| self.unpacks(*family)).collect()
    }

    /// Whether it is known which other nodes there are. Before, those stay let in that are.
    pub fn knows_peers(&self) -> bool {
        self.inputs.node().peers().are_listed()
    }

    /// The other nodes with an endpoint of a Service that is answered directly, by name, with their addresses. As long as
    /// they are the same, so is the `Arc`.
    pub fn peers_with_endpoints(&self) -> &Arc<BTreeMap<Arc<str>, Vec<IpAddr>>> {
        &self.peers_with_endpoints
    }

    pub(super) fn update_peers_with_endpoints(&mut self) {
        let peers = self.inputs.node().peers();
        let with_ips = |name: &Arc<str>| Some((name.clone(), peers.ips_of(name)?.to_vec()));
        let now: BTreeMap<_, _> = self.shared.direct_return_nodes.iter().filter_map(with_ips).collect();
        if *self.peers_with_endpoints != now {
            self.peers_with_endpoints = now.into();
        }
    }

    /// Marks the families in which this node began or ceased to unpack, and with them the elements that are wanted only
    /// where it does; among them the nodes that are let in.
    pub(super) fn touch_tunnels(&self, unpacked: [bool; 2], peers_before: &Arc<Peers>, dirty: &mut Dirty) {
        for (family, unpacked) in Family::BOTH.into_iter().zip(unpacked) {
            let unpacks = self.unpacks(family);
            if unpacked != unpacks {
                dirty.tunnels.insert(family);
                self.touch_all_for_unpacking(family, unpacks, dirty);
            } else if !unpacks {
                dirty.elements.retain(|element| !is_for_unpacking(element, family));
            }
            let peers = self.inputs.node().peers();
            if unpacks && peers.are_listed() != peers_before.are_listed() {
                // Who may send is known only now, or not any more.
                dirty.tunnels.insert(family);
            }
            if unpacked != unpacks || unpacks && !Arc::ptr_eq(peers_before, peers) {
                let before: BTreeSet<_> = peers_before.senders(family).filter(|_| unpacked).collect();
                let now = peers.senders(family).filter(|_| unpacks).collect();
                dirty.elements.extend((&before ^ &now).into_iter().map(Element::TunnelSender));
            }
        }
    }

    /// Marks all elements that Services want only where this node unpacks, which it has just begun or ceased to do. Those
    /// that were marked already have changed in the same moment.
    fn touch_all_for_unpacking(&self, family: Family, unpacks: bool, dirty: &mut Dirty) {
        let depends = |element: &Element| is_for_unpacking(element, family);
        let now: BTreeSet<_> = self.elements_of_services().filter(depends).collect();
        let (toggled, others): (BTreeSet<_>, _) =
            mem::take(&mut dirty.elements).into_iter().partition(depends);
        dirty.elements = others;
        dirty.elements.extend(if unpacks { now } else { &now ^ &toggled });
    }
}

fn is_for_unpacking(element: &Element, family: Family) -> bool {
    element.family() == family && element.is_for_unpacking()
}
