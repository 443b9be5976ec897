//! `kube-ipvs preflight` names what a start would do to a node, and leaves the node as it is.

use std::{collections::BTreeSet, net::TcpListener};

use serde_json::{Value, json};
use testkit::{
    daemon::{binary, eventually},
    lab::CLUSTER_CIDR,
};

use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4};

/// Another program's virtual server, as keepalived makes them.
const OTHERS: &str = "192.0.2.7:6443";

/// An address of the node's own network that a load balancer has.
const LOAD_BALANCER: &str = "192.168.50.200";

const FIREWALL: &str =
    "table inet filter { chain input { type filter hook input priority 0; policy drop; iif lo accept; }; }";

/// Runs it with the daemon's flags, and returns the exit code and what it printed.
fn preflight(cluster: &Cluster, arguments: &[&str], flags: &[&str]) -> (Option<i32>, String) {
    let manifests = format!("--manifests={}", cluster.manifests.path().display());
    let cluster_cidr = format!("--cluster-cidr={CLUSTER_CIDR}");
    // The table of conntrack belongs to the machine, which is larger or smaller.
    let daemon = [
        "--proxy-mode=ipvs",
        "--hostname-override=node",
        "--conntrack-max-per-core=0",
        &cluster_cidr,
        &manifests,
    ];
    let mut command = cluster.lab.node.command(&binary().unwrap().to_string_lossy());
    command.arg("preflight").args(arguments).arg("--").args(daemon).args(flags);
    let output = command.output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

/// Everything of the node that a daemon writes to, line by line.
fn state_of(cluster: &Cluster) -> BTreeSet<String> {
    let node = &cluster.lab.node;
    // While an address of IPv6 is tentative, the kernel itself still makes changes.
    let everything = "while ip addr | grep -q tentative; do sleep 0.1; done; \
                      ipvsadm -Sn; nft list ruleset; ip addr; ip link; ip route show table all; ipset list; \
                      ls /sys/module; sysctl -a --pattern '^net[.]' 2>/dev/null | grep -v nf_conntrack_count";
    node.run("sh", &["-c", everything]).unwrap().lines().map(str::to_owned).collect()
}

/// The line that begins like this.
fn line<'a>(said: &'a str, begin: &str) -> &'a str {
    said.lines()
        .find(|line| line.starts_with(begin))
        .unwrap_or_else(|| panic!("no line {begin:?} in\n{said}"))
}

/// A Service with a load balancer.
fn web() -> Service {
    let status =
        json!({ "status": { "loadBalancer": { "ingress": [{ "ip": LOAD_BALANCER, "ipMode": "VIP" }] } } });
    let spec = json!({ "type": "LoadBalancer", "clusterIPs": [V4], "ports": [{ "port": 53 }] });
    Service::new("web", &spec).patch(&status).endpoints([1])
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_a_start_would_do_is_named_and_nothing_is_changed() {
    let cluster = Cluster::without_daemon(1);
    let node = &cluster.lab.node;
    cluster.write(&web());
    node.run("ipvsadm", &["-A", "-t", OTHERS, "-s", "wlc"]).unwrap();
    node.run("nft", &[FIREWALL]).unwrap();
    node.run("iptables", &["-t", "nat", "-N", "KUBE-SERVICES"]).unwrap();
    node.ip(&format!(
        "link add kube-ipvs0 type dummy\naddr add 10.96.0.99/32 dev kube-ipvs0\n\
                      link add nodelocaldns type dummy\naddr add {V4}/32 dev nodelocaldns"
    ))
    .unwrap();
    let taken = node.inside(|| TcpListener::bind("0.0.0.0:10256").unwrap()).unwrap();

    let before = state_of(&cluster);
    let (code, said) = preflight(&cluster, &[], &["--ipvs-scheduler=lc"]);
    let (other_mode, of_other_mode) =
        preflight(&cluster, &[], &["--ipvs-scheduler=lc", "--proxy-mode=iptables"]);
    let changed = &before ^ &state_of(&cluster);
    assert!(changed.is_empty(), "{changed:#?}");
    drop(taken);

    let (warning, rest) = of_other_mode.split_once('\n').unwrap();
    assert!(
        warning.starts_with("warning  configuration: --proxy-mode: mode \"iptables\""),
        "{of_other_mode}"
    );
    let all_but_the_count = |said: &str| said.rsplit_once("\nproblems: ").unwrap().0.to_owned();
    assert_eq!((other_mode, all_but_the_count(rest)), (Some(1), all_but_the_count(&said)));

    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("ok       IPVS: version 1.2.1 is loaded\n"), "{said}");
    let foreign =
        line(&said, &format!("warning  TCP {OTHERS}: this virtual server belongs to no Service (foreign)"));
    assert!(foreign.contains("--foreign-virtual-servers=keep"), "{foreign}");
    line(&said, "warning  10.96.0.99: no Service has this address of kube-ipvs0");
    assert!(
        line(&said, "warning  inet filter input: ").contains("policy drop; remedy: --host-firewall=accept")
    );
    assert!(line(&said, "note     kube-proxy's rules: ").contains("KUBE-SERVICES"));
    assert!(line(&said, "note     proxy: ").contains("no proxy answers"));
    let written = line(&said, "ok       first sync: will ");
    assert!(written.contains("add virtual server (2), ") && written.contains("bind (2), "), "{written}");
    assert!(line(&said, "note     net.ipv4.vs.conntrack: ").contains("0, set to 1"));
    assert!(
        line(&said, "warning  eth0: every node answers ARP")
            .contains(&format!("{LOAD_BALANCER} (default/web)"))
    );
    assert!(line(&said, "warning  nodelocaldns: ").contains(&format!(": {V4}: pods bypass")));
    assert!(line(&said, "warning  port 10256: ").contains("a program that is not a proxy"));
    assert!(said.ends_with("; nothing was changed\n"), "{said}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn beside_a_daemon_that_has_programmed_all_there_is_nothing_to_write_or_to_warn_of() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let web = Service::tcp(V4).endpoints([1]);
    cluster.apply(&web);
    let socket = format!("--control-socket={}", cluster.daemon().socket().display());
    let report = eventually("all is as wanted", || {
        let (code, json) = preflight(&cluster, &["-o", "json"], &[&socket]);
        anyhow::ensure!(code == Some(0), "{json}");
        Ok(serde_json::from_str::<Value>(&json)?)
    })
    .unwrap();
    let whats: Vec<_> =
        report["findings"].as_array().unwrap().iter().map(|it| it["what"].as_str().unwrap()).collect();
    for what in [
        "writes nothing",
        "already there: 1 of 1 virtual servers, 1 of 1 real servers, 1 of 1 VIPs",
        concat!(
            "kube-ipvs ",
            env!("CARGO_PKG_VERSION"),
            " runs on this node; another one waits until it has ended"
        ),
    ] {
        assert!(whats.contains(&what), "{what} in {whats:#?}");
    }
    assert!(whats.iter().any(|what| what.starts_with("health checks: a proxy listens at ")), "{whats:#?}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn without_flags_what_needs_no_services_is_looked_at() {
    let cluster = Cluster::without_daemon(0);
    let node = &cluster.lab.node;
    node.run("nft", &[FIREWALL]).unwrap();
    let output = node.command(&binary().unwrap().to_string_lossy()).arg("preflight").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    line(&said, "warning  inet filter input: ");
    line(&said, "note     virtual servers: 0 in IPVS");
    assert!(line(&said, "note     the rest: ").ends_with("kube-ipvs preflight -- FLAGS"));
}
