//! All inputs together, and what they ask of the kernel.

use std::{collections::BTreeSet, net::IpAddr};

use ipvs::ServiceAddress;
use netfilter::Element;

use crate::{Change, DesiredService, DesiredVirtualServer, ObjectName, Options};

/// The inputs as last told, and what they ask of the kernel.
///
/// Several Services may claim one address and port. The oldest holds it, by creation time and then
/// by name; the others' claims wait until it lets go. VIPs and elements are shared: they are wanted
/// until the last Service that asks for them is gone.
#[derive(Debug)]
pub struct State {
    options: Options,
}

/// The keys whose desired value may have changed: what a Service asked for before and asks for now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Virtual servers.
    pub virtual_servers: BTreeSet<ServiceAddress>,
    /// Addresses to be local to this node.
    pub vips: BTreeSet<IpAddr>,
    /// Elements of our nf_tables sets.
    pub elements: BTreeSet<Element>,
}

impl Touched {
    /// Whether nothing may have changed.
    pub fn is_empty(&self) -> bool {
        self.virtual_servers.is_empty() && self.vips.is_empty() && self.elements.is_empty()
    }

    /// Adds what `other` has.
    pub fn merge(&mut self, other: Self) {
        self.virtual_servers.extend(other.virtual_servers);
        self.vips.extend(other.vips);
        self.elements.extend(other.elements);
    }
}

/// How soon a virtual server must work after a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Urgency {
    /// `default/kubernetes` and cluster DNS: the node's own components wait for them.
    First,
    /// Everything else.
    Normal,
}

impl State {
    /// No Service, no slice, an unknown node.
    pub fn new(options: Options) -> Self {
        Self { options }
    }

    /// Takes in one piece of news and returns the keys whose desired value may have changed. Keys
    /// whose desired value is known to be the same are left out.
    pub fn apply(&mut self, change: Change) -> Touched {
        let _ = change;
        Touched::default()
    }

    /// Whether both lists have arrived. Until then the desired state is not to be acted on.
    pub fn synced(&self) -> bool {
        false
    }

    /// The virtual server at an address, of the Service that holds it.
    pub fn virtual_server(&self, address: &ServiceAddress) -> Option<&DesiredVirtualServer> {
        let _ = address;
        None
    }

    /// Every virtual server, in no particular order.
    pub fn virtual_servers(&self) -> impl Iterator<Item = &DesiredVirtualServer> {
        std::iter::empty()
    }

    /// Whether a Service wants this address to be local to the node.
    pub fn wants_vip(&self, vip: &IpAddr) -> bool {
        let _ = vip;
        false
    }

    /// Every address that must be local to the node, each once, in no particular order.
    pub fn vips(&self) -> impl Iterator<Item = &IpAddr> {
        std::iter::empty()
    }

    /// Whether a Service wants this element in our nf_tables sets.
    pub fn wants_element(&self, element: &Element) -> bool {
        let _ = element;
        false
    }

    /// Every element that our sets must hold, each once, in no particular order.
    pub fn elements(&self) -> impl Iterator<Item = &Element> {
        std::iter::empty()
    }

    /// The Service that holds an address and port.
    pub fn owner(&self, of: &ServiceAddress) -> Option<&ObjectName> {
        let _ = of;
        None
    }

    /// How soon the virtual server at an address must work.
    pub fn urgency(&self, of: &ServiceAddress) -> Urgency {
        let _ = of;
        Urgency::Normal
    }

    /// How soon an address, or an element about it, must be in place: as its most urgent Service.
    pub fn vip_urgency(&self, of: &IpAddr) -> Urgency {
        let _ = of;
        Urgency::Normal
    }

    /// What one Service asks of the kernel, whether or not an older Service holds it. `None`: there is
    /// no such Service, or it is not ours to serve.
    pub fn desired(&self, service: &ObjectName) -> Option<&DesiredService> {
        let _ = service;
        None
    }

    /// The configuration it was made with.
    pub fn options(&self) -> &Options {
        &self.options
    }
}
