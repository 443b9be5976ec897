//! The seam to the kernel's links, addresses and routes.

use std::{collections::BTreeSet, net::IpAddr};

use netlink::Errno;

use crate::Change;

/// Why the kernel could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// CAP_NET_ADMIN is missing.
    #[error("the kernel refuses to {operation}: CAP_NET_ADMIN is needed (EPERM)")]
    NotPermitted {
        /// What was asked.
        operation: &'static str,
    },
    /// A device of that name exists and is not a dummy.
    #[error("kube-ipvs0 exists and is of type {kind}, not dummy")]
    NotADummy {
        /// Its type.
        kind: String,
    },
    /// The kernel has no dummy device.
    #[error("the kernel cannot create a dummy device: load the module dummy")]
    NoDummyModule,
    /// Some other failure of the exchange.
    #[error("cannot {operation}")]
    Netlink {
        /// What was asked.
        operation: &'static str,
        /// What went wrong.
        source: netlink::Error,
    },
}

/// A change that could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Its position in what was applied.
    pub index: usize,
    /// The kernel's error number.
    pub errno: Errno,
}

/// kube-ipvs0 as the kernel shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Whether the device exists as it should be.
    pub device: bool,
    /// The VIPs that are bound: addresses on kube-ipvs0, or local routes through it, by the binding
    /// mode. Link-local IPv6 addresses, which the kernel makes by itself, are left out.
    pub bound: BTreeSet<IpAddr>,
}

/// The seam to kube-ipvs0 in one network namespace.
pub trait Links {
    /// Reads the device and the VIPs on it.
    fn observe(&mut self) -> Result<Observed, Error>;

    /// Makes the changes in order and returns those that failed, by position. A failed change does
    /// not stop the others, except that nothing can be bound without the device.
    fn apply(&mut self, changes: &[Change]) -> Result<Vec<Failed>, Error>;
}
