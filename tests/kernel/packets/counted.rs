//! What our rules drop, reject and masquerade is counted: in the metrics, and in `status`.

use std::time::Duration;

use anyhow::ensure;
use ipvs::{Protocol, ServiceAddress};
use serde_json::{Value, json};
use testkit::{
    daemon::{binary, eventually},
    lab::Manner,
    metrics::value,
};

use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4, elsewhere, here, page};

/// A load balancer's address that is open to no client of the lab.
const CLOSED: &str = "198.51.100.2";
/// A load balancer's address of the external policy Local without an endpoint here.
const LOCAL: &str = "198.51.100.3";

/// Each kind of packet that the lab can make, with its words in `status`.
const KINDS: [(&str, &str, &str); 4] = [
    ("drop", "source-range", "dropped 1 (source ranges)"),
    ("drop", "no-local-endpoint", "dropped 1 (policy Local without an endpoint here)"),
    ("reject", "no-service", "rejected 1 (no Service has this port)"),
    ("masquerade", "marked", "masqueraded 1 (flows to Services)"),
];

fn udp(ip: &str, port: u16) -> ServiceAddress {
    ServiceAddress { protocol: Protocol::Udp, ip: ip.parse().unwrap(), port }
}

/// A load balancer's Service with one UDP port.
fn service(name: &str, vip: &str, spec: &Value, ingress: &str) -> Service {
    let ports = json!([{ "name": "dns", "protocol": "UDP", "port": 80 }]);
    Service::new(name, &json!({ "type": "LoadBalancer", "clusterIPs": [vip], "ports": ports }))
        .patch(&json!({ "spec": spec, "status": { "loadBalancer": { "ingress": [{ "ip": ingress }] } } }))
}

/// Waits until the metric has counted this, by verdict and reason; all else is 0.
fn count(cluster: &Cluster, expected: [f64; 4]) {
    eventually("the packets are counted", || {
        let page = page(&cluster.lab.node, "/metrics")?;
        let of = |verdict: &str, reason: &str, family: &str| {
            let labels = format!("ip_family=\"{family}\",verdict=\"{verdict}\",reason=\"{reason}\"");
            value(&page, &format!("kube_ipvs_packets_total{{{labels}}}"))
        };
        for ((verdict, reason, _), expected) in KINDS.into_iter().zip(expected) {
            let counted = of(verdict, reason, "IPv4")?;
            ensure!(
                (counted - expected).abs() < f64::EPSILON,
                "{verdict} {reason}: {counted}, not {expected}"
            );
        }
        let all: f64 = page
            .lines()
            .filter(|line| line.starts_with("kube_ipvs_packets_total{"))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum();
        ensure!((all - expected.iter().sum::<f64>()).abs() < f64::EPSILON, "{page}");
        Ok(())
    })
    .unwrap();
}

/// What `status` says of packets, as text and as JSON.
fn status(cluster: &Cluster) -> (Option<String>, Value) {
    let node = &cluster.lab.node;
    let text = cluster.daemon().ask(node, "status").unwrap();
    let line = text.lines().find(|line| line.starts_with("packets:")).map(str::to_owned);
    let (binary, socket) = (binary().unwrap(), cluster.daemon().socket().to_string_lossy().into_owned());
    let arguments = ["status", "-o", "json", "--control-socket", &socket];
    let json = node.run(&binary.to_string_lossy(), &arguments).unwrap();
    let mut json: Value = serde_json::from_str(&json).unwrap();
    (line, json["packets"]["counted"].take())
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_is_dropped_rejected_or_masqueraded_is_counted_and_stays_so_after_a_repair() {
    let mut cluster = Cluster::start(1, &[NO_PERIOD]);
    let ranges = json!({ "loadBalancerSourceRanges": ["203.0.113.0/24"] });
    cluster.apply(&service("closed", V4, &ranges, CLOSED).endpoints([here(1)]));
    let local = json!({ "externalTrafficPolicy": "Local" });
    cluster.write(&service("local", "10.96.0.11", &local, LOCAL).endpoints([elsewhere(1)]));
    for ip in [CLOSED, LOCAL] {
        cluster.is_bound(ip.parse().unwrap(), true);
    }
    count(&cluster, [0.0; 4]);
    assert_eq!(status(&cluster), (None, json!([])), "nothing was counted");

    let brief = Manner { patience: Duration::from_millis(300), ..Manner::default() };
    let client = &cluster.lab.client;
    for lost in [udp(CLOSED, 80), udp(LOCAL, 80), udp(V4, 81)] {
        client.ask_in(brief, lost).unwrap_err();
    }
    client.ask_in(Manner::default(), udp(V4, 80)).unwrap();
    count(&cluster, [1.0; 4]);
    let (line, counted) = status(&cluster);
    let line = line.unwrap();
    let words = KINDS.map(|(_, _, words)| words).join(", ");
    assert!(line.starts_with(&format!("packets:         {words} in the last ")), "{line}");
    let each =
        KINDS.map(|(verdict, reason, _)| json!({ "verdict": verdict, "reason": reason, "packets": 1 }));
    assert_eq!(counted, json!(each));

    // The rules are replaced, the counters stay.
    let node = &cluster.lab.node;
    node.run("nft", &["flush", "chain", "ip", "kube-ipvs", "vip-ports"]).unwrap();
    eventually("the rules are back", || {
        let chain = node.run("nft", &["list", "chain", "ip", "kube-ipvs", "vip-ports"])?;
        ensure!(chain.contains("reject"), "{chain}");
        Ok(())
    })
    .unwrap();
    cluster.lab.client.ask_in(brief, udp(V4, 81)).unwrap_err();
    count(&cluster, [1.0, 1.0, 2.0, 1.0]);

    cluster.restart(&[NO_PERIOD]);
    count(&cluster, [1.0, 1.0, 2.0, 1.0]);
    assert_eq!(status(&cluster), (None, json!([])), "nothing since the start");
    cluster.resync_writes_nothing();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_table_that_is_deleted_counts_from_0_again() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    cluster.apply(&service("web", V4, &json!({}), CLOSED).endpoints([here(1)]));
    let brief = Manner { patience: Duration::from_millis(300), ..Manner::default() };
    cluster.lab.client.ask_in(brief, udp(V4, 81)).unwrap_err();
    count(&cluster, [0.0, 0.0, 1.0, 0.0]);
    let node = &cluster.lab.node;
    node.run("nft", &["flush", "ruleset"]).unwrap();
    count(&cluster, [0.0; 4]);
    cluster.lab.client.ask_in(brief, udp(V4, 81)).unwrap_err();
    count(&cluster, [0.0, 0.0, 1.0, 0.0]);
}
