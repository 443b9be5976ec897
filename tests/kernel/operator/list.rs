//! `kube-ipvs list` prints the same bytes as ipvsadm, while traffic flows.

use std::time::Duration;

use anyhow::ensure;
use serde_json::Value;
use testkit::daemon::{binary, eventually, eventually_within};

use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4, V6, at};

fn ours(cluster: &Cluster, flags: &[&str]) -> anyhow::Result<String> {
    cluster.lab.node.run(&binary()?.to_string_lossy(), &[&["list"], flags].concat())
}

/// Waits until both print the same: numbers grow meanwhile.
fn same(cluster: &Cluster, ours_by: &[&str], theirs_by: &[&str]) -> String {
    eventually("both print the same", || {
        let ours = ours(cluster, ours_by)?;
        let theirs = cluster.lab.node.run("ipvsadm", &[&["-Ln"], theirs_by].concat())?;
        ensure!(ours == theirs, "{ours}\nand not\n{theirs}");
        Ok(ours)
    })
    .unwrap()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn counters_rates_and_connections_are_those_of_ipvsadm() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    for vip in [V4, V6] {
        cluster.apply(&Service::tcp(vip).affinity(300).endpoints([1, 2]));
    }
    let mut open: Vec<_> =
        [V4, V6].iter().map(|vip| cluster.lab.client.connect(at(vip, 80)).unwrap()).collect();
    for connection in &mut open {
        connection.still_works().unwrap();
    }
    cluster.lab.client.ask(at(V4, 80)).unwrap();

    let connections = same(&cluster, &["-c"], &["-c"]);
    assert!(connections.contains("ESTABLISHED") && connections.contains("ASSURED"), "{connections}");
    // The kernel counts every two seconds.
    let counted = eventually_within(Duration::from_secs(20), "the connections are counted", || {
        let counted = same(&cluster, &["--stats"], &["--stats"]);
        let line =
            counted.lines().find(|line| line.starts_with(&format!("TCP  {V4}:80"))).unwrap_or_default();
        ensure!(line.split_whitespace().nth(2) == Some("2"), "{counted}");
        Ok(counted)
    });
    counted.unwrap();
    same(&cluster, &["--rate"], &["--rate"]);
    same(&cluster, &[], &[]);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn programs_have_each_connection_as_a_line_of_json() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    cluster.apply(&Service::tcp(V6).endpoints([1]));
    let connection = cluster.lab.client.connect(at(V6, 80)).unwrap();
    let json = ours(&cluster, &["-c", "-o", "json"]).unwrap();
    let [line] = &json.lines().collect::<Vec<_>>()[..] else { unreachable!("one connection: {json}") };
    let shown: Value = serde_json::from_str(line).unwrap();
    let pod = cluster.pod_address(1, V6.parse().unwrap()).to_string();
    assert_eq!(shown["virtual_server"], format!("[{V6}]:80"));
    assert_eq!((&shown["real_server"], &shown["protocol"]), (&pod.into(), &"TCP".into()));
    drop(connection);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn services_are_shown_and_choose_what_is_listed() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let (web, dns) = (Service::tcp(V4).endpoints([1]), Service::tcp(V6).endpoints([2]));
    cluster.apply(&web);
    cluster.apply(&dns);
    cluster.lab.node.run("ipvsadm", &["-A", "-t", "192.0.2.7:80", "-s", "rr"]).unwrap();
    let socket = ["--control-socket", cluster.daemon().socket().to_str().unwrap()];
    let listed = |flags: &[&str]| ours(&cluster, &[flags, &socket].concat());
    let names = |flags: &[&str]| {
        let text = listed(&[&["--services"], flags].concat()).unwrap();
        let lines = text.lines().filter(|line| line.starts_with("TCP"));
        let mut names: Vec<_> =
            lines.map(|line| line.split_whitespace().last().unwrap_or_default().to_owned()).collect();
        names.sort();
        names
    };
    let [web, dns] = [&web, &dns].map(|service| format!("default/{}", service.name()));
    let mut all = ["-", &web, &dns].map(str::to_owned);
    all.sort();
    assert_eq!(names(&[]), all);
    assert_eq!(names(&["--stats"]), all);
    assert_eq!(names(&[&web]), [&*web]);
    assert_eq!(names(&[&format!("[{V6}]:80")]), [&*dns]);
    assert_eq!(names(&["192.0.2.7"]), ["-"]);
    assert_eq!(names(&["default"]).len(), 2);
    let none = listed(&["default/none"]).unwrap_err().to_string();
    assert!(none.contains("there is no virtual server of the Service default/none"), "{none}");
    same(&cluster, &["-n"], &[]);

    let connections = [V4, V6].map(|vip| cluster.lab.client.connect(at(vip, 80)).unwrap());
    for (which, vip) in [(&*web, V4), (V6, V6)] {
        let lines = listed(&["-c", which]).unwrap();
        assert!(lines.lines().count() == 3 && lines.contains(vip), "{which}: {lines}");
    }
    drop(connections);

    let json: Value = serde_json::from_str(&listed(&["-o", "json", V4]).unwrap()).unwrap();
    assert_eq!(json["virtual_servers"][0]["service"], *web);
    let without_daemon = ["-o", "json", V4, "--control-socket", "/run/none.sock"];
    let json: Value = serde_json::from_str(&ours(&cluster, &without_daemon).unwrap()).unwrap();
    assert_eq!(json["virtual_servers"][0]["service"], Value::Null);
}
