//! From one Service's inputs to what it asks of the kernel.

use ipvs::{Family, RealServer, Scheduler, ServiceAddress, ServiceFlags, VirtualServer};
use netfilter::{Element, HairpinFlow};

use crate::{
    DesiredService, DesiredVirtualServer, Node, Options, Service, ServiceKind, ServicePort,
    endpoints::{PortEndpoint, endpoints_of},
    selection::Selection,
    slice::{KnownSlice, Traits},
};

impl DesiredService {
    /// What a Service with these slices asks of the kernel. `None`: it is not ours to serve.
    pub(crate) fn compute(
        service: &Service,
        slices: &[KnownSlice],
        node: &Node,
        options: &Options,
    ) -> Option<Self> {
        if service.other_proxy || service.kind == ServiceKind::ExternalName || service.cluster_ips.is_empty()
        {
            return None;
        }
        let mut virtual_servers = Vec::with_capacity(service.cluster_ips.len() * service.ports.len());
        let mut elements = Vec::with_capacity(virtual_servers.capacity());
        for &ip in &service.cluster_ips {
            for port in &service.ports {
                let address = ServiceAddress { protocol: port.protocol, ip, port: port.port };
                // The API server lets no port and protocol appear twice; from elsewhere, the first counts.
                if virtual_servers.iter().any(|server: &DesiredVirtualServer| server.address == address) {
                    continue;
                }
                let used = used_endpoints(service, port, Family::of(ip), slices, node);
                virtual_servers.push(DesiredVirtualServer {
                    address,
                    config: configuration(address, service, options.scheduler),
                    real_servers: used.iter().map(real_server).collect(),
                });
                elements.push(Element::ClusterIp(address));
                elements.extend(used.iter().filter_map(|endpoint| hairpin(port, endpoint)));
            }
        }
        virtual_servers.sort_unstable_by_key(|server| server.address);
        Some(Self {
            vips: sorted_once(virtual_servers.iter().map(|server| server.address.ip).collect()),
            virtual_servers: virtual_servers.into(),
            elements: sorted_once(elements),
            health_check: None,
            without_local_endpoint: crate::WithoutLocalEndpoint::default(),
        })
    }
}

/// The endpoints of a port that are used at the ClusterIP of a family.
fn used_endpoints(
    service: &Service,
    port: &ServicePort,
    family: Family,
    slices: &[KnownSlice],
    node: &Node,
) -> Vec<PortEndpoint> {
    let mut endpoints = endpoints_of(port, family, slices, node.zone.as_deref());
    let selection = Selection::decide(&endpoints, service.internal_traffic_policy);
    endpoints.retain(|endpoint| selection.uses(endpoint));
    endpoints
}

fn configuration(address: ServiceAddress, service: &Service, scheduler: Scheduler) -> VirtualServer {
    let mut server = VirtualServer::new(address, scheduler);
    if scheduler == Scheduler::MH {
        // Without the fallback mh refuses clients that hash to a draining real server; without the
        // port all of a client's connections go to one real server (net/netfilter/ipvs/ip_vs_mh.c).
        server.flags |= ServiceFlags::SCHEDULER_1 | ServiceFlags::SCHEDULER_2;
    }
    match service.session_affinity {
        Some(seconds) => server.persistent(seconds),
        None => server,
    }
}

fn real_server(endpoint: &PortEndpoint) -> RealServer {
    RealServer::masquerade(endpoint.address.ip, endpoint.address.port)
}

/// A pod of this node can be its own client.
fn hairpin(port: &ServicePort, endpoint: &PortEndpoint) -> Option<Element> {
    let local = endpoint.traits.contains(Traits::LOCAL);
    local.then_some(Element::Hairpin(HairpinFlow { protocol: port.protocol, pod: endpoint.address }))
}

fn sorted_once<T: Ord>(mut values: Vec<T>) -> Box<[T]> {
    values.sort_unstable();
    values.dedup();
    values.into()
}
