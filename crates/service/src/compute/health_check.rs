//! The answers to load balancers that ask for endpoints on this node.

use std::net::IpAddr;

use super::{HealthCheck, Traffic};
use crate::input::{Options, Service, ServiceKind, TrafficPolicy};

impl HealthCheck {
    /// The answer for a Service with these ready endpoints on this node. `None` without the external policy Local:
    /// load balancers may send such traffic to every node.
    pub(crate) fn for_service(
        service: &Service,
        options: &Options,
        mut ready_here: Vec<IpAddr>,
    ) -> Option<Self> {
        let asked = service.kind == ServiceKind::LoadBalancer
            && service.policy(Traffic::External, options) == TrafficPolicy::Local;
        let port = service.health_check_node_port.filter(|_| asked)?;
        ready_here.sort_unstable();
        ready_here.dedup();
        let ready_v4 = ready_here.iter().filter(|ip| ip.is_ipv4()).count();
        Some(Self { port, ready_v4, ready_v6: ready_here.len() - ready_v4 })
    }
}
