//! kube-ipvs0 and the VIPs on a real kernel, each test in a network namespace of its own.

#![expect(clippy::unwrap_used, reason = "a test's functions fail as the test itself does")]

use std::{
    collections::BTreeMap,
    collections::BTreeSet,
    ffi::OsStr,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::ffi::OsStrExt,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use dummy_interface::{
    Changed, DummyInterface, Error, KernelDummyInterface, Monitor, Observed, Operation, VipBinding,
};
use netlink::{Errno, FailedRequest, KernelError};
use nix::sched::{CloneFlags, unshare};

const NODE_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const NODE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const ROUTE: VipBinding = VipBinding::Route { source_v4: Some(NODE_V4), source_v6: Some(NODE_V6) };
const BINDINGS: [VipBinding; 2] = [VipBinding::Address, ROUTE];

/// A node of its own: `lo`, and node0 with an address of each family.
fn on_a_node(test: impl FnOnce() + Send + 'static) {
    let node = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        ip("link set lo up");
        ip("link add node0 type veth peer name wire");
        ip("link set wire up");
        ip("link set node0 up");
        ip(&format!("address add {NODE_V4}/24 dev node0"));
        ip(&format!("address add {NODE_V6}/64 dev node0 nodad"));
        test();
    });
    if let Err(panic) = node.join() {
        std::panic::resume_unwind(panic);
    }
}

fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn vips() -> [IpAddr; 2] {
    ["10.96.0.1".parse().unwrap(), "fd00:10:96::1".parse().unwrap()]
}

fn links(binding: VipBinding) -> KernelDummyInterface {
    KernelDummyInterface::open(binding).unwrap()
}

/// Creates the device and binds.
fn bind(links: &mut KernelDummyInterface, vips: &[IpAddr]) {
    let mut changes = vec![Operation::EnsureDevice];
    changes.extend(vips.iter().copied().map(Operation::Bind));
    assert_eq!(links.apply(&changes).unwrap(), []);
}

/// The node before anything of ours is there.
fn untouched() -> Observed {
    Observed { node_addresses: BTreeSet::from([NODE_V4.into(), NODE_V6.into()]), ..Observed::default() }
}

/// The device, with these VIPs and no other.
fn bound(vips: &[IpAddr]) -> Observed {
    Observed { device: true, bound: vips.iter().copied().collect(), ..untouched() }
}

/// Connects from the node to a listener behind the VIP and tells the source that the node took.
fn connect(vip: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if vip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let listener = TcpListener::bind((any, 0))?;
    let target = SocketAddr::new(vip, listener.local_addr()?.port());
    let client = TcpStream::connect_timeout(&target, Duration::from_secs(2))?;
    let (_, source) = listener.accept()?;
    assert_eq!(source, client.local_addr()?);
    Ok(source.ip())
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn the_device_is_created_down_and_noarp() {
    on_a_node(|| {
        let mut links = links(VipBinding::Address);
        assert_eq!(links.observe().unwrap(), untouched());
        for _ in 0..2 {
            assert_eq!(links.apply(&[Operation::EnsureDevice]).unwrap(), []);
            assert_eq!(links.observe().unwrap(), bound(&[]));
        }
        let shown = ip("-details link show dev kube-ipvs0");
        assert!(shown.contains("<BROADCAST,NOARP>") && shown.contains("state DOWN"), "{shown}");
        assert!(shown.contains("dummy"), "{shown}");
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn names_that_are_no_text_keep_nothing_from_being_read() {
    /// A command of ip in which `?` stands for a byte that no UTF-8 has.
    fn odd(arguments: &str) {
        let bytes: Vec<u8> = arguments.bytes().map(|byte| if byte == b'?' { 0xff } else { byte }).collect();
        let words = bytes.split(|byte| *byte == b' ').map(OsStr::from_bytes);
        assert!(Command::new("ip").args(words).status().unwrap().success(), "ip {arguments}");
    }
    for binding in BINDINGS {
        on_a_node(move || {
            let mut links = links(binding);
            bind(&mut links, &vips());
            odd("link add odd? type dummy");
            odd("link set kube-ipvs0 alias ?");
            odd("address add 198.51.100.1/24 dev odd?");
            odd("address add 198.51.100.2/24 dev node0 label node0:?");
            let mut expected = bound(&vips());
            expected.node_addresses.extend([1, 2].map(|last| IpAddr::from([198, 51, 100, last])));
            assert_eq!(links.observe().unwrap(), expected);
            assert_eq!(links.apply(&[Operation::EnsureDevice]).unwrap(), []);
        });
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn a_deleted_device_is_created_again_with_its_vips() {
    for binding in BINDINGS {
        on_a_node(move || {
            let mut links = links(binding);
            bind(&mut links, &vips());
            ip("link delete kube-ipvs0");
            assert!(!links.observe().unwrap().device);
            bind(&mut links, &vips());
            assert_eq!(links.observe().unwrap(), bound(&vips()));
        });
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn a_device_that_does_arp_is_made_noarp() {
    on_a_node(|| {
        ip("link add kube-ipvs0 type dummy");
        ip("link set kube-ipvs0 arp on");
        let mut links = links(VipBinding::Address);
        assert!(!links.observe().unwrap().device);
        assert_eq!(links.apply(&[Operation::EnsureDevice]).unwrap(), []);
        assert!(links.observe().unwrap().device);
        assert!(ip("link show dev kube-ipvs0").contains("NOARP"));
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn a_device_of_another_kind_is_left_alone() {
    on_a_node(|| {
        ip("link add kube-ipvs0 type veth peer name other");
        ip("address add 10.0.0.9/32 dev kube-ipvs0");
        let mut links = links(VipBinding::Address);
        assert_eq!(links.observe().unwrap(), untouched());
        match links.apply(&[Operation::EnsureDevice, Operation::Unbind("10.0.0.9".parse().unwrap())]) {
            Err(Error::NotADummy { kind }) => assert_eq!(kind, "veth"),
            other => panic!("{other:?}"),
        }
        assert!(ip("address show dev kube-ipvs0").contains("10.0.0.9/32"));
    });
}

/// The kernel makes a new IPv6 address usable in a work queue, even without duplicate address detection
/// (`addrconf_dad_start` in net/ipv6/addrconf.c), so not before the request is answered.
fn is_soon_reached(vip: IpAddr) -> bool {
    let deadline = Instant::now() + Duration::from_secs(1);
    while connect(vip).is_err() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn a_vip_is_reached_while_it_is_bound() {
    for binding in BINDINGS {
        on_a_node(move || {
            let mut links = links(binding);
            for _ in 0..2 {
                bind(&mut links, &vips());
                assert_eq!(links.observe().unwrap(), bound(&vips()));
            }
            for vip in vips() {
                assert!(is_soon_reached(vip), "{vip} by {binding:?}");
            }
            for _ in 0..2 {
                assert_eq!(links.apply(&vips().map(Operation::Unbind)).unwrap(), []);
                assert_eq!(links.observe().unwrap(), bound(&[]));
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
            bind(&mut links(binding), &vips());
            assert!(vips().into_iter().all(is_soon_reached));
            assert_eq!(vips().map(|vip| connect(vip).unwrap()), sources, "{binding:?}");
        });
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn an_ipv6_address_on_a_down_link_is_usable_only_if_the_link_is_noarp() {
    on_a_node(|| {
        links(VipBinding::Address).apply(&[Operation::EnsureDevice]).unwrap();
        ip("link add arp0 type veth peer name arp1");
        ip("address add fd00::1/128 dev kube-ipvs0");
        ip("address add fd00::2/128 dev arp0");
        ip("address add fd00::3/128 dev arp0 nodad");
        let usable = |vip: &str| connect(vip.parse().unwrap()).is_ok();
        assert!(usable("fd00::1"));
        assert!(!usable("fd00::2"));
        assert!(usable("fd00::3"), "duplicate address detection is what makes the difference");
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn foreign_addresses_are_seen_and_removed_whatever_their_prefix() {
    for binding in BINDINGS {
        on_a_node(move || {
            let mut links = links(binding);
            bind(&mut links, &[]);
            ip("address add 10.0.0.9/24 dev kube-ipvs0");
            ip("address add fd00::9/64 dev kube-ipvs0");
            ip("link set kube-ipvs0 up"); // a link-local address appears, which is not foreign
            let foreign = BTreeSet::from(["10.0.0.9".parse().unwrap(), "fd00::9".parse().unwrap()]);
            let observed = links.observe().unwrap();
            let seen = if binding == VipBinding::Address { observed.bound } else { observed.stale_bindings };
            assert_eq!(seen, foreign);
            let changes: Vec<_> = seen.into_iter().map(Operation::Unbind).collect();
            assert_eq!(links.apply(&changes).unwrap(), []);
            assert_eq!(links.observe().unwrap(), bound(&[]));
        });
    }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn the_device_going_up_and_down_loses_ipv6_addresses_and_nothing_else() {
    let [v4, _] = vips();
    for (binding, left) in [(VipBinding::Address, vec![v4]), (ROUTE, vips().to_vec())] {
        on_a_node(move || {
            let mut links = links(binding);
            bind(&mut links, &vips());
            ip("link set kube-ipvs0 up");
            ip("link set kube-ipvs0 down");
            assert_eq!(links.observe().unwrap(), bound(&left));
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
            let mut links = links(binding);
            bind(&mut links, &many);
            assert_eq!(links.observe().unwrap(), bound(&many));
            let unbind: Vec<_> = many.iter().copied().map(Operation::Unbind).collect();
            assert_eq!(links.apply(&unbind).unwrap(), []);
            assert_eq!(links.observe().unwrap(), bound(&[]));
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
        bind(&mut links(VipBinding::Address), &vips());
        for binding in [ROUTE, other_source, VipBinding::Address] {
            let mut links = links(binding);
            let before = links.observe().unwrap();
            assert_eq!(before.stale_bindings, BTreeSet::from(vips()), "{binding:?}");
            bind(&mut links, &vips());
            assert_eq!(state(links.observe().unwrap()), state(bound(&vips())), "{binding:?}");
            for vip in vips() {
                connect(vip).unwrap();
            }
        }
        // A VIP that is not wanted any more when the binding changes.
        let mut links = links(ROUTE);
        links.observe().unwrap();
        assert_eq!(links.apply(&vips().map(Operation::Unbind)).unwrap(), []);
        assert_eq!(state(links.observe().unwrap()), state(bound(&[])));
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn a_vip_whose_new_binding_is_refused_keeps_the_old_one() {
    on_a_node(|| {
        bind(&mut links(VipBinding::Address), &vips());
        let [v4, v6] = vips();
        let absent =
            VipBinding::Route { source_v4: Some("203.0.113.5".parse().unwrap()), source_v6: Some(NODE_V6) };
        let mut links = links(absent);
        links.observe().unwrap();
        let failed = links.apply(&[Operation::Bind(v6), Operation::Bind(v4)]).unwrap();
        let error = KernelError { errno: Errno::EINVAL, message: Some("Invalid prefsrc address".into()) };
        assert_eq!(failed, [FailedRequest { index: 1, error }]);
        assert_eq!(connect(v4).unwrap(), v4);
        assert_eq!(connect(v6).unwrap(), IpAddr::from(NODE_V6));
        let left = links.observe().unwrap();
        assert_eq!((left.bound, left.stale_bindings), (BTreeSet::from([v6]), BTreeSet::from([v4])));
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn a_bad_vip_fails_at_its_position_and_stops_no_other() {
    on_a_node(|| {
        let mut links = links(VipBinding::Address);
        let [v4, v6] = vips();
        let multicast = "ff02::1".parse().unwrap();
        let changes =
            [Operation::Bind(v4), Operation::EnsureDevice, Operation::Bind(multicast), Operation::Bind(v6)];
        let failed = links.apply(&changes).unwrap();
        assert_eq!(failed.iter().map(|failed| failed.index).collect::<Vec<_>>(), [2]);
        assert_eq!(links.observe().unwrap(), bound(&vips()));
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn without_the_device_nothing_is_bound_and_everything_unbound() {
    for binding in BINDINGS {
        on_a_node(move || {
            let [v4, v6] = vips();
            let failed = links(binding).apply(&[Operation::Unbind(v4), Operation::Bind(v6)]).unwrap();
            assert_eq!(failed, [FailedRequest { index: 1, error: KernelError::new(Errno::ENODEV) }]);
        });
    }
}

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
            let mut links = links(binding);
            bind(&mut links, &both);
            assert_eq!(links.observe().unwrap(), bound(&both), "they are the node's own all the time");
            assert_ne!(both.map(local_routes), before, "ours stand beside the kernel's own");
            assert_eq!(links.apply(&both.map(Operation::Unbind)).unwrap(), []);
            assert_eq!(links.observe().unwrap(), bound(&[]));
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
            let mut links = links(binding);
            bind(&mut links, &both);
            ip("address delete 198.51.100.7/24 dev node0");
            ip("address delete 2001:db8:7::7/64 dev node0");
            assert_eq!(links.observe().unwrap(), bound(&both), "{binding:?}");
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
            let mut links = links(binding);
            bind(&mut links, &vips());
            ip("address add 10.0.0.9/32 dev kube-ipvs0");
            let own = ["169.254.20.10", "203.0.113.1"].map(|text| text.parse().unwrap());
            let expected: BTreeSet<IpAddr> = untouched().node_addresses.into_iter().chain(own).collect();
            assert_eq!(links.observe().unwrap().node_addresses, expected);
        });
    }
}

/// Runs `test` with a monitor that has already told of everything that the preparation did.
fn with_monitor(binding: VipBinding, test: impl AsyncFnOnce(Monitor) + Send + 'static) {
    on_a_node(move || {
        bind(&mut links(binding), &vips());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let monitor = Monitor::start(binding).unwrap();
            test(monitor).await;
        });
    });
}

async fn within_a_second(monitor: &mut Monitor) -> Option<Changed> {
    let changed = tokio::time::timeout(Duration::from_secs(1), monitor.changed()).await;
    changed.ok().map(Result::unwrap)
}

/// Takes what the setting up of interfaces may still cause.
async fn settle(monitor: &mut Monitor) {
    while tokio::time::timeout(Duration::from_millis(300), monitor.changed()).await.is_ok() {}
}

/// One VIP came or went, and nothing else.
fn vip(vip: &str, bound: bool) -> Changed {
    let vips = BTreeMap::from([(vip.parse().unwrap(), bound)]);
    Changed { vips, ..Changed::default() }
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn the_monitor_tells_of_a_deleted_device_and_of_the_new_ones_addresses() {
    with_monitor(VipBinding::Address, async |mut monitor| {
        settle(&mut monitor).await;
        ip("link delete kube-ipvs0");
        assert!(within_a_second(&mut monitor).await.is_some_and(|changed| changed.everything));
        ip("link add kube-ipvs0 type dummy");
        settle(&mut monitor).await;
        ip("address add 10.0.0.9/32 dev kube-ipvs0");
        assert_eq!(within_a_second(&mut monitor).await, Some(vip("10.0.0.9", true)));
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn the_monitor_tells_of_a_deleted_address() {
    with_monitor(VipBinding::Address, async |mut monitor| {
        settle(&mut monitor).await;
        for (address, bits) in [("10.96.0.1", 32), ("fd00:10:96::1", 128)] {
            ip(&format!("address delete {address}/{bits} dev kube-ipvs0"));
            assert_eq!(within_a_second(&mut monitor).await, Some(vip(address, false)));
        }
        assert_eq!(within_a_second(&mut monitor).await, None);
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn of_an_address_with_a_peer_the_monitor_tells_ours() {
    with_monitor(VipBinding::Address, async |mut monitor| {
        settle(&mut monitor).await;
        for (address, peer) in [("10.96.0.77", "10.96.0.78"), ("fd00:10:96::77", "fd00:10:96::78")] {
            ip(&format!("address add {address} peer {peer} dev kube-ipvs0"));
            assert_eq!(within_a_second(&mut monitor).await, Some(vip(address, true)));
            ip(&format!("address delete {address} peer {peer} dev kube-ipvs0"));
            assert_eq!(within_a_second(&mut monitor).await, Some(vip(address, false)));
        }
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn the_monitor_tells_of_a_deleted_route_and_of_no_other_route() {
    with_monitor(ROUTE, async |mut monitor| {
        settle(&mut monitor).await;
        for address in vips() {
            ip(&format!("route delete local {address} table local"));
            assert_eq!(within_a_second(&mut monitor).await, Some(vip(&address.to_string(), false)));
        }
        ip("route add 203.0.113.0/24 dev node0");
        ip("route delete 203.0.113.0/24 dev node0");
        assert_eq!(within_a_second(&mut monitor).await, None);
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn the_monitor_tells_of_the_nodes_own_addresses() {
    with_monitor(VipBinding::Address, async |mut monitor| {
        settle(&mut monitor).await;
        ip("address add 192.0.2.9/24 dev node0");
        let expected = Changed { node_addresses: true, ..Changed::default() };
        assert_eq!(within_a_second(&mut monitor).await, Some(expected));
        ip("address add fe80::9/64 dev node0 nodad");
        assert_eq!(within_a_second(&mut monitor).await, None);
    });
}

/// Ten thousand VIPs.
fn many() -> Vec<IpAddr> {
    (0..10_000u32).map(|n| Ipv4Addr::from_bits(0x0a60_1000 + n).into()).collect()
}

fn unbind(links: &mut KernelDummyInterface, vips: &[IpAddr]) {
    links.apply(&vips.iter().copied().map(Operation::Unbind).collect::<Vec<_>>()).unwrap();
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn ten_thousand_changes_at_a_stroke_are_told_in_a_few_words() {
    with_monitor(ROUTE, async |mut monitor| {
        settle(&mut monitor).await;
        let (mut links, vips) = (links(ROUTE), many());
        bind(&mut links, &vips);
        unbind(&mut links, &vips);
        let (mut told, mut pieces) = (BTreeMap::new(), 0);
        while told.len() < vips.len() {
            let changed = within_a_second(&mut monitor).await.unwrap();
            assert!(!changed.everything);
            told.extend(changed.vips);
            pieces += 1;
        }
        assert_eq!(told, vips.into_iter().map(|vip| (vip, false)).collect());
        assert!(pieces <= 30, "{pieces}");
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn where_notifications_are_lost_anything_may_have_changed() {
    with_monitor(ROUTE, async |mut monitor| {
        settle(&mut monitor).await;
        let (mut links, vips) = (links(ROUTE), many());
        // More than the socket's queue holds.
        for _ in 0..10 {
            bind(&mut links, &vips);
            unbind(&mut links, &vips);
        }
        assert_eq!(within_a_second(&mut monitor).await, Some(Changed::everything()));
        ip("address add 10.0.0.9/32 dev kube-ipvs0");
        assert_eq!(
            within_a_second(&mut monitor).await,
            Some(vip("10.0.0.9", true)),
            "nothing is lost any more"
        );
    });
}
