//! VIPs are bound and unbound, as addresses and as routes.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use dummy_interface::{DummyInterface, Observed, Operation, VipBinding};
use netlink::{Errno, FailedRequest, KernelError};

use super::{
    BINDINGS, NODE_V4, NODE_V6, ROUTE, bind, bound, connect, ip, is_soon_reached, on_a_node, open, vips,
};

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn a_vip_is_reached_while_it_is_bound() {
    for binding in BINDINGS {
        on_a_node(move || {
            let mut interface = open(binding);
            for _ in 0..2 {
                bind(&mut interface, &vips());
                assert_eq!(interface.observe().unwrap(), bound(&vips()));
            }
            for vip in vips() {
                assert!(is_soon_reached(vip), "{vip} by {binding:?}");
            }
            for _ in 0..2 {
                assert_eq!(interface.apply(&vips().map(Operation::Unbind)).unwrap(), []);
                assert_eq!(interface.observe().unwrap(), bound(&[]));
            }
            for vip in vips() {
                assert!(connect(vip).is_err(), "{vip} by {binding:?}");
            }
        });
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn the_node_connects_from_the_vip_itself_or_from_the_routes_source() {
    let [v4, _] = vips();
    let unnamed = VipBinding::Route { source_v4: None, source_v6: None };
    // Left to itself, IPv4 takes the destination and IPv6 chooses among the node's addresses.
    let left_to_itself = [v4, NODE_V6.into()];
    let named = [NODE_V4.into(), NODE_V6.into()];
    for (binding, sources) in [(VipBinding::Address, vips()), (unnamed, left_to_itself), (ROUTE, named)] {
        on_a_node(move || {
            bind(&mut open(binding), &vips());
            assert!(vips().into_iter().all(is_soon_reached));
            assert_eq!(vips().map(|vip| connect(vip).unwrap()), sources, "{binding:?}");
        });
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn foreign_addresses_are_seen_and_removed_whatever_their_prefix() {
    for binding in BINDINGS {
        on_a_node(move || {
            let mut interface = open(binding);
            bind(&mut interface, &[]);
            ip("address add 10.0.0.9/24 dev kube-ipvs0");
            ip("address add fd00::9/64 dev kube-ipvs0");
            ip("link set kube-ipvs0 up"); // a link-local address appears, which is not foreign
            let foreign = BTreeSet::from(["10.0.0.9".parse().unwrap(), "fd00::9".parse().unwrap()]);
            let observed = interface.observe().unwrap();
            let seen = observed.stale_bindings;
            assert_eq!(seen, foreign);
            let changes: Vec<_> = seen.into_iter().map(Operation::Unbind).collect();
            assert_eq!(interface.apply(&changes).unwrap(), []);
            assert_eq!(interface.observe().unwrap(), bound(&[]));
        });
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn two_thousand_vips_are_bound_in_one_call() {
    let many: Vec<IpAddr> = (0..1000u16)
        .flat_map(|n| {
            let [high, low] = n.to_be_bytes();
            let v6 = Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, n + 1);
            [Ipv4Addr::new(10, 96, high, low).into(), v6.into()]
        })
        .collect();
    for binding in BINDINGS {
        let many = many.clone();
        on_a_node(move || {
            let mut interface = open(binding);
            bind(&mut interface, &many);
            assert_eq!(interface.observe().unwrap(), bound(&many));
            let unbind: Vec<_> = many.iter().copied().map(Operation::Unbind).collect();
            assert_eq!(interface.apply(&unbind).unwrap(), []);
            assert_eq!(interface.observe().unwrap(), bound(&[]));
        });
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn a_change_of_binding_moves_every_vip_and_leaves_nothing_behind() {
    on_a_node(|| {
        ip("address add 192.0.2.2/24 dev node0");
        let other_source =
            VipBinding::Route { source_v4: Some("192.0.2.2".parse().unwrap()), source_v6: None };
        let state = |observed: Observed| (observed.device, observed.bound, observed.stale_bindings);
        bind(&mut open(VipBinding::Address), &vips());
        for binding in [ROUTE, other_source, VipBinding::Address] {
            let mut interface = open(binding);
            let before = interface.observe().unwrap();
            assert_eq!(before.stale_bindings, BTreeSet::from(vips()), "{binding:?}");
            bind(&mut interface, &vips());
            assert_eq!(state(interface.observe().unwrap()), state(bound(&vips())), "{binding:?}");
            for vip in vips() {
                // The kernel adds the local route of an IPv6 address in a work queue (`addrconf_dad_work`).
                assert!(is_soon_reached(vip), "{vip} by {binding:?}");
            }
        }
        // A VIP that is not wanted any more when the binding changes.
        let mut interface = open(ROUTE);
        interface.observe().unwrap();
        assert_eq!(interface.apply(&vips().map(Operation::Unbind)).unwrap(), []);
        assert_eq!(state(interface.observe().unwrap()), state(bound(&[])));
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn a_vip_whose_new_binding_is_refused_keeps_the_old_one() {
    on_a_node(|| {
        bind(&mut open(VipBinding::Address), &vips());
        let [v4, v6] = vips();
        let absent =
            VipBinding::Route { source_v4: Some("203.0.113.5".parse().unwrap()), source_v6: Some(NODE_V6) };
        let mut interface = open(absent);
        interface.observe().unwrap();
        let failed = interface.apply(&[Operation::Bind(v6), Operation::Bind(v4)]).unwrap();
        let error = KernelError { errno: Errno::EINVAL, message: Some("Invalid prefsrc address".into()) };
        assert_eq!(failed, [FailedRequest { index: 1, error }]);
        assert_eq!(connect(v4).unwrap(), v4);
        assert_eq!(connect(v6).unwrap(), IpAddr::from(NODE_V6));
        let left = interface.observe().unwrap();
        assert_eq!((left.bound, left.stale_bindings), (BTreeSet::from([v6]), BTreeSet::from([v4])));
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn a_bad_vip_fails_at_its_position_and_stops_no_other() {
    on_a_node(|| {
        let mut interface = open(VipBinding::Address);
        let [v4, v6] = vips();
        let multicast = "ff02::1".parse().unwrap();
        let changes =
            [Operation::Bind(v4), Operation::EnsureDevice, Operation::Bind(multicast), Operation::Bind(v6)];
        let failed = interface.apply(&changes).unwrap();
        assert_eq!(failed.iter().map(|failed| failed.index).collect::<Vec<_>>(), [2]);
        assert_eq!(interface.observe().unwrap(), bound(&vips()));
    });
}
