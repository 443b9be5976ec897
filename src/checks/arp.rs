//! Addresses of load balancers, and external IPs, on a network that the node itself is in.
//!
//! A VIP is an address of every node. Where arp_ignore is 0 a node answers ARP for each of its addresses on
//! each of its interfaces, so neighbours that ask for such an address reach whichever node answers first, and
//! not the one that a controller such as MetalLB has chosen.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr},
};

use dummy_interface::{DEVICE, InterfaceAddress, interface_addresses};
use ipnet::Ipv4Net;
use service::{AddressKind, ObjectName, State, one_line};

use super::{BeforeStart, facts::Interfaces};
use crate::finding::{Finding, first_few};

/// A network of the node, on an interface of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Network {
    interface: String,
    range: Ipv4Net,
    /// Whether ARP is answered there for every address of the node.
    answers_all: bool,
}

/// How many addresses are named for each interface.
const NAMED: usize = 5;

/// The interfaces by which neighbours are answered for addresses of Services, where those are known.
pub(super) fn check(node: &mut BeforeStart<'_>) -> Vec<Finding> {
    let (Some(state), Some(settings)) = (node.state, node.settings) else { return Vec::new() };
    if settings.kernel_parameters.strict_arp {
        return Vec::new();
    }
    match networks() {
        Ok(networks) => answering(&networks, &external(state)),
        Err(error) => vec![Finding::problem("interfaces", one_line(&error))],
    }
}

/// The networks that the node is in, without those that it is alone in.
fn networks() -> Result<Vec<Network>, dummy_interface::Error> {
    let names = Interfaces::default().names();
    let network = |found: InterfaceAddress| {
        let IpAddr::V4(address) = found.address else { return None };
        let interface = names.get(&found.interface).filter(|name| name.as_str() != DEVICE)?.clone();
        let range = Ipv4Net::new(address, found.prefix).ok()?.trunc();
        let answers_all = answers_all(&interface);
        (!address.is_loopback() && found.prefix < 32).then_some(Network { interface, range, answers_all })
    };
    Ok(interface_addresses()?.into_iter().filter_map(network).collect())
}

/// Whether ARP is answered on an interface for every address of the node: the larger of the two parameters
/// counts (`IN_DEV_ARP_IGNORE` in include/linux/inetdevice.h).
fn answers_all(interface: &str) -> bool {
    let ignores = |whose: &str| {
        let value = fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{whose}/arp_ignore"));
        value.is_ok_and(|value| value.trim() != "0")
    };
    !(ignores("all") || ignores(interface))
}

/// The addresses of load balancers and the external IPs that become local to this node, each with a Service
/// that has it.
fn external(state: &State) -> BTreeMap<Ipv4Addr, ObjectName> {
    let external = state.virtual_servers().filter(|server| {
        matches!(server.kind, AddressKind::LoadBalancer | AddressKind::ExternalIp)
            && state.wants_vip(&server.address.ip)
    });
    let owned = external.filter_map(|server| match server.address.ip {
        IpAddr::V4(ip) => Some((ip, state.owner(&server.address)?.clone())),
        IpAddr::V6(_) => None,
    });
    owned.collect()
}

/// One finding for each interface by which neighbours are answered for these addresses.
fn answering(networks: &[Network], external: &BTreeMap<Ipv4Addr, ObjectName>) -> Vec<Finding> {
    let answering = networks.iter().filter(|network| network.answers_all);
    answering.filter_map(|network| finding(network, external)).collect()
}

fn finding(on: &Network, external: &BTreeMap<Ipv4Addr, ObjectName>) -> Option<Finding> {
    let there = external.iter().filter(|(ip, _)| on.range.contains(*ip));
    let named = first_few(there.map(|(ip, service)| format!("{ip} ({service})")), NAMED);
    let what = format!(
        "every node answers ARP on the network {} for {named}: neighbours may reach any node, not the one that a \
         controller such as MetalLB has chosen",
        on.range,
    );
    let remedy = "set ipvs.strictARP: true, or --ipvs-strict-arp without a configuration file";
    (!named.is_empty()).then(|| Finding::warning(&on.interface, what).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(answers_all: bool) -> Vec<Network> {
        [("eth0", "192.0.2.7/24"), ("eth1", "198.51.100.7/24")]
            .map(|(interface, address)| Network {
                interface: interface.to_owned(),
                range: address.parse::<Ipv4Net>().unwrap().trunc(),
                answers_all,
            })
            .to_vec()
    }

    fn external(count: u8) -> BTreeMap<Ipv4Addr, ObjectName> {
        (1..=count).map(|last| ([192, 0, 2, last].into(), ObjectName::new("default", "web"))).collect()
    }

    #[test]
    fn addresses_of_services_on_the_node_s_own_network_are_a_warning_there() {
        let found = answering(&networks(true), &external(2));
        let [finding] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(finding.subject, "eth0");
        let words = "ARP on the network 192.0.2.0/24 for 192.0.2.1 (default/web), 192.0.2.2 (default/web): ";
        assert!(finding.what.contains(words), "{}", finding.what);
        assert!(
            answering(&networks(true), &external(8))[0].what.contains("192.0.2.5 (default/web) and 3 more: ")
        );
    }

    #[test]
    fn where_arp_is_strict_or_no_service_has_such_an_address_nothing_is_reported() {
        assert_eq!(answering(&networks(false), &external(2)), []);
        assert_eq!(answering(&networks(true), &external(0)), []);
    }
}
