//! What load balancers are told of this node.

use std::net::IpAddr;

use super::{HealthCheck, Traffic};
use crate::input::{Options, Service, ServiceKind, TrafficPolicy};

impl HealthCheck {
    /// The answer for a Service whose ready endpoints on this node these are. `None`: nobody asks, since
    /// traffic of a Service without the external policy Local is welcome on every node.
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
