//! What the monitor reports about nf_tables on a real kernel, each test in its own network namespace.

#![expect(clippy::unwrap_used, reason = "a test's functions fail as the test itself does")]

use std::{
    io::Write,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use ipvs::{Family, Protocol, ServiceAddress};
use netfilter::{
    Changed, Element, HostFirewall, KernelNetfilter, LocalTraffic, Monitor, Netfilter, Operation, Policy,
};
use nix::sched::{CloneFlags, unshare};

const OURS: Changed = Changed { ours: true, others: false };
const OTHERS: Changed = Changed { ours: false, others: true };
const BOTH: Changed = Changed { ours: true, others: true };

const INSTALL: [Operation; 2] = [Operation::InstallTable(Family::V4), Operation::InstallTable(Family::V6)];

fn cluster_ip(ip: &str) -> Element {
    Element::ClusterIp(ServiceAddress { protocol: Protocol::Tcp, ip: ip.parse().unwrap(), port: 80 })
}

/// Our tables with an element in each, a monitor, and another program's table beside them.
fn with_monitor(test: impl AsyncFnOnce(Monitor, KernelNetfilter) + Send + 'static) {
    let node = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let policy = Policy {
            host_firewall: HostFirewall::Warn,
            ..Policy::new(LocalTraffic::Source { ipv4: None, ipv6: None })
        };
        let mut netfilter = KernelNetfilter::open(&policy).unwrap();
        nft("table inet firewall {
            set banned { type ipv4_addr; }
            chain input { type filter hook input priority 0; }
        }");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let monitor = Monitor::start(netfilter.port()).unwrap();
            install(&mut netfilter);
            test(monitor, netfilter).await;
        });
    });
    if let Err(panic) = node.join() {
        std::panic::resume_unwind(panic);
    }
}

fn install(netfilter: &mut KernelNetfilter) {
    let elements = ["10.96.0.1", "fd00::1"].map(|ip| Operation::AddElement(cluster_ip(ip)));
    netfilter.apply(&[&INSTALL[..], &elements].concat()).unwrap();
}

/// Feeds a script to nft.
fn nft(script: &str) {
    let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    nft.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(nft.wait().unwrap().success(), "{script}");
}

/// What has changed since the last call. Everything that has happened is in the socket by now.
async fn reported(monitor: &mut Monitor) -> Changed {
    tokio::time::timeout(Duration::from_secs(10), monitor.changed()).await.unwrap().unwrap()
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn every_change_of_our_tables_by_another_program_is_reported() {
    with_monitor(async |mut monitor, mut netfilter| {
        for (script, expected) in [
            ("delete element ip kube-ipvs cluster-ips { 10.96.0.1 . tcp . 80 }", OURS),
            ("add element ip6 kube-ipvs cluster-ips { fd00::2 . tcp . 80 }", OURS),
            ("flush set ip kube-ipvs cluster-ips", OURS),
            ("insert rule ip kube-ipvs vip-ports counter", OURS),
            ("flush chain ip6 kube-ipvs vip-ports", OURS),
            ("add chain ip kube-ipvs another", OURS),
            ("add set ip kube-ipvs another { type ipv4_addr; }", OURS),
            ("add table ip kube-ipvs { flags dormant; }", OURS),
            ("delete table ip6 kube-ipvs", OURS),
            ("flush ruleset", BOTH),
        ] {
            nft(script);
            assert_eq!(reported(&mut monitor).await, expected, "{script}");
            // Put right by ourselves, which is not reported.
            install(&mut netfilter);
        }
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn foreign_rule_changes_are_reported_as_foreign_and_set_changes_not_at_all() {
    with_monitor(async |mut monitor, _| {
        for script in [
            "add table ip6 filter",
            "add table inet kube-ipvs",
            "add table ip kube-ipvs-too",
            "add chain inet firewall forward { type filter hook forward priority 0; policy drop; }",
            "add rule inet firewall input tcp dport 22 accept",
            "flush chain inet firewall input",
            "delete table ip6 filter",
        ] {
            nft(script);
            assert_eq!(reported(&mut monitor).await, OTHERS, "{script}");
        }
        nft("add element inet firewall banned { 192.0.2.1 }");
        nft("delete element ip kube-ipvs cluster-ips { 10.96.0.1 . tcp . 80 }");
        assert_eq!(reported(&mut monitor).await, OURS);
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn our_own_changes_are_not_reported() {
    with_monitor(async |mut monitor, mut netfilter| {
        let elements: Vec<_> = (0..10_000u32)
            .map(|number| cluster_ip(&std::net::Ipv4Addr::from(0x0a61_0000 + number).to_string()))
            .collect();
        netfilter.apply(&elements.iter().copied().map(Operation::AddElement).collect::<Vec<_>>()).unwrap();
        netfilter.apply(&elements.into_iter().map(Operation::DeleteElement).collect::<Vec<_>>()).unwrap();
        // The first report comes from another program.
        nft("add table ip foreign");
        assert_eq!(reported(&mut monitor).await, OTHERS);
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn loading_a_firewall_of_thousands_of_rules_is_a_few_reports() {
    with_monitor(async |mut monitor, _| {
        nft(&format!(
            "flush chain inet firewall input\n{}",
            "add rule inet firewall input counter\n".repeat(5_000)
        ));
        nft("delete table ip kube-ipvs");
        let mut reports = 1;
        while !reported(&mut monitor).await.ours {
            reports += 1;
        }
        assert!(reports < 10, "{reports}");
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn where_notifications_are_lost_anything_may_have_changed() {
    with_monitor(async |mut monitor, _| {
        // Each of these is a message of more than three kilobytes.
        let rule = format!("add rule inet firewall input {}\n", "meta mark != 1 ".repeat(30));
        for _ in 0..10 {
            nft(&rule.repeat(1_000));
        }
        assert_eq!(reported(&mut monitor).await, BOTH);
        nft("delete table ip kube-ipvs");
        assert_eq!(reported(&mut monitor).await, OURS, "nothing is lost any more");
    });
}
