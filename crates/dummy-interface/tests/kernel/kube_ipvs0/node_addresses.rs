//! The node's own addresses, and VIPs among them.

use std::{collections::BTreeSet, net::IpAddr};

use dummy_interface::{DummyInterface, Operation};

use super::{
    BINDINGS, NODE_V4, NODE_V6, bind, bound, connect, ip, is_soon_reached, on_a_node, open, untouched, vips,
};

/// The routes that make an address local, the kernel's own and ours.
fn local_routes(address: IpAddr) -> Vec<String> {
    let family = if address.is_ipv4() { "-4" } else { "-6" };
    let shown = ip(&format!("{family} route show table local type local {address}"));
    shown.lines().map(str::to_owned).collect()
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn a_vip_that_is_also_a_nodes_address_is_unbound_and_stays_local_to_the_node() {
    for binding in BINDINGS {
        on_a_node(move || {
            let both = [NODE_V4.into(), NODE_V6.into()];
            let before = both.map(local_routes);
            let mut interface = open(binding);
            bind(&mut interface, &both);
            assert_eq!(interface.observe().unwrap(), bound(&both), "they are the node's own all the time");
            assert_ne!(both.map(local_routes), before, "ours stand beside the kernel's own");
            assert_eq!(interface.apply(&both.map(Operation::Unbind)).unwrap(), []);
            assert_eq!(interface.observe().unwrap(), bound(&[]));
            assert_eq!(both.map(local_routes), before, "{binding:?}");
            for address in both {
                assert_eq!(connect(address).unwrap(), address, "{binding:?}");
            }
        });
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn a_vip_stays_local_when_another_interface_that_had_it_loses_it() {
    for binding in BINDINGS {
        on_a_node(move || {
            ip("address add 198.51.100.7/24 dev node0");
            ip("address add 2001:db8:7::7/64 dev node0 nodad");
            let both = ["198.51.100.7".parse().unwrap(), "2001:db8:7::7".parse().unwrap()];
            let mut interface = open(binding);
            bind(&mut interface, &both);
            ip("address delete 198.51.100.7/24 dev node0");
            ip("address delete 2001:db8:7::7/64 dev node0");
            assert_eq!(interface.observe().unwrap(), bound(&both), "{binding:?}");
            assert!(both.into_iter().all(is_soon_reached), "{binding:?}");
        });
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn the_nodes_own_addresses_are_those_of_other_interfaces() {
    for binding in BINDINGS {
        on_a_node(move || {
            ip("address add 169.254.20.10/32 dev lo");
            ip("address add 127.0.0.7/8 dev lo");
            ip("address add fe80::7/64 dev node0 nodad");
            // An interface that is down has its addresses all the same.
            ip("link add down0 type dummy");
            ip("address add 203.0.113.1/24 dev down0");
            let mut interface = open(binding);
            bind(&mut interface, &vips());
            ip("address add 10.0.0.9/32 dev kube-ipvs0");
            let own = ["169.254.20.10", "203.0.113.1"].map(|text| text.parse().unwrap());
            let expected: BTreeSet<IpAddr> = untouched().node_addresses.into_iter().chain(own).collect();
            assert_eq!(interface.observe().unwrap().node_addresses, expected);
        });
    }
}
