//! Our tables on the real kernel, cross-checked with the nft program.

mod counters;
mod elements;
mod installed;
mod others;
mod repair;
mod scale;
mod source_ranges;

use std::collections::BTreeSet;

use ipvs::{Family, Protocol, RealServerAddress, ServiceAddress};
use netfilter::{
    AllowedSource, Element, HairpinFlow, HealthCheckPort, HostFirewall, KernelNetfilter, LocalTraffic,
    Netfilter, Observed, Operation, PodPort, Policy,
};

use crate::support::host::in_fresh_namespace;

const INSTALL: [Operation; 2] = [Operation::InstallTable(Family::V4), Operation::InstallTable(Family::V6)];

fn policy(local_traffic: LocalTraffic) -> Policy {
    Policy { host_firewall: HostFirewall::Warn, ..Policy::new(local_traffic) }
}

fn by_source() -> Policy {
    policy(LocalTraffic::Source {
        ipv4: Some("10.244.0.0/16".parse().unwrap()),
        ipv6: Some("fd00:10:244::/56".parse().unwrap()),
    })
}

fn cluster_ip(ip: &str, port: u16) -> Element {
    Element::ClusterIp(ServiceAddress { protocol: Protocol::Tcp, ip: ip.parse().unwrap(), port })
}

fn external(ip: &str, port: u16) -> Element {
    Element::External(ServiceAddress { protocol: Protocol::Sctp, ip: ip.parse().unwrap(), port })
}

fn hairpin(ip: &str, port: u16) -> Element {
    Element::Hairpin(HairpinFlow {
        protocol: Protocol::Udp,
        pod: RealServerAddress { ip: ip.parse().unwrap(), port },
    })
}

fn untracked_endpoint(ip: &str, port: u16) -> Element {
    let pod = RealServerAddress { ip: ip.parse().unwrap(), port };
    Element::UntrackedEndpoint(PodPort { protocol: Protocol::Udp, pod })
}

/// A load balancer's address.
fn restricted(ip: &str) -> ServiceAddress {
    ServiceAddress { protocol: Protocol::Udp, ip: ip.parse().unwrap(), port: 443 }
}

fn allowed(to: &str, first: &str, last: &str) -> Element {
    let [first, last] = [first, last].map(|ip| ip.parse().unwrap());
    Element::AllowedSource(AllowedSource { to: restricted(to), first, last })
}

/// One of each kind in each family.
fn some_elements() -> Vec<Element> {
    vec![
        cluster_ip("10.96.0.1", 443),
        cluster_ip("fd00::1", 443),
        external("192.0.2.1", 30080),
        external("2001:db8::1", 30080),
        Element::ExternalLocal(restricted("192.0.2.9")),
        Element::ExternalLocal(restricted("2001:db8::9")),
        Element::LocalClientsOnly(restricted("192.0.2.9")),
        Element::LocalClientsOnly(restricted("2001:db8::9")),
        hairpin("10.244.0.7", 53),
        hairpin("fd00:10:244::7", 53),
        Element::Untracked(restricted("192.0.2.9")),
        Element::Untracked(restricted("2001:db8::9")),
        untracked_endpoint("10.244.0.7", 53),
        untracked_endpoint("fd00:10:244::7", 53),
        Element::TrackedClient("10.244.0.7".parse().unwrap()),
        Element::TrackedClient("fd00:10:244::7".parse().unwrap()),
        Element::Vip("192.0.2.9".parse().unwrap()),
        Element::Vip("2001:db8::9".parse().unwrap()),
        Element::Restricted(restricted("192.0.2.9")),
        Element::Restricted(restricted("2001:db8::9")),
        allowed("192.0.2.9", "10.0.0.0", "10.255.255.255"),
        allowed("192.0.2.9", "0.0.0.1", "9.255.255.254"),
        allowed("192.0.2.9", "192.0.2.9", "192.0.2.9"),
        allowed("2001:db8::9", "2001:db8:2::", "2001:db8:2:ffff:ffff:ffff:ffff:ffff"),
        Element::HealthCheckPort(HealthCheckPort { family: Family::V4, port: 30500 }),
        Element::HealthCheckPort(HealthCheckPort { family: Family::V6, port: 30500 }),
    ]
}

fn add(elements: &[Element]) -> Vec<Operation> {
    elements.iter().copied().map(Operation::AddElement).collect()
}

fn delete(elements: &[Element]) -> Vec<Operation> {
    elements.iter().copied().map(Operation::DeleteElement).collect()
}

fn both(elements: &[Element]) -> Observed {
    Observed {
        installed: BTreeSet::from(Family::BOTH),
        prepared: BTreeSet::new(),
        direct_return: BTreeSet::new(),
        elements: elements.iter().copied().collect(),
        generation: None,
    }
}

/// Tables with some elements, in a fresh namespace.
fn with_installed(test: impl FnOnce(&mut KernelNetfilter) + Send) {
    in_fresh_namespace(|| {
        let mut netfilter = KernelNetfilter::open(&by_source()).unwrap();
        netfilter.apply(&[&INSTALL[..], &add(&some_elements())].concat()).unwrap();
        test(&mut netfilter);
    });
}
