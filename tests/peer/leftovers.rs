//! The real kube-proxy's leftovers, after it was killed, are removed when kube-ipvs starts.

use std::net::IpAddr;

use anyhow::ensure;
use serde_json::{Value, json};
use testkit::{
    daemon::{Daemon, eventually_within},
    kube_proxy::{self, KubeProxy, Mode},
    lab::{Host, Lab},
};

use crate::support::peer::PATIENCE;

const POD_PORT: u16 = 8080;
const VIPS: [&str; 2] = ["10.96.7.7", "fd00:10:96::777"];
const NODE_PORT: u16 = 30_777;

/// A Service of both families with a NodePort, a load balancer and source ranges, for which kube-proxy fills most of
/// its ipsets, and its slices.
fn objects(pod: &Host) -> Vec<Value> {
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "leftovers", "namespace": "default" },
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": VIPS[0],
            "clusterIPs": VIPS,
            "ipFamilyPolicy": "RequireDualStack",
            "externalIPs": ["203.0.113.77", "2001:db8::77"],
            "loadBalancerSourceRanges": ["192.168.0.0/16", "fd00::/16"],
            "ports": [{ "name": "http", "port": 80, "nodePort": NODE_PORT }],
        },
        "status": { "loadBalancer": { "ingress": [{ "ip": "203.0.113.78" }, { "ip": "2001:db8::78" }] } },
    });
    let slice = |family: &str, address: IpAddr| {
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("leftovers-{}", family.to_lowercase()),
                "namespace": "default",
                "labels": { "kubernetes.io/service-name": "leftovers" },
            },
            "addressType": family,
            "ports": [{ "name": "http", "port": POD_PORT }],
            "endpoints": [{ "addresses": [address], "nodeName": "node" }],
        })
    };
    vec![service, slice("IPv4", pod.ipv4.into()), slice("IPv6", pod.ipv6.into())]
}

/// The lines of `iptables-save`, `ip6tables-save` and `ipset list -n` that are kube-proxy's: no other program is here. In
/// iptables mode it helps the kubelet with the chain KUBE-FIREWALL, which is the kubelet's.
fn left(node: &Host) -> anyhow::Result<Vec<String>> {
    let saved = [
        node.run("iptables-save", &[])?,
        node.run("ip6tables-save", &[])?,
        node.run("ipset", &["list", "-n"])?,
    ];
    let lines = saved.iter().flat_map(|saved| saved.lines());
    Ok(lines
        .filter(|line| line.contains("KUBE-") && !line.contains("KUBE-FIREWALL"))
        .map(str::to_owned)
        .collect())
}

/// Starts kube-proxy in this mode and kills it when it has synced both families; then nothing of it is to be left
/// where kube-ipvs has started. Returns what kube-ipvs has logged.
fn taken_over(mode: Mode, has_synced: impl Fn(&Host) -> anyhow::Result<()>) -> Option<String> {
    let server = kube_proxy::control_plane().unwrap()?;
    let lab = Lab::new(1, POD_PORT).unwrap();
    let (node, pod) = (&lab.node, lab.pods.first().unwrap());
    node.reach(server.address().unwrap()).unwrap();
    server.create_node("node", &[node.ipv4.into(), node.ipv6.into()], None, &[]).unwrap();
    for object in objects(pod) {
        server.apply(&object).unwrap();
    }
    let kubeconfig = server.proxy_kubeconfig();
    let arguments = ["--kubeconfig", &*kubeconfig.to_string_lossy()];

    let kube_proxy = KubeProxy::start_in_mode(mode, node, &arguments).unwrap();
    eventually_within(PATIENCE, "kube-proxy has synced", || has_synced(node)).unwrap();
    kube_proxy.kill().unwrap();
    let vip = |vip: &str| (vip.parse::<IpAddr>().unwrap(), 80).into();
    let mut connections = VIPS.map(|address| lab.client.connect(vip(address)).unwrap());

    let kube_ipvs = Daemon::start(node, &[&arguments[..], &["-v=4"]].concat()).unwrap();
    eventually_within(PATIENCE, "nothing of kube-proxy's is left", || {
        let left = left(node)?;
        let tables = node.run("nft", &["list", "tables"])?;
        ensure!(left.is_empty() && !tables.contains("kube-proxy"), "{left:#?}\n{tables}");
        Ok(())
    })
    .unwrap();
    if mode == Mode::Ipvs {
        for connection in &mut connections {
            connection.still_works().unwrap();
        }
    }
    for address in VIPS {
        lab.client.ask(vip(address)).unwrap();
    }
    let log = kube_ipvs.log();
    kube_ipvs.kill().unwrap();
    for slice in ["leftovers-ipv4", "leftovers-ipv6"] {
        server.delete::<k8s_openapi::api::discovery::v1::EndpointSlice>("default", slice).unwrap();
    }
    server.delete::<k8s_openapi::api::core::v1::Service>("default", "leftovers").unwrap();
    Some(log)
}

/// Makes sure that the lists of iptables in both families have a chain with a word in it.
fn has_rules(node: &Host, word: &str) -> anyhow::Result<()> {
    for save in ["iptables-save", "ip6tables-save"] {
        let saved = node.run(save, &[])?;
        ensure!(saved.contains(word), "{save}: {saved}");
    }
    Ok(())
}

#[test]
#[ignore = "needs root, ip_vs, kube-apiserver and kube-proxy: cargo xtask test --tier peer"]
fn what_ipvs_mode_leaves_goes_and_its_virtual_servers_stay() {
    let log = taken_over(Mode::Ipvs, |node| {
        let table = node.run("ipvsadm", &["-Ln"])?;
        ensure!(VIPS.iter().all(|vip| table.contains(vip)), "{table}");
        let pods = table.lines().filter(|line| line.contains(&format!(":{POD_PORT} "))).count();
        ensure!(pods >= 8, "{table}");
        has_rules(node, "KUBE-SOURCE-RANGES-FIREWALL -j DROP")
    });
    let Some(log) = log else { return };
    let planned: Vec<_> = log.lines().filter(|line| line.contains("plan: ")).collect();
    assert!(planned.iter().any(|line| line.contains("install table")), "the plan is logged: {log}");
    let about = ["add virtual server", "delete virtual server", "add real server", "delete real server"];
    let changed: Vec<_> =
        planned.iter().filter(|line| about.iter().any(|about| line.contains(about))).collect();
    assert!(changed.is_empty(), "{changed:#?}");
    assert!(log.contains("removed what kube-proxy had left: ipset KUBE-6-LOAD-BALANCER-SOURCE-CID"), "{log}");
}

#[test]
#[ignore = "needs root, ip_vs, kube-apiserver and kube-proxy: cargo xtask test --tier peer"]
fn what_iptables_mode_leaves_goes() {
    let log = taken_over(Mode::Iptables, |node| has_rules(node, "-A KUBE-SEP-"));
    assert!(log.is_none_or(|log| log.contains("removed what kube-proxy had left: ip6tables table nat: ")));
}

#[test]
#[ignore = "needs root, ip_vs, kube-apiserver and kube-proxy: cargo xtask test --tier peer"]
fn the_tables_of_the_nftables_mode_go() {
    let log = taken_over(Mode::Nftables, |node| {
        for family in ["ip", "ip6"] {
            let table = node.run("nft", &["list", "table", family, "kube-proxy"])?;
            ensure!(
                table.contains(&format!(":{POD_PORT}")) || table.contains(&format!(" {POD_PORT}")),
                "{table}"
            );
        }
        Ok(())
    });
    assert!(
        log.is_none_or(|log| log.contains("removed what kube-proxy had left: nftables table ip6 kube-proxy"))
    );
}
