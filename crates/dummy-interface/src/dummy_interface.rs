//! kube-ipvs0 as a trait, and what is read from it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipvs::Family;
use netlink::{FailedRequest, OperationError};

use crate::Operation;

/// How a VIP becomes an address that this node answers on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VipBinding {
    /// As an address on kube-ipvs0, as kube-proxy does, but one that is never the source of what goes elsewhere. Each one
    /// costs the kernel a walk through the
    /// addresses of the device, and deleting an IPv6 address a walk through every route
    /// (`rt6_remove_prefsrc`), so ten thousand take seconds and more.
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

/// Why the kernel could not be asked.
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
    /// The smallest MTU of the links by which packets may leave this node, in bytes; `None` if there is none.
    pub link_mtu: Option<u32>,
    /// The gateways of all routes.
    pub gateways: BTreeSet<IpAddr>,
}

/// A tunnel device as the kernel shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelDevice {
    /// Whether it is as it should be, and so is what stands before it.
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

/// kube-ipvs0 in one network namespace.
pub trait DummyInterface {
    /// Reads the device, the VIPs, and the node's own addresses.
    fn observe(&mut self) -> Result<Observed, Error>;

    /// Makes the changes and returns those that failed, by position. [`Operation::EnsureDevice`] comes
    /// first wherever it stands, and then the tunnels; if it fails, nothing else is tried. Any other failed change does not
    /// stop the rest.
    fn apply(&mut self, operations: &[Operation]) -> Result<Vec<FailedRequest>, Error>;
}
