//! Each `detectLocalMode` masquerades the right connections to a ClusterIP. With NodeCIDR nothing is programmed
//! before the Node has its ranges.

use std::{fs, net::IpAddr};

use serde_json::{Value, json};
use testkit::{
    daemon::{Daemon, eventually, ipvsadm_shows},
    lab::{Host, Lab},
};

use crate::{
    daemon::restarts::terminate,
    support::cluster::{Cluster, NO_PERIOD, POD_PORT, Service, V4, V6, page},
};

/// Where the pods of this node are, and those of another.
const POD_CIDRS: [&str; 2] = ["10.244.0.0/17", "fd00:10:244::/56"];
const OTHER_POD_CIDRS: [&str; 2] = ["10.244.128.0/17", "fd00:10:244:80::/57"];

const BY_NODE_CIDR: &str = "--detect-local-mode=NodeCIDR";

/// The Node that the daemon runs on.
fn node(pod_cidrs: &[&str]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node"},
        "spec": {"podCIDR": pod_cidrs.first(), "podCIDRs": pod_cidrs},
    })
}

/// A Service in both families whose only pod is the second one, and another node with a pod, the third.
struct Nodes {
    cluster: Cluster,
    another: Host,
}

impl Nodes {
    fn start() -> Self {
        let mut cluster = Cluster::without_daemon(2);
        let another = cluster.lab.add_pod_on_another_node("eth1", "another", POD_PORT).unwrap();
        let web = json!({"clusterIPs": [V4, V6], "ports": [{"port": 80}]});
        cluster.write(&Service::new("web", &web).endpoints([2]));
        // The first pod's link leads through a bridge.
        let [pod, ..] = &cluster.lab.pods[..] else { panic!("no pod") };
        let [v4, v6] = [V4, V6].map(|vip| pod.gateway(vip.parse().unwrap()));
        let bridge = format!(
            "link add cbr0 type bridge
             link set veth1 master cbr0
             addr flush dev veth1
             addr add {v4}/24 dev cbr0
             addr add {v6}/64 dev cbr0 nodad
             link set cbr0 up"
        );
        cluster.lab.node.ip(&bridge).unwrap();
        Self { cluster, another }
    }

    /// Starts the daemon anew, and waits for its first sync.
    fn restart(&mut self, arguments: &[&str]) {
        self.cluster.restart(&[&[NO_PERIOD], arguments].concat());
        let resync = || self.cluster.daemon().ask(&self.cluster.lab.node, "resync");
        eventually("the first sync", resync).unwrap();
    }

    /// Makes sure that of these four the ones named are masqueraded at the ClusterIP, and no other.
    fn masqueraded(&self, mode: &str, vip: &str, expected: &[&str]) {
        let lab = &self.cluster.lab;
        let vip: IpAddr = vip.parse().unwrap();
        let server = &lab.pods[1];
        let clients = [
            ("a pod of this node", &lab.pods[0]),
            ("a pod of another node", &lab.pods[2]),
            ("another node", &self.another),
            ("a client outside", &lab.client),
            ("this node", &lab.node),
        ];
        for (who, host) in clients {
            let answer = host.ask((vip, 80).into()).unwrap();
            let source = if expected.contains(&who) { server.gateway(vip) } else { host.address(vip) };
            assert_eq!((answer.from, answer.seen_as), (server.name.clone(), source), "{mode}: {who}, {vip}");
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn each_mode_masquerades_all_but_the_pods_that_it_takes_for_local() {
    let mut nodes = Nodes::start();
    nodes.cluster.write_manifest("node", &node(&POD_CIDRS));
    let all_but_pods = ["another node", "a client outside", "this node"];
    let all_but_this_nodes_pods = ["a pod of another node", "another node", "a client outside", "this node"];
    for (arguments, masqueraded) in [
        (&["--detect-local-mode=ClusterCIDR"][..], &all_but_pods[..]),
        (&[BY_NODE_CIDR], &all_but_this_nodes_pods),
        (&["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cbr0"], &all_but_this_nodes_pods),
        (
            &["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=cb"],
            &all_but_this_nodes_pods,
        ),
    ] {
        nodes.restart(arguments);
        for vip in [V4, V6] {
            nodes.masqueraded(arguments[0], vip, masqueraded);
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn in_a_family_without_pod_cidr_only_this_node_is_masqueraded() {
    let mut nodes = Nodes::start();
    nodes.cluster.write_manifest("node", &node(&POD_CIDRS[1..]));
    nodes.restart(&[BY_NODE_CIDR]);
    nodes.masqueraded(BY_NODE_CIDR, V4, &["this node"]);
    let all_but_this_nodes_pods = ["a pod of another node", "another node", "a client outside", "this node"];
    nodes.masqueraded(BY_NODE_CIDR, V6, &all_but_this_nodes_pods);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn nothing_is_programmed_before_the_pod_cidrs_and_other_ones_end_the_daemon() {
    let lab = Lab::new(1, POD_PORT).unwrap();
    let manifests = tempfile::tempdir().unwrap();
    let write = |name: &str, manifest: &Value| {
        let file = manifests.path().join(name);
        fs::write(&file, manifest.to_string()).unwrap();
        fs::rename(&file, file.with_extension("json")).unwrap();
    };
    let service = |name: &str, vip: &str| {
        let spec = json!({"clusterIP": vip, "clusterIPs": [vip], "ports": [{"port": 80}]});
        write(
            name,
            &json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}),
        );
    };
    let is_served = |vip: &str| {
        ipvsadm_shows(&lab.node, vip, |table| table.contains(&format!("TCP  {vip}:80"))).unwrap();
    };

    service("web", V4);
    write("node", &node(&[]));
    let daemon = Daemon::with_manifests(&lab.node, manifests.path(), &[BY_NODE_CIDR]).unwrap();
    let waiting = "waiting for the podCIDRs of the Node node";
    eventually("the log says that it waits", || {
        anyhow::ensure!(daemon.log().contains(waiting), "{}", daemon.log());
        Ok(())
    })
    .unwrap();
    let status = daemon.ask(&lab.node, "status").unwrap();
    assert!(status.contains("synced:          no, ") && status.contains(waiting), "{status}");
    let refused = format!("{:#}", daemon.ask(&lab.node, "resync").unwrap_err());
    assert!(refused.contains(waiting), "{refused}");
    eventually("health and metrics are served", || {
        let health = lab.node.get("127.0.0.1:10256".parse()?, "/livez")?;
        anyhow::ensure!(health.status == 200, "{health:?}");
        page(&lab.node, "/metrics")
    })
    .unwrap();
    assert_eq!(lab.node.run("nft", &["list", "ruleset"]).unwrap(), "");
    assert_eq!(lab.node.run("ipvsadm", &["-Sn"]).unwrap(), "");
    // But for the device, which Calico's Felix looks for once.
    assert_eq!(lab.node.run("ip", &["-o", "address", "show", "dev", "kube-ipvs0"]).unwrap(), "");

    write("node", &node(&POD_CIDRS));
    is_served(V4);

    // A Node without them, or none at all, changes nothing.
    write("node", &node(&[]));
    service("later", "10.96.0.11");
    is_served("10.96.0.11");
    fs::remove_file(manifests.path().join("node.json")).unwrap();
    service("later-still", "10.96.0.12");
    is_served("10.96.0.12");

    write("node", &node(&OTHER_POD_CIDRS));
    let (code, log) = daemon.ended().unwrap();
    assert_eq!(code, Some(1), "{log}");
    let said = "podCIDRs have changed from 10.244.0.0/17,fd00:10:244::/56 to 10.244.128.0/17,";
    assert!(log.contains(said) && log.contains("exiting to be restarted"), "{log}");
    is_served(V4);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_signal_ends_a_daemon_that_waits_for_pod_cidrs() {
    let lab = Lab::new(0, POD_PORT).unwrap();
    let manifests = tempfile::tempdir().unwrap();
    let daemon = Daemon::with_manifests(&lab.node, manifests.path(), &[BY_NODE_CIDR]).unwrap();
    eventually("it waits", || {
        anyhow::ensure!(daemon.log().contains("waiting for the podCIDRs"), "{}", daemon.log());
        Ok(())
    })
    .unwrap();
    terminate(&daemon, &lab.node);
    let (code, log) = daemon.ended().unwrap();
    assert_eq!(code, Some(0), "{log}");
}
