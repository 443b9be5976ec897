//! What else the kernel knows of a packet whose report just ends.

use std::path::Path;

use ipvs::{Ipvs as _, Protocol, ServiceAddress};
use netfilter::trace::Headers;

use crate::node::{
    requirements,
    routing_drops::{CONF, RoutingDrops, reverse_path_filter},
};

/// What was so when the trace began.
#[derive(Debug)]
pub(super) struct Evidence {
    before: RoutingDrops,
}

impl Evidence {
    pub(super) fn begin() -> Self {
        Self { before: RoutingDrops::read() }
    }

    /// Why routing may have dropped a packet that came in by an interface.
    pub(super) fn of_routing(&self, input: Option<&str>) -> String {
        let now = RoutingDrops::read();
        let filtered = now.reverse_path.saturating_sub(self.before.reverse_path);
        let unrouted = now.no_route.saturating_sub(self.before.no_route);
        if filtered > 0 {
            let input = input.unwrap_or("all");
            let strict = [input, "all"]
                .into_iter()
                .filter_map(|it| reverse_path_filter(Path::new(CONF), it))
                .max()
                .unwrap_or_default();
            return format!(
                "rp_filter of {input} is {strict}, and has dropped {filtered} packets meanwhile \
                 (IPReversePathFilter): the route to their source uses another interface (ip route get)"
            );
        }
        if unrouted > 0 {
            return format!("{unrouted} packets had no route in that time (InNoRoutes)");
        }
        "neither rp_filter nor a missing route was counted; a table of iptables-legacy, a bridge, XDP or tc may \
         have dropped it"
            .to_owned()
    }

    /// Why IPVS may not have sent a request on.
    #[expect(clippy::unused_self, reason = "asked like the other")]
    pub(super) fn of_virtual_server(&self, request: &Headers) -> String {
        let Some(address) = frontend(request) else { return "it is not TCP, UDP or SCTP".to_owned() };
        let read = || -> anyhow::Result<String> {
            let mut kernel = requirements::open_ipvs()?;
            if kernel.virtual_server(address.into())?.is_none() {
                return Ok(format!("it has no virtual server {address}"));
            }
            let real_servers = kernel.real_servers(address.into())?;
            let usable = real_servers.iter().filter(|it| it.config.weight > 0).count();
            Ok(match (real_servers.len(), usable) {
                (0, _) => format!("{address} has no real server"),
                (all, 0) => format!("all {all} real servers of {address} have weight 0"),
                (all, _) => format!(
                    "{address} has {all} real servers; the one that it chose is overloaded, or has no route \
                     (ip route get)"
                ),
            })
        };
        read().unwrap_or_else(|error| format!("and cannot be read: {error:#}"))
    }
}

fn frontend(request: &Headers) -> Option<ServiceAddress> {
    let (_, port) = request.transport.ports()?;
    let protocol = Protocol::from_number(u16::from(request.protocol))?;
    Some(ServiceAddress { protocol, ip: request.destination, port })
}
