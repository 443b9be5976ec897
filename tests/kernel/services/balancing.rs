//! How real connections of a Service are balanced, with and without annotations.

use std::collections::{BTreeMap, BTreeSet};

use ipvs::{Protocol, ServiceAddress};
use serde_json::{Value, json};
use testkit::{
    daemon::eventually,
    lab::{Connection, Host},
};

use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4, V6, at, elsewhere, here, is_refused, tcp};

/// Annotations; null removes one.
pub(super) fn annotated(service: Service, annotations: &Value) -> Service {
    service.patch(&json!({ "metadata": { "annotations": annotations } }))
}

/// How many of so many new connections lead to each pod. They stay open.
pub(super) fn connect(client: &Host, connections: usize) -> (BTreeMap<String, usize>, Vec<Connection>) {
    let connections: Vec<_> = (0..connections).map(|_| client.connect(at(V4, 80)).unwrap()).collect();
    let mut shares = BTreeMap::new();
    for connection in &connections {
        *shares.entry(connection.answer.from.clone()).or_default() += 1;
    }
    (shares, connections)
}

pub(super) fn shares(of: &[(&str, usize)]) -> BTreeMap<String, usize> {
    of.iter().map(|(pod, share)| ((*pod).to_owned(), *share)).collect()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn weights_share_out_connections_and_are_changed_in_place() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let client = &cluster.lab.client;
    let weighted = json!({ "kube-ipvs.io/scheduler": "wrr", "kube-ipvs.io/weights-by-node": "node=3" });
    let web = annotated(Service::tcp(V4), &weighted).endpoints([here(1), elsewhere(2)]);
    cluster.write(&web);
    cluster.weighs(tcp(V4, 80), 1, Some(3));
    cluster.weighs(tcp(V4, 80), 2, Some(1));
    let (seen, mut open) = connect(client, 40);
    assert_eq!(seen, shares(&[("pod-1", 30), ("pod-2", 10)]));

    // Turned round.
    let turned = json!({ "kube-ipvs.io/weights-by-node": "another-node=3" });
    let web = annotated(web, &turned);
    cluster.write(&web);
    cluster.weighs(tcp(V4, 80), 1, Some(1));
    cluster.weighs(tcp(V4, 80), 2, Some(3));
    let (seen, more) = connect(client, 40);
    assert_eq!(seen, shares(&[("pod-1", 10), ("pod-2", 30)]));
    open.extend(more);

    // One drains and comes back with its weight.
    cluster.write(&web.clone().endpoints([here(1)]));
    cluster.weighs(tcp(V4, 80), 2, Some(0));
    cluster.write(&web);
    cluster.weighs(tcp(V4, 80), 2, Some(3));

    // Another program changes a weight.
    let pod = cluster.pod_address(2, V4.parse().unwrap()).to_string();
    let node = &cluster.lab.node;
    node.run("ipvsadm", &["-e", "-t", "10.96.0.10:80", "-r", &pod, "-m", "-w", "9"]).unwrap();
    cluster.daemon().ask(node, "resync").unwrap();
    cluster.weighs(tcp(V4, 80), 2, Some(3));

    // Without annotations it is as everybody's.
    let nothing = json!({ "kube-ipvs.io/scheduler": null, "kube-ipvs.io/weights-by-node": null });
    cluster.apply(&annotated(web, &nothing));
    cluster.shows("rr", |table| table[&tcp(V4, 80)].how == "rr");
    let (seen, more) = connect(client, 20);
    assert_eq!(seen, shares(&[("pod-1", 10), ("pod-2", 10)]));
    open.extend(more);
    for connection in &mut open {
        connection.still_works().unwrap();
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_daemon_that_starts_over_what_annotations_asked_for_writes_nothing() {
    let mut cluster = Cluster::start(2, &[NO_PERIOD]);
    let asked = json!({
        "kube-ipvs.io/scheduler": "mh",
        "kube-ipvs.io/scheduler-flags": "mh-port",
        "kube-ipvs.io/weights-by-node": "node=3",
        "kube-ipvs.io/max-connections": "50",
    });
    cluster.write(&annotated(Service::tcp(V4), &asked).endpoints([here(1), elsewhere(2)]));
    cluster.weighs(tcp(V4, 80), 1, Some(3));
    cluster.shows("mh", |table| table[&tcp(V4, 80)].how == "mh (mh-port)");
    let limits = cluster.lab.node.run("ipvsadm", &["-Ln", "--thresholds"]).unwrap();
    assert!(limits.lines().any(|line| line.contains(":8080") && line.contains("50")), "{limits}");

    cluster.restart(&[NO_PERIOD]);
    let report = || {
        let status = cluster.daemon().status(&cluster.lab.node)?;
        let report = status["last_full_sync"]["report"].clone();
        anyhow::ensure!(report.is_object(), "{status}");
        Ok(report)
    };
    let report = eventually("a full sync", report).unwrap();
    assert_eq!((&report["done"], &report["failed"]), (&json!(0), &json!(0)), "{report}");
}

/// Waits until a pod, by number, has so many connections.
fn has_connections(cluster: &Cluster, pod: usize, connections: u32) {
    let pod = cluster.pod_address(pod, V4.parse().unwrap());
    cluster.shows(&format!("{pod} with {connections} connections"), |table| {
        table[&tcp(V4, 80)].real_servers.get(&pod).is_some_and(|it| it.connections == connections)
    });
}

/// The connections of a pod, taken out of all.
fn take_of_pod(open: &mut Vec<Connection>, pod: &str) -> Vec<Connection> {
    open.extract_if(.., |connection| connection.answer.from == pod).collect()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_full_endpoint_gets_no_new_connections_and_keeps_those_it_has() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let (client, node) = (&cluster.lab.client, &cluster.lab.node);
    // IPVS forgets a connection a second after the server has closed it.
    node.run("ipvsadm", &["--set", "0", "1", "0"]).unwrap();
    let limited = |most: Value, below: Value| {
        let limits = json!({ "kube-ipvs.io/max-connections": most, "kube-ipvs.io/resume-below": below });
        annotated(Service::tcp(V4), &limits)
    };
    let web = limited("2".into(), "1".into());
    cluster.apply(&web.clone().endpoints([1, 2]));
    let (seen, mut open) = connect(client, 4);
    assert_eq!(seen, shares(&[("pod-1", 2), ("pod-2", 2)]));
    is_refused(client, tcp(V4, 80));

    // One has room again with fewer than one connection, not before.
    let [mut first, mut second]: [Connection; 2] = take_of_pod(&mut open, "pod-1").try_into().unwrap();
    first.server_closes().unwrap();
    has_connections(&cluster, 1, 1);
    is_refused(client, tcp(V4, 80));
    second.server_closes().unwrap();
    has_connections(&cluster, 1, 0);
    let (seen, more) = connect(client, 2);
    assert_eq!(seen, shares(&[("pod-1", 2)]));
    open.extend(more);
    is_refused(client, tcp(V4, 80));

    // A full one that drains keeps its connections, and is full still when it comes back.
    cluster.write(&web.clone().endpoints([1]));
    cluster.weighs(tcp(V4, 80), 2, Some(0));
    cluster.write(&web.endpoints([1, 2]));
    cluster.weighs(tcp(V4, 80), 2, Some(1));
    is_refused(client, tcp(V4, 80));

    // A higher limit holds at once, and so does none.
    cluster.apply(&limited("4".into(), Value::Null).endpoints([1, 2]));
    let pod = cluster.pod_address(1, V4.parse().unwrap()).to_string();
    let has_limit = |most: &str| {
        let shows = || {
            let shown = node.run("ipvsadm", &["-Ln", "--thresholds"])?;
            let line = shown.lines().find(|line| line.contains(&pod)).unwrap_or_default().to_owned();
            anyhow::ensure!(line.split_whitespace().nth(2) == Some(most), "{shown}");
            Ok(())
        };
        eventually(&format!("the limit {most}"), shows).unwrap();
    };
    has_limit("4");
    let (seen, more) = connect(client, 4);
    assert_eq!(seen, shares(&[("pod-1", 2), ("pod-2", 2)]));
    open.extend(more);
    is_refused(client, tcp(V4, 80));
    cluster.apply(&Service::tcp(V4).endpoints([1, 2]));
    has_limit("0");
    let (seen, more) = connect(client, 4);
    assert_eq!(seen, shares(&[("pod-1", 2), ("pod-2", 2)]));
    open.extend(more);
    for connection in &mut open {
        connection.still_works().unwrap();
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_client_with_session_affinity_reaches_its_endpoint_though_it_is_full() {
    let cluster = Cluster::start(3, &[NO_PERIOD]);
    let limited = annotated(Service::tcp(V4), &json!({ "kube-ipvs.io/max-connections": "1" })).affinity(600);
    cluster.apply(&limited.endpoints([1, 2]));
    let (seen, _open) = connect(&cluster.lab.client, 3);
    assert_eq!(seen.values().copied().collect::<Vec<_>>(), [3]);
    // Another client goes to the other one, and then no new one anywhere.
    let other = cluster.lab.pods[2].connect(at(V4, 80)).unwrap();
    assert!(!seen.contains_key(&other.answer.from), "{seen:?}, {other:?}");
    is_refused(&cluster.lab.pods[0], tcp(V4, 80));
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn an_annotation_that_cannot_be_used_is_ignored_and_explained() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let asked = json!({
        "kube-ipvs.io/scheduler": "fastest",
        "kube-router.io/service.scheduler": "lc",
        "kube-ipvs.io/weights-by-node": "node=3,another-node=heavy",
        "kube-ipvs.io/max-connections": "50",
    });
    cluster.write(&annotated(Service::tcp(V4), &asked).endpoints([here(1), elsewhere(2)]));
    cluster.weighs(tcp(V4, 80), 1, Some(3));
    cluster.shows("lc", |table| table[&tcp(V4, 80)].how == "lc");
    let explain = || {
        let arguments = ["explain", "default/web4", "--control-socket"];
        let socket = cluster.daemon().socket().to_string_lossy();
        cluster.lab.node.run(env!("CARGO_BIN_EXE_kube-ipvs"), &[&arguments[..], &[&socket]].concat()).unwrap()
    };
    let said = explain();
    let line = |text: &str| assert!(said.lines().any(|line| line.trim() == text), "{text:?}\n{said}");
    line("scheduler lc, at most 50 connections an endpoint");
    let pod = |number| cluster.pod_address(number, V4.parse().unwrap());
    line(&format!("{}    used, default/web4-ipv4, weight 3, 0 active and 0 inactive connections", pod(1)));
    line(&format!("{}    used, default/web4-ipv4, 0 active and 0 inactive connections", pod(2)));
    let at = "problem: default/web4: metadata.annotations";
    line(&format!(
        "{at}[kube-ipvs.io/scheduler]: \"fastest\" is not a scheduler; \
         the schedulers are rr, wrr, lc, wlc, lblc, lblcr, sh, dh, sed, nq, fo, ovf, mh, twos"
    ));
    line(&format!(
        "{at}[kube-ipvs.io/weights-by-node]: \"heavy\" is not a weight, a number between 0 and 65535"
    ));
    line(&format!("{at}: the scheduler lc ignores weights"));
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn nodes_begin_with_different_endpoints() {
    let mut cluster = Cluster::without_daemon(3);
    let web = Service::tcp(V4).endpoints([1, 2, 3]);
    let mut first = BTreeSet::new();
    for number in 0..12 {
        cluster.restart(&[NO_PERIOD, &format!("--hostname-override=node-{number}")]);
        cluster.apply(&web);
        first.insert(cluster.lab.client.ask(at(V4, 80)).unwrap().from);
        cluster.delete(&web);
        cluster.ipvsadm("nothing", |shown| !shown.contains("10.96.0.10:80"));
    }
    assert_eq!(first, cluster.names(&[1, 2, 3]));
}

/// Why one-packet scheduling is not offered. IPVS forgets the connection of a datagram as soon as it is forwarded,
/// and does not tell conntrack of the real server (`ip_vs_update_conntrack` in net/netfilter/ipvs/ip_vs_nfct.c leaves
/// such connections out): so nothing gives the answer the VIP for its source.
#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn no_client_is_answered_where_each_datagram_is_scheduled_by_itself() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let spec = json!({ "clusterIPs": [V4, V6], "ports": [{ "port": 53, "protocol": "UDP" }] });
    cluster.apply(&Service::new("dns", &spec).endpoints([1]));
    let dns = |ip: &str| ServiceAddress { protocol: Protocol::Udp, ..tcp(ip, 53) };
    let lab = &cluster.lab;
    for (vip, written) in [(V4, format!("{V4}:53")), (V6, format!("[{V6}]:53"))] {
        // From outside, masqueraded; and from a pod, which is not.
        for host in [&lab.client, &lab.pods[1]] {
            let edit = |more: &[&str]| {
                let edit = ["-E", "-u", &written, "-s", "rr"];
                lab.node.run("ipvsadm", &[&edit[..], more].concat()).unwrap();
            };
            host.ask_at(dns(vip)).unwrap();
            edit(&["-o"]);
            let answer = host.ask_at(dns(vip));
            assert!(answer.is_err(), "{} at {vip}: {answer:?}: offer it", host.name);
            edit(&[]);
            host.ask_at(dns(vip)).unwrap();
        }
    }
}
