//! Kernel parameters are set as configured, and right values are not written.

use std::fs;

use serde_json::json;
use testkit::{
    daemon::{Daemon, binary, eventually},
    lab::{Host, Lab},
};

use crate::support::cluster::{Cluster, Service, V4, V6, at, tcp};

const PARAMETERS: [(&str, &str); 9] = [
    ("net.ipv4.vs.conntrack", "1"),
    ("net.ipv4.vs.expire_nodest_conn", "1"),
    ("net.ipv4.vs.expire_quiescent_template", "1"),
    ("net.ipv4.ip_forward", "1"),
    ("net.netfilter.nf_conntrack_tcp_timeout_established", "7200"),
    ("net.netfilter.nf_conntrack_tcp_timeout_close_wait", "3600"),
    ("net.netfilter.nf_conntrack_tcp_be_liberal", "1"),
    ("net.netfilter.nf_conntrack_udp_timeout", "31"),
    ("net.netfilter.nf_conntrack_udp_timeout_stream", "181"),
];

/// What leads to them.
const FLAGS: [&str; 7] = [
    "--conntrack-tcp-timeout-established=2h",
    "--conntrack-tcp-be-liberal",
    "--conntrack-udp-timeout=30500ms",
    "--conntrack-udp-timeout-stream=3m1s",
    "--ipvs-tcp-timeout=2h",
    "--ipvs-udp-timeout=5m1s",
    // The size of the table is the machine's, and not this test's to change.
    "--conntrack-max-per-core=0",
];

fn assert_parameters(node: &Host) {
    for (key, value) in PARAMETERS {
        assert_eq!(node.run("sysctl", &["-n", key]).unwrap().trim(), value, "{key}");
    }
    let timeouts = node.run("ipvsadm", &["--list", "--timeout"]).unwrap();
    assert_eq!(timeouts.trim(), "Timeout (tcp tcpfin udp): 7200 120 301");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_kernel_gets_the_parameters_and_timeouts_that_are_asked_for() {
    let cluster = Cluster::start(0, &FLAGS);
    assert_parameters(&cluster.lab.node);
    let id = cluster.daemon().id();
    assert_eq!(fs::read_to_string(format!("/proc/{id}/oom_score_adj")).unwrap().trim(), "-999");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn ipvs_keeps_idle_tcp_connections_as_long_as_conntrack_with_auto() {
    const LONG: [&str; 3] = [
        "--conntrack-tcp-timeout-established=5000s",
        "--ipvs-tcp-timeout=auto",
        "--conntrack-max-per-core=0",
    ];
    let mut cluster = Cluster::start(0, &LONG);
    let timeouts = |cluster: &Cluster| cluster.lab.node.run("ipvsadm", &["--list", "--timeout"]).unwrap();
    assert_eq!(timeouts(&cluster).trim(), "Timeout (tcp tcpfin udp): 5000 120 300");
    let status = cluster.daemon().ask(&cluster.lab.node, "status").unwrap();
    assert!(!status.contains("TCP after 5000 s"), "{status}");
    cluster.restart(&["--conntrack-tcp-timeout-established=6000s", LONG[1], LONG[2]]);
    assert_eq!(timeouts(&cluster).trim(), "Timeout (tcp tcpfin udp): 6000 120 300");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_size_of_the_table_stays_where_the_kernel_allows_no_change() {
    let mut cluster = Cluster::without_daemon(0);
    let size = || cluster.lab.node.run("sysctl", &["net.netfilter.nf_conntrack_max"]).unwrap();
    let before = size();
    cluster.restart(&["--conntrack-max-per-core=1000000", "--conntrack-udp-timeout=31s"]);
    let said = cluster.daemon().log();
    assert!(said.contains("net.netfilter.nf_conntrack_max left at"), "{said}");
    let size = || cluster.lab.node.run("sysctl", &["net.netfilter.nf_conntrack_max"]).unwrap();
    assert_eq!(size(), before);
    let timeout = cluster.lab.node.run("sysctl", &["-n", "net.netfilter.nf_conntrack_udp_timeout"]).unwrap();
    assert_eq!(timeout.trim(), "31");
}

fn is_synced(status: &str) -> bool {
    status.lines().any(|line| line.split_whitespace().take(2).eq(["synced:", "yes,"]))
}

/// Runs `kube-ipvs --init-only` on the node, with an API server that cannot be reached.
fn init_only(node: &Host) -> String {
    let flags = ["--init-only", "--kubeconfig=/nonexistent/kubeconfig"];
    let arguments = [&flags[..], &FLAGS].concat();
    let (code, said) = Daemon::start(node, &arguments).unwrap().ended().unwrap();
    assert_eq!(code, Some(0), "{said}");
    said
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn init_only_sets_the_parameters_only_and_the_second_time_nothing() {
    let lab = Lab::new(0, 8080).unwrap();
    let kernel = || {
        [
            lab.node.run("ipvsadm", &["-Ln"]).unwrap(),
            lab.node.run("ip", &["-brief", "link"]).unwrap(),
            lab.node.run("nft", &["list", "ruleset"]).unwrap(),
        ]
    };
    let before = kernel();
    let said = init_only(&lab.node);
    assert!(said.contains("net.netfilter.nf_conntrack_udp_timeout"), "{said}");
    assert_parameters(&lab.node);
    assert_eq!(kernel(), before);
    assert_eq!(init_only(&lab.node), "", "it had something to write");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_parameter_that_cannot_be_set_is_named() {
    let lab = Lab::new(0, 8080).unwrap();
    let output = lab
        .node
        .command("unshare")
        .args(["--mount", "sh", "-c"])
        .arg("mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec \"$0\" --init-only")
        .arg(binary().unwrap())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let remedy = "(if an init container sets it, delete the pod): Read-only";
    let cannot = format!("sysctl net.ipv4.vs.conntrack is 0 and cannot be set to 1 {remedy}");
    assert!(said.contains(&cannot), "{said}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_configuration_file_with_the_gate_for_the_ipvs_mode_serves() {
    let mut cluster = Cluster::without_daemon(1);
    let config = cluster.manifests.path().join("config.conf");
    let fields = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n\
                  featureGates: {KubeProxyIPVS: true}\nipvs: {scheduler: lc, udpTimeout: 301s}\n";
    fs::write(&config, fields).unwrap();
    let web = Service::tcp(V4).endpoints([1]);
    cluster.write(&web);
    cluster.restart(&["--config", config.to_str().unwrap()]);
    cluster.ipvsadm("the Service", |table| table.contains(&format!("{V4}:80 lc")));
    assert_eq!(cluster.lab.node.ask(web.address()).unwrap().from, "pod-1");
    let timeouts = cluster.lab.node.run("ipvsadm", &["--list", "--timeout"]).unwrap();
    assert!(timeouts.trim().ends_with(" 301"), "{timeouts}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_node_without_ipv6_serves_ipv4_alone() {
    let mut cluster = Cluster::without_daemon(1);
    cluster.lab.node.run("sysctl", &["-qw", "net.ipv6.conf.all.disable_ipv6=1"]).unwrap();
    let (ipv4, ipv6) = (Service::tcp(V4).endpoints([1]), Service::tcp(V6).endpoints([1]));
    let both =
        Service::new("both", &json!({"clusterIPs": ["10.96.0.11", "fd00:96::11"], "ports": [{"port": 80}]}));
    let both = both.endpoints([1]);
    for service in [&ipv4, &ipv6, &both] {
        cluster.write(service);
    }
    cluster.restart(&[]);
    let table = cluster.ipvsadm("the Service", |table| table.contains(V4));
    assert!(!table.contains(V6), "{table}");
    for service in [&ipv4, &both] {
        cluster.serves(tcp(&service.address().ip().to_string(), 80), &[1]);
        assert_eq!(cluster.lab.client.ask(service.address()).unwrap().from, "pod-1");
    }
    let tables = cluster.lab.node.run("nft", &["list", "tables"]).unwrap();
    assert_eq!(tables.lines().collect::<Vec<_>>(), ["table ip kube-ipvs"]);
    let status = cluster.daemon().ask(&cluster.lab.node, "status").unwrap();
    assert!(is_synced(&status), "{status}");
    assert!(
        status.contains("problem:         this node has no IPv6; virtual servers that are not served: 2"),
        "{status}"
    );
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn ipv6_that_is_switched_on_later_ends_the_daemon_to_be_started_again() {
    let cluster = Cluster::without_daemon(1);
    let node = &cluster.lab.node;
    let set = |disabled: &str| {
        node.run("sysctl", &["-qw", &format!("net.ipv6.conf.all.disable_ipv6={disabled}")]).unwrap();
    };
    set("1");
    cluster.write(&Service::tcp(V4).endpoints([1]));
    let daemon = Daemon::with_manifests(node, cluster.manifests.path(), &[]).unwrap();
    cluster.serves(tcp(V4, 80), &[1]);
    set("0");
    let (code, log) = daemon.ended().unwrap();
    assert_eq!(code, Some(1));
    assert!(
        log.contains("this node has IPv6 now, and had none at the start; exiting to be restarted"),
        "{log}"
    );
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn kube_ipvs0_has_ipv6_where_the_node_has_it_though_new_devices_have_not() {
    for binding in ["--vip-binding=address", "--vip-binding=route"] {
        let mut cluster = Cluster::without_daemon(1);
        let off = |interface: &str| format!("net.ipv6.conf.{interface}.disable_ipv6=1");
        cluster.lab.node.run("sysctl", &["-qw", &off("default")]).unwrap();
        cluster.restart(&["--ipvs-sync-period=1h", binding]);
        for vip in [V4, V6] {
            let service = Service::tcp(vip).endpoints([1]);
            cluster.apply(&service);
            eventually("the VIP answers", || cluster.lab.client.ask(service.address())).unwrap();
        }
        cluster.lab.node.run("sysctl", &["-qw", &off("kube-ipvs0")]).unwrap();
        eventually("IPv6 answers again", || cluster.lab.client.ask(at(V6, 80))).unwrap();
        // With routes nothing was lost, and nothing had to be noticed.
        cluster.daemon().ask(&cluster.lab.node, "resync").unwrap();
        let now = cluster.lab.node.run("sysctl", &["-n", "net.ipv6.conf.kube-ipvs0.disable_ipv6"]).unwrap();
        assert_eq!(now.trim(), "0", "{binding}");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn rate_estimation_stays_as_set_and_draining_does_not_depend_on_it() {
    const PARAMETER: &str = "net.ipv4.vs.run_estimation";
    let mut cluster = Cluster::without_daemon(2);
    let set = format!("{PARAMETER}=0");
    let Ok(_) = cluster.lab.node.run("sysctl", &["-qw", &set]) else {
        println!("ABSENT: {PARAMETER}, which came with Linux 5.16");
        return;
    };
    cluster.restart(&[]);
    let web = Service::tcp(V4).endpoints([1]);
    cluster.apply(&web);
    let connection = cluster.lab.client.connect(web.address()).unwrap();
    cluster.write(&web.clone().endpoints([2]));
    cluster.weighs(tcp(V4, 80), 1, Some(0));
    assert_eq!(cluster.lab.node.run("sysctl", &["-n", PARAMETER]).unwrap().trim(), "0");
    drop(connection);
}
