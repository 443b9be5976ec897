//! No VIP is the source of what goes elsewhere, however it was bound before.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

use dummy_interface::{DummyInterface, Operation, VipBinding};

use super::{
    BINDINGS, NODE_V4, NODE_V6, ROUTE, bind, bound, connect, ip, is_soon_reached, on_a_node, open, vips,
};

/// What no interface has a route to but one without an address, near enough to the VIPs to be mistaken for them.
const BEYOND: [&str; 2] = ["10.96.99.1", "fd00:10:96:99::1"];

/// The source that the kernel chooses for a datagram to an address, without sending one.
fn source_towards(ip: &str) -> IpAddr {
    let target: IpAddr = ip.parse().unwrap();
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).unwrap();
    socket.connect((target, 9)).unwrap();
    socket.local_addr().unwrap().ip()
}

/// A link without an address, like Calico's, by which [`BEYOND`] is reached.
fn unnumbered_link() {
    ip("link add bare0 type veth peer name bare1");
    ip("link set bare0 up");
    ip("link set bare1 up");
    ip("route add 10.96.99.0/24 dev bare0");
    ip("route add fd00:10:96:99::/64 dev bare0");
}

/// Moves the node's addresses to a device that comes after kube-ipvs0: the kernel asks the devices in order.
fn address_on_a_later_device() {
    ip("address flush dev node0");
    ip("link add later type dummy");
    ip("link set later up");
    ip(&format!("address add {NODE_V4}/32 dev later"));
    ip(&format!("address add {NODE_V6}/128 dev later nodad"));
}

/// VIPs as kube-proxy binds them.
fn bound_as_others_do() {
    ip("link add kube-ipvs0 type dummy");
    ip("address add 10.96.0.1/32 dev kube-ipvs0");
    ip("address add fd00:10:96::1/128 dev kube-ipvs0");
    assert!(vips().into_iter().all(is_soon_reached));
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn over_a_link_without_an_address_the_node_comes_from_its_own() {
    for binding in BINDINGS {
        on_a_node(move || {
            bind(&mut open(binding), &vips());
            unnumbered_link();
            assert_eq!(BEYOND.map(source_towards), [IpAddr::from(NODE_V4), NODE_V6.into()], "{binding:?}");
        });
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn an_address_of_a_device_that_is_younger_than_kube_ipvs0_is_the_source_too() {
    // A route of ours does not name an address that has moved to another device meanwhile.
    let unnamed = VipBinding::Route { source_v4: None, source_v6: None };
    for binding in [VipBinding::Address, unnamed] {
        on_a_node(move || {
            bind(&mut open(binding), &vips());
            unnumbered_link();
            address_on_a_later_device();
            assert_eq!(BEYOND.map(source_towards), [IpAddr::from(NODE_V4), NODE_V6.into()], "{binding:?}");
        });
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn a_deprecated_address_of_the_way_out_is_better_than_a_vip() {
    for binding in BINDINGS {
        on_a_node(move || {
            bind(&mut open(binding), &vips());
            ip("route add fd00:10:96:99::/64 dev node0");
            ip(&format!("address change {NODE_V6}/64 dev node0 preferred_lft 0"));
            for beyond in ["2001:db8::99", BEYOND[1]] {
                assert_eq!(source_towards(beyond), IpAddr::from(NODE_V6), "{binding:?}");
            }
        });
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn with_routes_a_deprecated_address_elsewhere_is_better_than_a_vip_too() {
    on_a_node(|| {
        bind(&mut open(ROUTE), &vips());
        unnumbered_link();
        ip(&format!("address change {NODE_V6}/64 dev node0 preferred_lft 0"));
        assert_eq!(source_towards(BEYOND[1]), IpAddr::from(NODE_V6));
    });
}

/// An open connection of the node to a listener behind a VIP, from that VIP.
struct Open(TcpStream, TcpStream);

impl Open {
    fn to(vip: IpAddr) -> Self {
        let listener = TcpListener::bind(SocketAddr::new(vip, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(near.local_addr().unwrap().ip(), vip);
        let (far, _) = listener.accept().unwrap();
        for end in [&near, &far] {
            end.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        }
        Self(near, far)
    }

    fn goes_on(&mut self) -> bool {
        let mut byte = [0];
        self.0.write_all(b"x").is_ok() && self.1.read_exact(&mut byte).is_ok()
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn addresses_bound_as_kube_proxy_does_are_made_right_and_connections_go_on() {
    on_a_node(|| {
        bound_as_others_do();
        unnumbered_link();
        address_on_a_later_device();
        assert_eq!(source_towards(BEYOND[0]), vips()[0], "the fault that is mended here");
        let mut opened = vips().map(Open::to);
        let mut interface = open(VipBinding::Address);
        let before = interface.observe().unwrap();
        assert_eq!(before.bound, BTreeSet::from(vips()));
        assert_eq!(before.stale_bindings, BTreeSet::from(vips()));
        bind(&mut interface, &vips());
        assert_eq!(interface.observe().unwrap(), bound(&vips()));
        assert_eq!(BEYOND.map(source_towards), [IpAddr::from(NODE_V4), NODE_V6.into()]);
        assert!(opened.iter_mut().all(Open::goes_on));
        assert_eq!(ip("route show table local proto 73") + &ip("-6 route show table local proto 73"), "");
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn kube_proxy_finds_its_addresses_where_ours_are() {
    on_a_node(|| {
        bind(&mut open(VipBinding::Address), &vips());
        assert!(vips().into_iter().all(is_soon_reached));
        let mut opened = vips().map(Open::to);
        // It adds each again, and takes EEXIST for done; then it removes those that it does not want.
        for vip in vips() {
            let refused = std::process::Command::new("ip")
                .args(["address", "add", &vip.to_string(), "dev", "kube-ipvs0"])
                .output()
                .unwrap();
            assert!(String::from_utf8_lossy(&refused.stderr).contains("already assigned"), "{refused:?}");
        }
        assert!(opened.iter_mut().all(Open::goes_on));
        ip("address delete 10.96.0.1/32 dev kube-ipvs0");
        ip("address delete fd00:10:96::1/128 dev kube-ipvs0");
        assert_eq!(open(VipBinding::Address).observe().unwrap(), bound(&[]));
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn lifetimes_and_scopes_that_others_change_are_stale_and_made_right() {
    let [v4, v6] = vips();
    for (change, changed) in [
        ("address change fd00:10:96::1/128 dev kube-ipvs0 preferred_lft forever", v6),
        ("address change fd00:10:96::1/128 dev kube-ipvs0 preferred_lft 100 valid_lft 200", v6),
        ("address change fd00:10:96::1/128 dev kube-ipvs0 preferred_lft 0 valid_lft 200", v6),
        ("address change 10.96.0.1/32 dev kube-ipvs0 preferred_lft 100 valid_lft 200", v4),
        ("address add 10.96.0.1/24 dev kube-ipvs0", v4),
    ] {
        on_a_node(move || {
            bind(&mut open(VipBinding::Address), &vips());
            assert!(vips().into_iter().all(is_soon_reached));
            ip(change);
            let mut interface = open(VipBinding::Address);
            assert_eq!(interface.observe().unwrap().stale_bindings, BTreeSet::from([changed]), "{change}");
            bind(&mut interface, &[changed]);
            assert_eq!(interface.observe().unwrap(), bound(&vips()), "{change}");
            assert!(vips().into_iter().all(is_soon_reached));
        });
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn a_vip_whose_local_route_was_removed_is_not_bound_and_is_bound_again() {
    for binding in BINDINGS {
        on_a_node(move || {
            bind(&mut open(binding), &vips());
            assert!(vips().into_iter().all(is_soon_reached));
            for vip in vips() {
                ip(&format!("route delete local {vip} table local"));
            }
            let mut interface = open(binding);
            let seen = interface.observe().unwrap();
            let stale = if binding == VipBinding::Address { vips().to_vec() } else { Vec::new() };
            let stale = BTreeSet::from_iter(stale);
            assert_eq!((seen.bound, seen.stale_bindings), (BTreeSet::new(), stale), "{binding:?}");
            bind(&mut interface, &vips());
            assert!(vips().into_iter().all(is_soon_reached), "{binding:?}");
            assert_eq!(open(binding).observe().unwrap(), bound(&vips()), "{binding:?}");
            // And one that is not wanted goes.
            ip(&format!("route delete local {} table local", vips()[0]));
            let mut interface = open(binding);
            interface.observe().unwrap();
            assert_eq!(interface.apply(&vips().map(Operation::Unbind)).unwrap(), []);
            assert_eq!(open(binding).observe().unwrap(), bound(&[]), "{binding:?}");
            assert!(vips().into_iter().all(|vip| connect(vip).is_err()));
        });
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn what_was_just_bound_is_not_taken_for_an_address_without_its_route() {
    on_a_node(|| {
        let many: Vec<IpAddr> =
            (1..2000u16).map(|n| std::net::Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, n).into()).collect();
        let mut interface = open(VipBinding::Address);
        bind(&mut interface, &many);
        assert_eq!(interface.observe().unwrap(), bound(&many));
    });
}
