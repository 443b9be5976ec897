//! kube-ipvs0 as a trait: what is read from it, and the operations on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipvs::Family;
use netlink::{FailedRequest, OperationError};
use serde::{Deserialize, Serialize};

/// How a VIP is bound to this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VipBinding {
    /// As an address on kube-ipvs0, as kube-proxy does, but one that is never the source of what goes elsewhere. Each one
    /// costs the kernel a walk through the addresses of the device, and deleting an IPv6 address a walk through every
    /// route (`rt6_remove_prefsrc`), so ten thousand take seconds and more.
    #[default]
    Address,
    /// As a `local` route, at a cost that does not depend on how many there are. The node's own
    /// connections to a VIP come from the source named here; without one, IPv4 takes the VIP, as with
    /// addresses, and IPv6 the node's address that suits best.
    Route {
        /// The node's IPv4 address; the kernel refuses one that the node does not have.
        source_v4: Option<Ipv4Addr>,
        /// The node's IPv6 address, likewise.
        source_v6: Option<Ipv6Addr>,
    },
}

impl VipBinding {
    /// Whether a route of ours to a VIP is as this binding makes it.
    pub(crate) fn makes_route(self, to: IpAddr, source: Option<IpAddr>) -> bool {
        self != Self::Address && source == self.source_towards(to)
    }

    /// The source of the node's own connections to a VIP of that family.
    pub(crate) fn source_towards(self, vip: IpAddr) -> Option<IpAddr> {
        match (self, vip) {
            (Self::Route { source_v4, .. }, IpAddr::V4(_)) => source_v4.map(IpAddr::V4),
            (Self::Route { source_v6, .. }, IpAddr::V6(_)) => source_v6.map(IpAddr::V6),
            (Self::Address, _) => None,
        }
    }
}

impl fmt::Display for VipBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address => f.write_str("address"),
            Self::Route { source_v4, source_v6 } => {
                f.write_str("route")?;
                let sources = [source_v4.map(IpAddr::V4), source_v6.map(IpAddr::V6)];
                for (number, source) in sources.into_iter().flatten().enumerate() {
                    write!(f, "{}{source}", if number == 0 { " from " } else { ", " })?;
                }
                Ok(())
            }
        }
    }
}

/// Why an operation on kube-ipvs0 failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The exchange with the kernel failed.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// A device of that name exists and is not a dummy.
    #[error("kube-ipvs0 exists and is of type {kind}, not dummy")]
    NotADummy {
        /// Its type.
        kind: String,
    },
    /// The kernel has no dummy device.
    #[error("the kernel cannot create a dummy device: load the module dummy")]
    NoDummyModule,
}

impl Error {
    /// A function that turns an error of netlink during `operation` into this type.
    pub(crate) fn during(operation: &'static str) -> impl Fn(netlink::Error) -> Self {
        move |source| OperationError::new("the kernel", operation, source).into()
    }
}

/// kube-ipvs0 as the kernel shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Whether the device exists as it should be.
    pub device: bool,
    /// The VIPs bound in the configured way: addresses on kube-ipvs0, or our own local routes with the
    /// configured source. Link-local IPv6 addresses, which the kernel makes by itself, are left out.
    pub bound: BTreeSet<IpAddr>,
    /// The VIPs bound in part or otherwise than wanted: as an earlier configuration asked for, by the other kind of
    /// binding or by a route with another source; by an address that the kernel may take as the source of what goes
    /// elsewhere, or that will go by itself; by an address without its route. A VIP can be in both sets. One that is wanted
    /// needs a [`Operation::Bind`] even if it is in `bound`; one that is not wanted needs a [`Operation::Unbind`].
    pub stale_bindings: BTreeSet<IpAddr>,
    /// The tunnel devices that exist.
    pub tunnels: BTreeMap<Family, TunnelDevice>,
    /// The node's own addresses: those of every interface except kube-ipvs0, whatever kind of device that
    /// is, and the tunnel devices, without loopback addresses and without link-local IPv6 addresses.
    pub node_addresses: BTreeSet<IpAddr>,
    /// The smallest MTU of the links by which packets may leave this node, in bytes; `None` without such links.
    pub link_mtu: Option<u32>,
    /// The gateways of all routes.
    pub gateways: BTreeSet<IpAddr>,
}

/// A tunnel device as the kernel shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelDevice {
    /// Whether it is as it should be, with the UDP port of generic UDP encapsulation, where that is wanted.
    pub right: bool,
    /// How many packets have come out of it since it was made.
    pub received: u64,
}

impl Observed {
    /// Whether a family has a tunnel device that is as it should be.
    pub fn has_right_tunnel(&self, family: Family) -> bool {
        self.tunnels.get(&family).is_some_and(|tunnel| tunnel.right)
    }
}

/// One change. Its `Display` is one line, for logs and golden tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Create kube-ipvs0, or make it a dummy device that is NOARP; VIPs on it stay.
    EnsureDevice,
    /// Make a VIP a local address of this node, in the configured way, unless it is one. If it was last observed to be
    /// bound another way, that binding is removed afterwards, so that the VIP is bound all the time. An address that
    /// must be added again has a route of ours meanwhile.
    Bind(IpAddr),
    /// Unbind a VIP, in every way in which it was last observed to be bound; nothing if it is not bound.
    Unbind(IpAddr),
    /// Create the tunnel device of a family, or make it as it should be.
    EnsureTunnel(Family),
    /// Remove the tunnel device of a family, if it exists.
    RemoveTunnel(Family),
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EnsureDevice => f.write_str("ensure device kube-ipvs0"),
            Self::Bind(vip) => write!(f, "bind {vip}"),
            Self::Unbind(vip) => write!(f, "unbind {vip}"),
            Self::EnsureTunnel(family) => write!(f, "ensure tunnel {family}"),
            Self::RemoveTunnel(family) => write!(f, "remove tunnel {family}"),
        }
    }
}

/// kube-ipvs0 in one network namespace.
pub trait DummyInterface {
    /// Reads the device, the VIPs, and the node's own addresses.
    fn observe(&mut self) -> Result<Observed, Error>;

    /// Carries out operations and returns those that failed, by position. [`Operation::EnsureDevice`] comes first wherever
    /// it stands, and then the tunnels; if it fails, nothing else is tried. Any other failed operation does not stop the
    /// rest. Stale bindings are those of the last [`DummyInterface::observe`]: undone are only those.
    fn apply(&mut self, operations: &[Operation]) -> Result<Vec<FailedRequest>, Error>;
}
