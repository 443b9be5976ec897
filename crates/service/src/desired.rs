//! What the kernel should look like for one Service.

use std::net::IpAddr;

use ipvs::{RealServer, ServiceAddress, VirtualServer};
use netfilter::Element;
use serde::Serialize;

/// Everything in the kernel that one Service asks for. Computed from that Service's own inputs, so
/// that a change costs what its Service costs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DesiredService {
    /// Its virtual servers with their real servers, sorted by address, each address once.
    pub virtual_servers: Box<[DesiredVirtualServer]>,
    /// The addresses that must be local to this node, sorted, each once.
    pub vips: Box<[IpAddr]>,
    /// The elements that our nf_tables sets must hold, sorted, each once.
    pub elements: Box<[Element]>,
}

/// One virtual server and its real servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DesiredVirtualServer {
    /// What names it.
    pub address: ServiceAddress,
    /// Its configuration; `config.id` is `address`.
    pub config: VirtualServer,
    /// Its real servers, sorted by address, each address once.
    pub real_servers: Box<[RealServer]>,
}
