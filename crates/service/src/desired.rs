//! What the kernel should look like for one Service.

use std::{net::IpAddr, num::NonZero, sync::Arc};

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
    /// What a load balancer is told of this node, if it asks.
    pub health_check: Option<HealthCheck>,
    /// The policies that find no endpoint on this node although there are some elsewhere.
    pub without_local_endpoint: WithoutLocalEndpoint,
}

/// The answer at a Service's `healthCheckNodePort`: how many endpoints on this node are ready, each pod
/// counted once whatever its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HealthCheck {
    /// Where the load balancer asks.
    pub port: NonZero<u16>,
    /// Ready IPv4 endpoints on this node.
    pub ready_v4: usize,
    /// Ready IPv6 endpoints on this node.
    pub ready_v6: usize,
}

/// Traffic policies `Local` for which this node has no endpoint while the cluster has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WithoutLocalEndpoint {
    /// The internal policy of some port.
    pub internal: bool,
    /// The external policy of some port.
    pub external: bool,
}

/// One virtual server and its real servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DesiredVirtualServer {
    /// What names it.
    pub address: ServiceAddress,
    /// Its configuration; `config.id` is `address`.
    pub config: VirtualServer,
    /// Its real servers, sorted by address, each address once. The virtual servers of one port mostly have the same, and then share them.
    pub real_servers: Arc<[RealServer]>,
}
