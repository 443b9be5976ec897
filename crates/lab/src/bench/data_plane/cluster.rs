//! The Services: one whose pods are asked, and as many as are wanted beside it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipvs::Family;
use serde_json::{Value, json};
use testkit::objects::{self, with};

use super::traffic;
use crate::bench::api::Objects;

/// Where the Service that is asked is, at its ClusterIP and its load balancer's address.
pub(super) const PORT: u16 = 80;
pub(super) const NODE_PORT: u16 = 30_080;
/// Who may ask the load balancer: the lab's client is among them.
const SOURCES: [&str; 2] = ["192.168.50.0/24", "fd00:50::/64"];

/// Everything that all variants serve.
pub(super) struct Cluster {
    services: u32,
}

/// An address and port, and what answers there.
pub(super) struct Served {
    pub(super) ip: IpAddr,
    pub(super) port: u16,
    pub(super) endpoint: IpAddr,
    pub(super) endpoint_port: u16,
    /// Whether by UDP too.
    pub(super) by_udp: bool,
}

impl Cluster {
    pub(super) fn new(services: u32) -> Self {
        Self { services }
    }

    pub(super) fn services(&self) -> u32 {
        self.services
    }

    /// As the API server has it: the endpoint is this pod, the node has these addresses.
    pub(super) fn objects(&self, node: [IpAddr; 2], pod: [IpAddr; 2]) -> Objects {
        let services = (0..self.services).map(service).collect();
        let slices = (0..self.services).flat_map(|number| {
            Family::BOTH.into_iter().zip(pod).map(move |(family, pod)| slice(number, family, pod))
        });
        let node = objects::node(&node, &["10.244.0.0/17", "fd00:10:244::/56"]);
        Objects { node, services, slices: slices.collect() }
    }

    /// The same for what is set up by hand.
    pub(super) fn served(&self, node: [IpAddr; 2], pod: [IpAddr; 2]) -> Vec<Served> {
        let mut served = Vec::new();
        for ((family, node), pod) in Family::BOTH.into_iter().zip(node).zip(pod) {
            let asked =
                |ip, port| Served { ip, port, endpoint: pod, endpoint_port: traffic::PORT, by_udp: true };
            served.extend([
                asked(cluster_ip(0, family), PORT),
                asked(load_balancer(family), PORT),
                asked(node, NODE_PORT),
            ]);
            served.extend((1..self.services).map(|number| Served {
                ip: cluster_ip(number, family),
                port: PORT,
                endpoint: elsewhere(number, family),
                endpoint_port: traffic::PORT,
                by_udp: false,
            }));
        }
        served
    }
}

/// The ClusterIP of a Service.
pub(super) fn cluster_ip(number: u32, family: Family) -> IpAddr {
    plus(family, Ipv4Addr::new(10, 96, 0, 1), Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 1), number)
}

/// The load balancer's address of the first.
pub(super) fn load_balancer(family: Family) -> IpAddr {
    let v6 = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1);
    plus(family, Ipv4Addr::new(198, 51, 100, 1), v6, 0)
}

/// The endpoint of a Service without traffic.
fn elsewhere(number: u32, family: Family) -> IpAddr {
    let v6 = Ipv6Addr::new(0xfd00, 0x10, 0x244, 0x80, 0, 0, 0, 1);
    plus(family, Ipv4Addr::new(10, 244, 128, 1), v6, number)
}

fn plus(family: Family, v4: Ipv4Addr, v6: Ipv6Addr, number: u32) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from_bits(v4.to_bits() + number).into(),
        Family::V6 => Ipv6Addr::from_bits(v6.to_bits() + u128::from(number)).into(),
    }
}

fn service(number: u32) -> Value {
    let port = |protocol: &str, node_port: Option<u16>| {
        json!({
            "name": protocol.to_lowercase(),
            "port": PORT,
            "protocol": protocol,
            "targetPort": traffic::PORT,
            "nodePort": node_port,
        })
    };
    let ips = Family::BOTH.map(|family| cluster_ip(number, family));
    if number != 0 {
        return objects::service_of("default", &name(number), &ips, &json!([port("TCP", None)]));
    }
    let ports = json!(["TCP", "UDP"].map(|protocol| port(protocol, Some(NODE_PORT))));
    let service = objects::service_of("default", &name(number), &ips, &ports);
    let service = with(service, "/spec", "type", json!("LoadBalancer"));
    // Has no effect without a flag.
    let service = with(service, "/metadata", "annotations", json!({"kube-ipvs.io/conntrack": "off"}));
    let service = with(service, "/spec", "externalTrafficPolicy", json!("Cluster"));
    let service = with(service, "/spec", "loadBalancerSourceRanges", json!(SOURCES));
    let ingress = Family::BOTH.map(|family| json!({"ip": load_balancer(family), "ipMode": "VIP"}));
    with(service, "/status", "loadBalancer", json!({"ingress": ingress}))
}

fn slice(number: u32, family: Family, pod: IpAddr) -> Value {
    let address_type = family.to_string();
    let (endpoint, protocols, node): (_, &[&str], _) = match number {
        0 => (pod, &["TCP", "UDP"], "node"),
        _ => (elsewhere(number, family), &["TCP"], "elsewhere"),
    };
    let port = |protocol: &&str| json!({"name": protocol.to_lowercase(), "port": traffic::PORT, "protocol": protocol});
    let endpoints = json!([{
        "addresses": [endpoint],
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "nodeName": node,
    }]);
    let ports = protocols.iter().map(port).collect::<Value>();
    let suffix = address_type.to_lowercase();
    objects::slice_of(("default", &name(number)), &suffix, &address_type, &endpoints, &ports)
}

fn name(number: u32) -> String {
    format!("service-{number}")
}
