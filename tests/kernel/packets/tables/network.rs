//! The hosts of the tables, and the addresses of the Services.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

use anyhow::ensure;
use ipvs::Family;
use serde_json::{Value, json};
use testkit::{
    daemon::eventually,
    lab::{Host, Lab},
};

use super::{
    parse::{HOSTS, NODE_IP},
    table::{Destination, Service, Way},
};
use crate::support::cluster::{self, Cluster, NO_PERIOD, POD_PORT, elsewhere, here, host_network};

/// Where programs of the node itself listen, at every address: one that administers it, one that tells load
/// balancers of its health, and a pod with the node's network.
const PORTS_OF_THE_NODE: [u16; 3] = [22, 32_100, POD_PORT];

pub(super) struct Network {
    cluster: Cluster,
    /// A client in the range that the office has.
    office: Host,
    /// The node of pod-3.
    other_node: Host,
    services: Vec<Named>,
}

/// A Service, and where it is reached.
struct Named {
    name: String,
    /// It ends its own addresses.
    number: usize,
    /// The host that has its external IP.
    external_ip: Option<String>,
    /// The Service whose ClusterIP its external IP is.
    external_ip_of: Option<String>,
    /// The number of the Service whose load balancer's address it has.
    load_balancer: usize,
}

impl Network {
    /// Makes the network and writes the manifests. There is no daemon yet.
    pub(super) fn new(services: &[Service]) -> Self {
        let mut cluster = Cluster::without_daemon(2);
        let lab = &mut cluster.lab;
        let office = lab.neighbour("eth1", "office", [192, 168, 60, 2], "fd00:60::2").unwrap();
        let other_node = lab.add_pod_on_another_node("eth2", "node-2", POD_PORT).unwrap();
        // As in life; and --vip-binding=route finds the node's own address by it.
        lab.node.ip("route add default via 192.168.50.2\nroute add ::/0 via fd00:50::2").unwrap();
        for port in PORTS_OF_THE_NODE {
            lab.node.serve(port).unwrap();
        }
        let mut network = Self { cluster, office, other_node, services: Vec::new() };
        // No Service has this name.
        network.cluster.write_manifest("Node", &network.node("node"));
        network.cluster.write_manifest("Node-2", &network.node("node-2"));
        for service in services {
            network.write(service);
        }
        network
    }

    /// Starts the daemon anew and waits until it finds nothing to do any more.
    pub(super) fn restart(&mut self, arguments: &[&str]) {
        self.cluster.restart(&[&[NO_PERIOD], arguments].concat());
        eventually("the kernel is as the daemon wants it", || {
            let answer = self.cluster.daemon().ask(&self.cluster.lab.node, "resync")?;
            ensure!(answer.starts_with("resynced: 0 operations"), "{answer}");
            Ok(())
        })
        .unwrap();
        let how = arguments.iter().find_map(|argument| argument.strip_prefix("--host-firewall="));
        eventually("each closed chain of the host accepts what it shall", || {
            let rules = self.cluster.lab.node.run("nft", &["list", "ruleset"])?;
            let ours = rules.matches("comment \"kube-ipvs: what it forwards\"").count();
            ensure!(ours == rules_wanted(how.unwrap_or("as-kube-proxy"), &rules), "{rules}");
            Ok(())
        })
        .unwrap();
    }

    /// The kernel serves what it has without a daemon too: makes sure that there is one.
    pub(super) fn daemon_still_runs(&self) {
        self.cluster.daemon().ask(&self.cluster.lab.node, "status").unwrap();
    }

    /// Loads another program's rules on the node.
    pub(super) fn load(&self, program: &str, arguments: &[&str], file: &Path) {
        let file = file.to_string_lossy();
        self.cluster.lab.node.run(program, &[arguments, &[&*file]].concat()).unwrap();
    }

    /// Makes a host put what it sends to a Service into packets for a pod, which have the address of one like it.
    pub(super) fn tunnel(&self, from: &str, like: &str, pod: &str, service: &Destination) {
        for (family, kind) in [(Family::V4, "ipip"), (Family::V6, "ip6tnl")] {
            let (own, local) = (self.own_address(from, family), self.own_address(like, family));
            let (remote, address) = (self.own_address(pod, family), self.address(service, family));
            let name = if like == from { format!("{pod}-{kind}") } else { format!("as-{kind}") };
            if like != from {
                let nodad = if family == Family::V6 { "nodad" } else { "" };
                drop(self.host(from).ip(&format!("addr add {local} dev lo {nodad}")));
            }
            // There is one for all Services that are sent to the same pod.
            drop(self.host(from).ip(&format!("link add {name} type {kind} local {local} remote {remote}")));
            let route = format!("link set {name} up\nroute replace {address} dev {name} src {own}");
            self.host(from).ip(&route).unwrap();
        }
    }

    /// The Node of a host.
    fn node(&self, name: &str) -> Value {
        let node = self.host(name);
        let internal = |ip: IpAddr| json!({ "type": "InternalIP", "address": ip });
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": { "name": name },
            "spec": { "podCIDRs": if name == "node" { ["10.244.0.0/17", "fd00:10:244::/56"] } else {
                ["10.244.128.0/17", "fd00:10:244:100::/56"]
            } },
            "status": { "addresses": [internal(node.ipv4.into()), internal(node.ipv6.into())] },
        })
    }

    fn write(&mut self, service: &Service) {
        let number = self.services.len() + 10;
        let same_balancer = service.load_balancer_of.as_ref().map(|name| self.named(name).load_balancer);
        self.services.push(Named {
            name: service.name.clone(),
            number,
            external_ip: service.external_ip.clone(),
            external_ip_of: service.external_ip_of.clone(),
            load_balancer: same_balancer.unwrap_or(number),
        });

        let at = |way| {
            let destination = Destination::Service(service.name.clone(), way);
            Family::BOTH.map(|family| self.address(&destination, family))
        };
        let protocols = Lab::protocols().into_iter().filter(|protocol| service.protocols.contains(protocol));
        let ports = protocols.map(|protocol| {
            let name = protocol.to_string().to_lowercase();
            json!({ "name": name, "protocol": protocol, "port": service.port, "nodePort": service.node_port })
        });
        let spec = json!({
            "type": "LoadBalancer",
            "clusterIPs": at(Way::ClusterIp),
            "externalIPs": at(Way::ExternalIp),
            "ports": ports.collect::<Value>(),
            "internalTrafficPolicy": service.internal_policy,
            "externalTrafficPolicy": service.external_policy,
            "loadBalancerSourceRanges": (!service.sources.is_empty()).then_some(&service.sources),
            "healthCheckNodePort": service.health_check,
        });
        let ingress = at(Way::LoadBalancer).map(|ip| json!({ "ip": ip }));
        let endpoints = service.endpoints.iter().map(|name| match name.as_str() {
            "pod-1" => here(1),
            "pod-2" => here(2),
            "pod-3" => elsewhere(3),
            _ => host_network(),
        });
        self.cluster.write(
            &cluster::Service::new(&service.name, &spec)
                .patch(&json!({ "status": { "loadBalancer": { "ingress": ingress } } }))
                .endpoints(endpoints),
        );
    }

    fn named(&self, name: &str) -> &Named {
        self.services.iter().find(|service| service.name == name).unwrap()
    }

    /// Where a destination is.
    pub(super) fn address(&self, to: &Destination, family: Family) -> IpAddr {
        let (service, way) = match to {
            Destination::Host(name) => return self.own_address(name, family),
            Destination::Service(name, way) => (self.named(name), way),
        };
        if let (Way::ExternalIp, Some(host)) = (way, &service.external_ip) {
            return self.own_address(host, family);
        }
        if let (Way::ExternalIp, Some(other)) = (way, &service.external_ip_of) {
            return self.address(&Destination::Service(other.clone(), Way::ClusterIp), family);
        }
        let text = match (way, family) {
            (Way::ClusterIp, Family::V4) => format!("10.96.0.{}", service.number),
            (Way::ClusterIp, Family::V6) => format!("fd00:96::{}", service.number),
            (Way::ExternalIp, Family::V4) => format!("203.0.113.{}", service.number),
            (Way::ExternalIp, Family::V6) => format!("2001:db8::{}", service.number),
            (Way::LoadBalancer, Family::V4) => format!("198.51.100.{}", service.load_balancer),
            (Way::LoadBalancer, Family::V6) => format!("2001:db8:1::{}", service.load_balancer),
            (Way::NodePort, _) => return self.own_address("node", family),
        };
        text.parse().unwrap()
    }

    pub(super) fn host(&self, name: &str) -> &Host {
        let lab = &self.cluster.lab;
        match name {
            "client" => &lab.client,
            "office" => &self.office,
            "node-2" => &self.other_node,
            "pod-1" => &lab.pods[0],
            "pod-2" => &lab.pods[1],
            "pod-3" => &lab.pods[2],
            _ => &lab.node,
        }
    }

    fn own_address(&self, name: &str, family: Family) -> IpAddr {
        match (name, family) {
            ("loopback", Family::V4) => Ipv4Addr::LOCALHOST.into(),
            ("loopback", Family::V6) => Ipv6Addr::LOCALHOST.into(),
            (_, Family::V4) => self.host(name).ipv4.into(),
            (_, Family::V6) => self.host(name).ipv6.into(),
        }
    }

    /// The node's address on its link towards a host: what that host sees of a flow that is masqueraded.
    fn node_towards(&self, host: &str, family: Family) -> IpAddr {
        match host {
            "node" => self.own_address(host, family),
            // pod-3 is linked to its own node.
            "pod-3" => self.other_node.gateway(self.own_address(host, family)),
            _ => self.host(host).gateway(self.own_address(host, family)),
        }
    }

    /// The table's word for an address that `server` saw.
    pub(super) fn word(&self, seen: IpAddr, server: &str) -> String {
        let family = Family::from(seen);
        if seen == self.node_towards(server, family) {
            return "node".to_owned();
        }
        let name = HOSTS.into_iter().find(|name| self.own_address(name, family) == seen);
        match name {
            None => seen.to_string(),
            Some("node") => NODE_IP.to_owned(),
            Some(name) => name.to_owned(),
        }
    }
}

/// How many rules of ours `--host-firewall` puts into the chains that drop by their policy, as nft lists them.
fn rules_wanted(how: &str, rule_set: &str) -> usize {
    let (mut table, mut chain, mut wanted) = ("", "", 0);
    for line in rule_set.lines() {
        let name = |of: &str| line.trim().strip_prefix(of).and_then(|rest| rest.strip_suffix(" {"));
        table = name("table ").unwrap_or(table);
        chain = name("chain ").unwrap_or(chain);
        if line.ends_with("policy drop;") {
            wanted += match (how, table, chain) {
                ("accept", ..) | ("as-kube-proxy", "ip filter" | "ip6 filter", "INPUT") => 1,
                ("as-kube-proxy", "ip filter" | "ip6 filter", "FORWARD") => 2,
                _ => 0,
            };
        }
    }
    wanted
}
