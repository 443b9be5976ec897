//! Elements and tunnels that exist only while this node unpacks what other nodes send to its pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
    sync::Arc,
};

use ipvs::Family;
use netfilter::Element;

use crate::{
    collections::RefCounts,
    compute::DesiredService,
    input::{CompactSlice, Peers},
    state::{Computed, Dirty, State},
};

/// The families and nodes that Services need that are answered directly, counted.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    /// The families in which a Service is answered directly, once for each address and port.
    families: RefCounts<Family>,
    /// The nodes with endpoints of such Services.
    nodes: RefCounts<Arc<str>>,
    /// Those of these nodes that are known, with their addresses.
    peers: Arc<BTreeMap<Arc<str>, Vec<IpAddr>>>,
    /// Whether `nodes` has changed since `peers` was made.
    is_outdated: bool,
}

impl Demand {
    /// Adds what a Service needs to the counts, or removes it.
    pub(crate) fn count(&mut self, computed: &Computed, wanted: bool) {
        for family in families(&computed.desired) {
            self.families.set(&family, wanted);
        }
        for node in &computed.direct_return_nodes {
            self.is_outdated |= self.nodes.set(node, wanted);
        }
    }

    /// Looks up the addresses of the nodes again, if nodes or addresses have changed.
    pub(crate) fn update(&mut self, before: &Arc<Peers>, peers: &Arc<Peers>) {
        if !mem::take(&mut self.is_outdated) && Arc::ptr_eq(before, peers) {
            return;
        }
        let with_ips = |name: &Arc<str>| Some((name.clone(), peers.ips_of(name)?.to_vec()));
        let now: BTreeMap<_, _> = self.nodes.iter().filter_map(with_ips).collect();
        if *self.peers != now {
            self.peers = now.into();
        }
    }
}

/// The families of the addresses and ports at which a Service is answered directly.
fn families(desired: &DesiredService) -> impl Iterator<Item = Family> {
    let servers = desired.virtual_servers.iter().filter(|server| server.is_answered_directly());
    servers.map(|server| Family::from(server.address.ip))
}

/// The nodes with endpoints of a Service, if any of its addresses is answered directly; sorted, each once.
pub(crate) fn nodes_with_endpoints(desired: &DesiredService, slices: &[CompactSlice]) -> Box<[Arc<str>]> {
    let is_direct = families(desired).next().is_some();
    let nodes = slices.iter().filter(|_| is_direct).flat_map(CompactSlice::nodes).cloned();
    nodes.collect::<BTreeSet<_>>().into_iter().collect()
}

impl State {
    /// Whether this node unpacks what other nodes send to its pods in a family: a Service is answered directly, or one
    /// was and still has open connections.
    pub fn unpacks(&self, family: Family) -> bool {
        self.direct_return.families.contains(&family) || self.inputs.node.tunnels.in_use.contains(&family)
    }

    /// The families in which this node unpacks.
    pub fn unpacking(&self) -> BTreeSet<Family> {
        Family::BOTH.into_iter().filter(|family| self.unpacks(*family)).collect()
    }

    /// Whether the other nodes were listed. Until then, admitted peers stay admitted.
    pub fn knows_peers(&self) -> bool {
        self.inputs.node.peers.listed
    }

    /// The other nodes with an endpoint of a Service that is answered directly, by name, with their addresses. As long
    /// as they are the same, so is the `Arc`.
    pub fn peers_with_endpoints(&self) -> &Arc<BTreeMap<Arc<str>, Vec<IpAddr>>> {
        &self.direct_return.peers
    }

    /// Marks the families in which this node began or ceased to unpack, and with them the elements that are wanted only
    /// where it does; among them the nodes that are let in.
    pub(crate) fn touch_tunnels(&self, unpacked: [bool; 2], peers_before: &Arc<Peers>, dirty: &mut Dirty) {
        for (family, unpacked) in Family::BOTH.into_iter().zip(unpacked) {
            let unpacks = self.unpacks(family);
            if unpacked != unpacks {
                dirty.tunnels.insert(family);
                self.touch_all_for_unpacking(family, unpacks, dirty);
            } else if !unpacks {
                dirty.elements.retain(|element| !is_for_unpacking(element, family));
            }
            let peers = &self.inputs.node.peers;
            if unpacks && peers.listed != peers_before.listed {
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

    /// Marks all elements that Services want only where this node unpacks, which it has just begun or ceased to do.
    /// Those that were marked already have changed in the same moment.
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
