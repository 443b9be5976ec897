//! The keys that must be compared: one type, whatever the reason.

use std::{collections::BTreeSet, mem, net::IpAddr};

use ipvs::{Family, ServiceAddress};
use netfilter::Element;

/// The smallest part of the kernel's state that is compared by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// kube-ipvs0 itself.
    Device,
    /// The existence of our nf_tables table of a family.
    Table(Family),
    /// The rules of that table for traffic that other programs would take.
    Rules(Family),
    /// The tunnel that unpacks packets from other nodes in a family, and who may send them.
    Tunnel(Family),
    /// An element of our nf_tables sets.
    Element(Element),
    /// An address on kube-ipvs0.
    Vip(IpAddr),
    /// A virtual server with its real servers.
    VirtualServer(ServiceAddress),
}

impl Key {
    /// The virtual server, if it is the key of one.
    pub fn virtual_server(&self) -> Option<ServiceAddress> {
        if let Self::VirtualServer(address) = self { Some(*address) } else { None }
    }

    /// The virtual server of this key, or of its element.
    pub fn belongs_to(&self) -> Option<ServiceAddress> {
        match self {
            Self::VirtualServer(address) => Some(*address),
            Self::Element(element) => element.virtual_server().copied(),
            Self::Device | Self::Table(_) | Self::Rules(_) | Self::Tunnel(_) | Self::Vip(_) => None,
        }
    }

    /// The address of the VIP, or of the element.
    pub fn vip(&self) -> Option<IpAddr> {
        match self {
            Self::Vip(vip) | Self::Element(Element::Vip(vip)) => Some(*vip),
            _ => None,
        }
    }
}

/// The keys that must be compared: those whose desired value may have changed, whose operations failed, that drain,
/// that another program may have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    /// kube-ipvs0 itself.
    pub device: bool,
    /// Families whose table must be there.
    pub tables: BTreeSet<Family>,
    /// Families whose table must have its rules.
    pub rules: BTreeSet<Family>,
    /// Families whose tunnel must be there, or must not.
    pub tunnels: BTreeSet<Family>,
    /// Elements of our nf_tables sets.
    pub elements: BTreeSet<Element>,
    /// Addresses to be local to this node.
    pub vips: BTreeSet<IpAddr>,
    /// Virtual servers.
    pub virtual_servers: BTreeSet<ServiceAddress>,
    /// Whether the health checks, the Services without a local endpoint or the refusals in
    /// [`State::reports`](crate::State::reports) have changed. The kernel has none of it.
    /// But load balancers and metrics get it after a sync, and must not wait for the next one that is due for another
    /// reason.
    pub reports: bool,
}

impl Dirty {
    /// Whether there is nothing to compare or report.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        let shared = self.tables.len() + self.rules.len() + self.tunnels.len() + usize::from(self.device);
        shared + self.elements.len() + self.vips.len() + self.virtual_servers.len()
    }

    /// Whether the keys contain this one.
    pub fn contains(&self, key: &Key) -> bool {
        match key {
            Key::Device => self.device,
            Key::Table(family) => self.tables.contains(family),
            Key::Rules(family) => self.rules.contains(family),
            Key::Tunnel(family) => self.tunnels.contains(family),
            Key::Element(element) => self.elements.contains(element),
            Key::Vip(vip) => self.vips.contains(vip),
            Key::VirtualServer(address) => self.virtual_servers.contains(address),
        }
    }

    /// Adds a key.
    pub fn insert(&mut self, key: Key) {
        match key {
            Key::Device => self.device = true,
            Key::Table(family) => _ = self.tables.insert(family),
            Key::Rules(family) => _ = self.rules.insert(family),
            Key::Tunnel(family) => _ = self.tunnels.insert(family),
            Key::Element(element) => _ = self.elements.insert(element),
            Key::Vip(vip) => _ = self.vips.insert(vip),
            Key::VirtualServer(address) => _ = self.virtual_servers.insert(address),
        }
    }

    /// Adds the keys of `other`.
    pub fn merge(&mut self, other: Self) {
        self.device |= other.device;
        self.tables.extend(other.tables);
        self.rules.extend(other.rules);
        self.tunnels.extend(other.tunnels);
        add_all(&mut self.elements, other.elements);
        add_all(&mut self.vips, other.vips);
        add_all(&mut self.virtual_servers, other.virtual_servers);
        self.reports |= other.reports;
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        let device = self.device.then_some(Key::Device);
        device
            .into_iter()
            .chain(self.tables.iter().copied().map(Key::Table))
            .chain(self.rules.iter().copied().map(Key::Rules))
            .chain(self.tunnels.iter().copied().map(Key::Tunnel))
            .chain(self.elements.iter().copied().map(Key::Element))
            .chain(self.vips.iter().copied().map(Key::Vip))
            .chain(self.virtual_servers.iter().copied().map(Key::VirtualServer))
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

impl Extend<Key> for Dirty {
    fn extend<I: IntoIterator<Item = Key>>(&mut self, keys: I) {
        self.merge(keys.into_iter().collect());
    }
}

/// Keys that are mostly in order take few comparisons: a set that is built from a list sorts that first.
impl FromIterator<Key> for Dirty {
    fn from_iter<I: IntoIterator<Item = Key>>(keys: I) -> Self {
        let mut dirty = Self::default();
        let (mut elements, mut vips, mut virtual_servers) = (Vec::new(), Vec::new(), Vec::new());
        for key in keys {
            match key {
                Key::Element(element) => elements.push(element),
                Key::Vip(vip) => vips.push(vip),
                Key::VirtualServer(address) => virtual_servers.push(address),
                Key::Device | Key::Table(_) | Key::Rules(_) | Key::Tunnel(_) => dirty.insert(key),
            }
        }
        dirty.elements = elements.into_iter().collect();
        dirty.vips = vips.into_iter().collect();
        dirty.virtual_servers = virtual_servers.into_iter().collect();
        dirty
    }
}

/// Adds keys, the fewer to the more.
fn add_all<K: Ord>(keys: &mut BTreeSet<K>, mut more: BTreeSet<K>) {
    if keys.len() < more.len() {
        mem::swap(keys, &mut more);
    }
    keys.extend(more);
}

/// Adds a key, or removes it if it is there, which is rare.
fn toggle<K: Ord + Copy>(keys: &mut BTreeSet<K>, key: K) {
    if !keys.insert(key) {
        keys.remove(&key);
    }
}
