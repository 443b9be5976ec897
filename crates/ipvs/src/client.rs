//! The kernel client.

use netlink::Errno;

use crate::{Command, Id, ObservedRealServer, ObservedVirtualServer};

/// Why the kernel could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The family IPVS does not exist: the module ip_vs is missing.
    #[error("the kernel has no IPVS: load the module ip_vs")]
    NoIpvs,
    /// CAP_NET_ADMIN in the initial user namespace is missing; IPVS asks for it even to read.
    #[error("IPVS refuses to {operation}: CAP_NET_ADMIN in the initial user namespace is needed (EPERM)")]
    NotPermitted {
        /// What was asked.
        operation: &'static str,
    },
    /// Some other failure of the exchange.
    #[error("cannot {operation}")]
    Netlink {
        /// What was asked.
        operation: &'static str,
        /// What went wrong.
        source: netlink::Error,
    },
}

/// A command that could not be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The command's position in what was applied.
    pub index: usize,
    /// The kernel's error number.
    pub errno: Errno,
    /// The kernel's words or ours, where there are any: names a missing scheduler's module.
    pub reason: Option<Box<str>>,
}

/// IPVS connection timeouts in seconds. When setting, 0 leaves a value as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Established TCP connections.
    pub tcp: u32,
    /// TCP connections after a FIN.
    pub tcp_fin: u32,
    /// UDP exchanges.
    pub udp: u32,
}

/// What the kernel says of its IPVS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Version, as major, minor, patch.
    pub version: (u8, u8, u8),
    /// Buckets of the connection table.
    pub connection_table_size: u32,
}

/// The seam to the kernel's IPVS table in one network namespace.
pub trait Ipvs {
    /// Every virtual server, in the kernel's order.
    fn virtual_servers(&mut self) -> Result<Vec<ObservedVirtualServer>, Error>;

    /// The real servers of one virtual server; none if it does not exist.
    fn real_servers(&mut self, of: Id) -> Result<Vec<ObservedRealServer>, Error>;

    /// Executes the commands in order and returns those that failed, by position.
    ///
    /// Each is idempotent as [`Command`] says. A failed command does not stop the others. On `Err`
    /// some may have been executed: read back and compare.
    fn apply(&mut self, commands: &[Command]) -> Result<Vec<Failed>, Error>;
}

/// The real kernel.
#[derive(Debug)]
pub struct KernelIpvs {}
