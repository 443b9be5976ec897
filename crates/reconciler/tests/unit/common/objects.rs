//! The objects that a reconciler is fed with, and what they are in the kernel.
use std::net::IpAddr;

use ipvs::{Family, Protocol, RealServerAddress, ServiceAddress, VirtualServerId};
use service::{Endpoint, EndpointPort, EndpointSlice, ObjectName, Service, ServicePort};
use testkit::FakeKernel;

pub(crate) fn service(name: &str, ip: &str, protocol: Protocol) -> Service {
    Service {
        created: Some(0),
        cluster_ips: vec![ip.parse().unwrap()],
        ports: vec![ServicePort { name: "".into(), protocol, port: 80, node_port: None }],
        ..Service::new(ObjectName::new("default", name))
    }
}

pub(crate) fn slice(service: &str, protocol: Protocol, addresses: &[&str]) -> EndpointSlice {
    EndpointSlice {
        ports: vec![EndpointPort { name: "".into(), protocol, port: 8080 }],
        endpoints: addresses.iter().map(|address| endpoint(address)).collect(),
        ..EndpointSlice::new(
            ObjectName::new("default", format!("{service}-1")),
            ObjectName::new("default", service),
            Family::from(addresses.first().map_or(IpAddr::from([0, 0, 0, 0]), |a| a.parse().unwrap())),
        )
    }
}

pub(crate) fn endpoint(address: &str) -> Endpoint {
    Endpoint { node: Some("node".into()), ..Endpoint::new(address.parse().unwrap()) }
}

pub(crate) fn at(ip: &str, protocol: Protocol) -> ServiceAddress {
    ServiceAddress { protocol, ip: ip.parse().unwrap(), port: 80 }
}

pub(crate) fn real(ip: &str) -> RealServerAddress {
    RealServerAddress { ip: ip.parse().unwrap(), port: 8080 }
}

/// Gives a real server in the kernel this many established connections.
pub(crate) fn active_connections(kernel: &FakeKernel, of: VirtualServerId, server: &str, count: u32) {
    let mut state = kernel.state();
    let servers = &mut state.virtual_servers.get_mut(&of).unwrap().1;
    servers.get_mut(&real(server)).unwrap().active_connections = count;
}
