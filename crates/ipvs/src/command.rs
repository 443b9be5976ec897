//! Changes to the kernel's IPVS table, as values.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{RealServer, RealServerAddress, ServiceAddress, ServiceFlags, VirtualServer, VirtualServerId};

/// One change of the kernel's table. It prints as one line.
///
/// Every implementation of `Ipvs` has to know every command, so a new command is a breaking change.
///
/// ```
/// use ipvs::{Command, Protocol, RealServer, ServiceAddress};
///
/// let vip = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 1].into(), port: 443 };
/// let add = Command::AddRealServer(vip.into(), RealServer::masquerade([10, 1, 0, 4].into(), 6443));
/// assert_eq!(add.to_string(), "add real server TCP 10.96.0.1:443 -> 10.1.0.4:6443 weight 1");
/// assert_eq!(add.address(), Some(vip));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// Create a virtual server; if it exists, make it so.
    AddVirtualServer(VirtualServer),
    /// Change a virtual server in place; its connections go on. If it is missing, create it.
    EditVirtualServer(VirtualServer),
    /// Remove a virtual server with its real servers; do nothing if it is missing.
    DeleteVirtualServer(VirtualServerId),
    /// Add a real server; if it exists, make it so.
    AddRealServer(VirtualServerId, RealServer),
    /// Change a real server in place; its connections go on. If it is missing, add it.
    EditRealServer(VirtualServerId, RealServer),
    /// Remove a real server; do nothing if it or its virtual server is missing.
    DeleteRealServer(VirtualServerId, RealServerAddress),
}

impl Command {
    /// The virtual server of the command, also where it is about a real server.
    pub fn virtual_server(&self) -> VirtualServerId {
        match self {
            Self::AddVirtualServer(server) | Self::EditVirtualServer(server) => server.id,
            Self::DeleteVirtualServer(id)
            | Self::AddRealServer(id, _)
            | Self::EditRealServer(id, _)
            | Self::DeleteRealServer(id, _) => *id,
        }
    }

    /// The address of [`Command::virtual_server`]; `None` if that balances a firewall mark.
    pub fn address(&self) -> Option<ServiceAddress> {
        match self.virtual_server() {
            VirtualServerId::Address(address) => Some(address),
            VirtualServerId::Mark { .. } => None,
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddVirtualServer(server) => virtual_server(f, "add", server),
            Self::EditVirtualServer(server) => virtual_server(f, "edit", server),
            Self::DeleteVirtualServer(id) => write!(f, "delete virtual server {id}"),
            Self::AddRealServer(id, server) => real_server(f, "add", *id, server),
            Self::EditRealServer(id, server) => real_server(f, "edit", *id, server),
            Self::DeleteRealServer(id, address) => write!(f, "delete real server {id} -> {address}"),
        }
    }
}

fn virtual_server(f: &mut fmt::Formatter<'_>, verb: &str, server: &VirtualServer) -> fmt::Result {
    write!(f, "{verb} virtual server {} {}", server.id, server.scheduler)?;
    if server.timeout != 0 {
        write!(f, " persistent {} s", server.timeout)?;
    }
    let others = server.flags - ServiceFlags::PERSISTENT;
    if others.is_empty() { Ok(()) } else { write!(f, " flags {:#x}", others.bits()) }
}

fn real_server(
    f: &mut fmt::Formatter<'_>,
    verb: &str,
    of: VirtualServerId,
    server: &RealServer,
) -> fmt::Result {
    let RealServer { address, weight, upper_threshold, lower_threshold, .. } = server;
    write!(f, "{verb} real server {of} -> {address} weight {weight}")?;
    if *upper_threshold != 0 {
        write!(f, " upper threshold {upper_threshold}")?;
    }
    if *lower_threshold == 0 { Ok(()) } else { write!(f, " lower threshold {lower_threshold}") }
}
