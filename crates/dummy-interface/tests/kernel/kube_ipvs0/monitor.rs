//! Changes by others are reported.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use dummy_interface::{Changed, DummyInterface, KernelDummyInterface, Monitor, Operation, VipBinding};

use super::{ROUTE, bind, ip, on_a_node, open, vips};

/// Runs `test` with a monitor that has already reported everything that the preparation did.
fn with_monitor(binding: VipBinding, test: impl AsyncFnOnce(Monitor) + Send + 'static) {
    on_a_node(move || {
        bind(&mut open(binding), &vips());
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
        ip("address add 10.0.0.9/32 dev kube-ipvs0 scope link");
        assert_eq!(within_a_second(&mut monitor).await, Some(vip("10.0.0.9", true)));
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn an_address_on_the_device_that_may_be_a_source_makes_everything_looked_at() {
    with_monitor(VipBinding::Address, async |mut monitor| {
        settle(&mut monitor).await;
        for change in [
            "address add 10.0.0.9/32 dev kube-ipvs0",
            "address change 10.96.0.1/32 dev kube-ipvs0 preferred_lft 10 valid_lft 20",
            "address change fd00:10:96::1/128 dev kube-ipvs0 preferred_lft forever",
        ] {
            ip(change);
            assert!(
                within_a_second(&mut monitor).await.is_some_and(|changed| changed.everything),
                "{change}"
            );
        }
        // Ours do not.
        bind(&mut open(VipBinding::Address), &vips());
        while let Some(changed) = within_a_second(&mut monitor).await {
            assert!(!changed.everything && changed.vips.values().all(|bound| *bound), "{changed:?}");
        }
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn a_renewed_lifetime_of_a_nodes_address_is_not_reported() {
    with_monitor(VipBinding::Address, async |mut monitor| {
        settle(&mut monitor).await;
        let renew = |address: &str| {
            ip(&format!("address change {address} dev node0 valid_lft 1000 preferred_lft 500"));
        };
        renew("192.0.2.1/24");
        renew("2001:db8::1/64");
        assert_eq!(within_a_second(&mut monitor).await, None, "they were there at the start");
        ip("address add 2001:db8::7/64 dev node0 nodad");
        let news = Some(Changed { node_addresses: true, ..Changed::default() });
        assert_eq!(within_a_second(&mut monitor).await, news);
        renew("2001:db8::7/64");
        assert_eq!(within_a_second(&mut monitor).await, None);
        ip("address delete 2001:db8::7/64 dev node0");
        assert_eq!(within_a_second(&mut monitor).await, news);
        ip("address add 2001:db8::7/64 dev node0 nodad");
        assert_eq!(within_a_second(&mut monitor).await, news);
        // A device that has gone and another with its number.
        let index = ip("-o link show node0").split(':').next().unwrap().to_owned();
        ip("link delete node0");
        settle(&mut monitor).await;
        ip(&format!("link add node1 index {index} type dummy"));
        ip("address add 192.0.2.1/24 dev node1");
        assert_eq!(within_a_second(&mut monitor).await, news);
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
fn the_monitor_reports_our_side_of_an_address_with_a_peer() {
    with_monitor(VipBinding::Address, async |mut monitor| {
        settle(&mut monitor).await;
        for (address, peer) in [("10.96.0.77", "10.96.0.78"), ("fd00:10:96::77", "fd00:10:96::78")] {
            let kind = if address.contains(':') { "preferred_lft 0" } else { "scope link" };
            ip(&format!("address add {address} peer {peer} dev kube-ipvs0 {kind}"));
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

fn unbind(interface: &mut KernelDummyInterface, vips: &[IpAddr]) {
    interface.apply(&vips.iter().copied().map(Operation::Unbind).collect::<Vec<_>>()).unwrap();
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn ten_thousand_changes_at_once_are_a_few_reports() {
    with_monitor(ROUTE, async |mut monitor| {
        settle(&mut monitor).await;
        let (mut interface, vips) = (open(ROUTE), many());
        bind(&mut interface, &vips);
        unbind(&mut interface, &vips);
        let (mut reported, mut reports) = (BTreeMap::new(), 0);
        while reported.len() < vips.len() {
            let changed = within_a_second(&mut monitor).await.unwrap();
            assert!(!changed.everything);
            reported.extend(changed.vips);
            reports += 1;
        }
        assert_eq!(reported, vips.into_iter().map(|vip| (vip, false)).collect());
        assert!(reports <= 30, "{reports}");
    });
}

#[test]
#[ignore = "needs root and the dummy module: cargo xtask test --tier kernel"]
fn where_notifications_are_lost_anything_may_have_changed() {
    with_monitor(ROUTE, async |mut monitor| {
        settle(&mut monitor).await;
        let (mut interface, vips) = (open(ROUTE), many());
        // More than the socket's queue holds.
        for _ in 0..10 {
            bind(&mut interface, &vips);
            unbind(&mut interface, &vips);
        }
        assert_eq!(within_a_second(&mut monitor).await, Some(Changed::everything()));
        ip("address add 10.0.0.9/32 dev kube-ipvs0 scope link");
        assert_eq!(
            within_a_second(&mut monitor).await,
            Some(vip("10.0.0.9", true)),
            "nothing is lost any more"
        );
    });
}
