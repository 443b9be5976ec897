//! Addresses of load balancers, and external IPs, on a network that the node itself is in.
//!
//! A VIP is an address of every node. Where arp_ignore is 0 a node answers ARP for each of its addresses on each of its
//! interfaces, so neighbours that ask for such an address reach whichever node answers first, and not the one that a
//! controller such as MetalLB has chosen.

use std::{collections::BTreeMap, net::Ipv4Addr};

use ipnet::Ipv4Net;
use service::ObjectName;

use super::Finding;

/// A network of the node, on an interface of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Network {
    pub(super) interface: String,
    pub(super) range: Ipv4Net,
    /// Whether ARP is answered there for every address of the node.
    pub(super) answers_all: bool,
}

/// How many addresses are named for each interface.
const NAMED: usize = 5;

/// One finding for each interface by which neighbours are answered for addresses of Services.
pub(super) fn check(networks: &[Network], external: &BTreeMap<Ipv4Addr, ObjectName>) -> Vec<Finding> {
    let answering = networks.iter().filter(|network| network.answers_all);
    answering.filter_map(|network| finding(network, external)).collect()
}

fn finding(on: &Network, external: &BTreeMap<Ipv4Addr, ObjectName>) -> Option<Finding> {
    let there: Vec<_> = external.iter().filter(|(ip, _)| on.range.contains(*ip)).collect();
    let named: Vec<_> = there.iter().take(NAMED).map(|(ip, service)| format!("{ip} ({service})")).collect();
    let more = match there.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!there.is_empty()).then(|| {
        Finding::warning(
            &on.interface,
            format!(
                "every node answers ARP on the network {} for {}{more}: neighbours may reach any node, whichever a \
                 controller such as MetalLB has chosen",
                on.range,
                named.join(", ")
            ),
        )
        .remedy("ipvs.strictARP: true, or --ipvs-strict-arp where there is no file")
    })
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
        let found = check(&networks(true), &external(2));
        let [finding] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(finding.subject, "eth0");
        let words = "ARP on the network 192.0.2.0/24 for 192.0.2.1 (default/web), 192.0.2.2 (default/web): ";
        assert!(finding.what.contains(words), "{}", finding.what);
        assert!(
            check(&networks(true), &external(8))[0].what.contains("192.0.2.5 (default/web) and 3 more: ")
        );
    }

    #[test]
    fn where_arp_is_strict_or_nobody_has_such_an_address_there_is_nothing_to_say() {
        assert_eq!(check(&networks(false), &external(2)), []);
        assert_eq!(check(&networks(true), &external(0)), []);
    }
}
