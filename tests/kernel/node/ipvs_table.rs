//! IPVS' own table of connections has a bound, where the kernel lets it have one.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::{Context, ensure};
use serde_json::json;
use testkit::{daemon::eventually, lab::Host, metrics::value};

use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4, at, page};

const UDP: &str = "10.96.0.99";

/// A Service with session affinity for longer than this test, whose pod does not answer.
fn silent(cluster: &Cluster) -> SocketAddr {
    let rules = "add table ip silent; add chain ip silent input { type filter hook input priority 0; }; \
                 add rule ip silent input meta l4proto udp drop";
    cluster.lab.pods[1].run("nft", &[rules]).unwrap();
    let spec = json!({ "clusterIPs": [UDP], "ports": [{ "port": 9, "protocol": "UDP" }] });
    cluster.apply(&Service::new("silent", &spec).affinity(10_800).endpoints([2]));
    at(UDP, 9)
}

/// Sends one datagram from each of so many addresses, of which the first is this number.
fn flood(client: &Host, to: SocketAddr, first: u32, clients: u32) {
    let send = move || -> anyhow::Result<()> {
        for number in first..first + clients {
            let source = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + number);
            UdpSocket::bind((source, 0))?.send_to(b"who?\n", to)?;
        }
        Ok(())
    };
    client.inside(send).unwrap().unwrap();
}

/// How many entries the kernel has; `None` where it does not say so.
fn entries(node: &Host) -> Option<u64> {
    let status = node.run("sh", &["-c", "cat /proc/net/ip_vs_status || true"]).unwrap();
    status.lines().find_map(|line| line.strip_prefix("Conns:")?.trim().parse().ok())
}

fn parameter(node: &Host, name: &str) -> Option<u64> {
    node.run("sysctl", &["-n", &format!("net.ipv4.vs.{name}")]).ok()?.trim().parse().ok()
}

fn set(node: &Host, name: &str, value: u64) {
    node.run("sysctl", &["-w", &format!("net.ipv4.vs.{name}={value}")]).unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn entries_are_bounded_by_memory_and_what_was_established_outlives_a_lack_of_it() {
    let cluster = Cluster::start(2, &[NO_PERIOD, "--ipvs-udp-timeout=1s"]);
    let (node, client) = (&cluster.lab.node, &cluster.lab.client);
    let amemthresh = parameter(node, "amemthresh").unwrap();
    assert_eq!(parameter(node, "drop_entry"), Some(1));
    assert!(amemthresh != 1_024, "it is the zones' minimum, in pages");
    let Some(before) = entries(node) else {
        println!("ABSENT: /proc/net/ip_vs_status, by which entries are counted");
        return;
    };
    assert_eq!(before, 0);

    client.ip("route add local 198.18.0.0/15 dev lo").unwrap();
    cluster.apply(&Service::tcp(V4).affinity(10_800).endpoints([1]));
    let mut connection = client.connect(at(V4, 80)).unwrap();
    let silent = silent(&cluster);
    flood(client, silent, 1, 2_000);
    // Each connection is forgotten after a second, and leaves the client's template.
    eventually("only templates are left", || {
        let entries = entries(node).context("no number")?;
        ensure!((2_000..=2_010).contains(&entries), "{entries}");
        Ok(())
    })
    .unwrap();
    let page = page(node, "/metrics").unwrap();
    assert!(value(&page, "kube_ipvs_connection_entries").unwrap() >= 2_000.0, "{page}");
    // The kernel drops entries once a second (`defense_work_handler` in net/netfilter/ipvs/ip_vs_ctl.c), and those of the
    // datagrams took as long to go.
    assert!(entries(node).unwrap() >= 2_000, "nothing is dropped while there is memory");

    // As if no page were free.
    set(node, "amemthresh", i32::MAX as u64);
    eventually("templates are dropped", || {
        let entries = entries(node).context("no number")?;
        ensure!(entries < 1_900, "{entries}");
        Ok(())
    })
    .unwrap();
    assert_eq!(parameter(node, "drop_entry"), Some(2), "the kernel says so itself");
    set(node, "amemthresh", amemthresh);
    connection.still_works().unwrap();
    connection.ask_for_echo().unwrap();
    connection.expect_echo().unwrap();
    let of_client = node.run("ipvsadm", &["-Lnc"]).unwrap();
    assert!(of_client.lines().any(|line| line.contains("ASSURED") && line.contains(V4)), "{of_client}");

    let Some(conn_max) = parameter(node, "conn_max") else {
        println!("ABSENT: net.ipv4.vs.conn_max, which came with Linux 7.2");
        return;
    };
    assert!(conn_max > 0 && conn_max < 1 << 30, "an eighth of memory, not {conn_max}");
    let most = entries(node).unwrap() + 100;
    set(node, "conn_max", most);
    flood(client, silent, 10_000, 1_000);
    assert!(entries(node).unwrap() <= most);
    connection.still_works().unwrap();
    set(node, "conn_max", conn_max);
    assert_eq!(client.ask(at(V4, 80)).unwrap().from, "pod-1");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn an_operators_own_bounds_of_the_table_stay() {
    let mut cluster = Cluster::without_daemon(0);
    // The parameters of this network namespace are there once IPVS was asked for in it.
    cluster.lab.node.run("ipvsadm", &["-Ln"]).unwrap();
    let node = &cluster.lab.node;
    set(node, "amemthresh", 1);
    let own_limit = parameter(node, "conn_max").is_some();
    if own_limit {
        set(node, "conn_max", 777);
    }
    cluster.restart(&[]);
    let node = &cluster.lab.node;
    assert_eq!([parameter(node, "amemthresh"), parameter(node, "drop_entry")], [Some(1), Some(0)]);
    assert!(!own_limit || parameter(node, "conn_max") == Some(777));
}
