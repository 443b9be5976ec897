//! `trace` and `probe`: each way in which a connection can fail leads to its cause by one command.

use std::{
    io::Read,
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use testkit::{
    daemon::{binary, eventually},
    lab::{Host, Manner},
};

use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4, V6, at, here, tcp};

/// How long a client waits that gets no answer: until it has asked twice.
const PATIENCE: Duration = Duration::from_millis(1500);
/// How long a client waits that gets one.
const LONG: Duration = Duration::from_secs(30);

const TABLE: &str = "kube-ipvs-trace";

fn service() -> Service {
    Service::new("web", &json!({ "clusterIPs": [V4, V6], "ports": [{ "port": 80 }] }))
}

fn node(cluster: &Cluster) -> &Host {
    &cluster.lab.node
}

pub(super) fn command(cluster: &Cluster, arguments: &[&str]) -> Command {
    let mut command = node(cluster).command(&binary().unwrap().to_string_lossy());
    command.args(arguments).arg("--control-socket").arg(cluster.daemon().socket());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A trace that has begun.
struct Trace(Child);

impl Trace {
    fn begin(cluster: &Cluster, arguments: &[&str]) -> Self {
        let trace = command(cluster, &[&["trace"], arguments].concat()).spawn().unwrap();
        eventually("the table is there", || {
            let tables = node(cluster).run("nft", &["list", "tables"])?;
            anyhow::ensure!(tables.contains(TABLE), "{tables}");
            Ok(())
        })
        .unwrap();
        Self(trace)
    }

    /// What it has printed, with its exit code.
    fn end(mut self) -> (Option<i32>, String) {
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        (self.0.wait().unwrap().code(), text)
    }
}

/// Traces a client's attempt to connect in both families, and expects each conclusion to contain these words.
fn concludes(cluster: &Cluster, from: &Host, words: [&str; 2]) -> String {
    let mut both = String::new();
    for (ip, words) in [V4, V6].into_iter().zip(words) {
        let target = at(ip, 80).to_string();
        // An answer may take until neighbours are found.
        let (seconds, patience) = if words == ": answered" { ("60", LONG) } else { ("5", PATIENCE) };
        let trace = Trace::begin(cluster, &[&target, "--count", "1", "--seconds", seconds]);
        let manner = Manner { patience, ..Manner::default() };
        let answered = from.ask_in(manner, tcp(ip, 80)).is_ok();
        let (code, text) = trace.end();
        let conclusion =
            text.lines().find(|line| line.starts_with("=> ")).unwrap_or_else(|| panic!("{text}"));
        assert!(conclusion.contains(words), "{words}\n{text}");
        assert_eq!((code, answered), (Some(i32::from(!answered)), words == ": answered"), "{text}");
        both += &text;
    }
    both
}

fn served(cluster: &Cluster, service: &Service) {
    cluster.write(service);
    for ip in [V4, V6] {
        cluster.is_bound(ip.parse().unwrap(), true);
    }
}

fn nft(cluster: &Cluster, rules: &str) {
    let mut nft = node(cluster).command("nft");
    assert!(nft.arg(rules).status().unwrap().success(), "{rules}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn an_answered_connection_is_shown_with_its_real_server() {
    let cluster = Cluster::start(1, &[NO_PERIOD, "--masquerade-all"]);
    served(&cluster, &service().endpoints([1]));
    let text = concludes(&cluster, &cluster.lab.client, [": answered"; 2]);
    for ip in [V4, V6] {
        let pod = cluster.pod_address(1, ip.parse().unwrap());
        assert!(text.contains(&format!("IPVS: to {pod}")), "{text}");
    }
    assert!(text.contains("ip kube-ipvs nat-postrouting, rule"), "{text}");
    assert!(text.contains("TCP SYN+ACK"), "{text}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn an_answered_connection_without_conntrack_is_shown_with_its_real_server_too() {
    let cluster = Cluster::start(2, &[NO_PERIOD, "--untracked-services=annotated"]);
    let annotation = json!({ "metadata": { "annotations": { "kube-ipvs.io/conntrack": "off" } } });
    served(&cluster, &service().patch(&annotation).endpoints([1]));
    let text = concludes(&cluster, &cluster.lab.pods[1], [": answered"; 2]);
    assert!(text.contains("TCP SYN+ACK"), "{text}");
    let tracked = node(&cluster).run("conntrack", &["-L", "-p", "tcp", "--dport", "80"]).unwrap();
    assert_eq!(tracked, "");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_chain_of_another_program_that_drops_is_named_with_its_rule() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    served(&cluster, &service().endpoints([1]));
    for (ip, program) in [(V4, "iptables"), (V6, "ip6tables")] {
        let pod = cluster.pod_address(1, ip.parse().unwrap()).ip().to_string();
        // It has one family.
        let _ = node(&cluster).run(program, &["-A", "FORWARD", "-s", "203.0.113.7", "-j", "ACCEPT"]);
        node(&cluster).run(program, &["-A", "FORWARD", "-s", &pod, "-j", "DROP"]).unwrap();
    }
    concludes(
        &cluster,
        &cluster.lab.client,
        [
            "was dropped by ip filter FORWARD, rule 2 (iptables -S FORWARD 2)",
            "was dropped by ip6 filter FORWARD, rule 1 (ip6tables -S FORWARD 1)",
        ],
    );
    for program in ["iptables", "ip6tables"] {
        node(&cluster).run(program, &["-F"]).unwrap();
    }

    nft(&cluster, "add table inet firewall");
    nft(&cluster, "add chain inet firewall guard { type filter hook input priority 0; policy accept; }");
    nft(&cluster, "add chain inet firewall services");
    nft(&cluster, "add rule inet firewall guard jump services");
    nft(&cluster, "add rule inet firewall services tcp dport 80 drop comment \"no web here\"");
    let words = "the request of";
    let text = concludes(&cluster, &cluster.lab.client, [words; 2]);
    let expected = "was dropped by inet firewall services, rule 1 \"no web here\" (nft -a list chain inet firewall services)";
    assert_eq!(text.matches(expected).count(), 2, "{text}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn an_endpoint_that_refuses_and_one_that_is_silent_are_distinguished() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    served(&cluster, &service().endpoints([1]));
    cluster.answers_by(1, "tcp", "reject with tcp reset");
    concludes(&cluster, &cluster.lab.client, ["refuses: nothing listens there"; 2]);
    cluster.write(&service().endpoints([2]));
    cluster.serves_all(&[(tcp(V4, 80), &[2]), (tcp(V6, 80), &[2])]);
    cluster.answers_by(2, "tcp", "drop");
    concludes(&cluster, &cluster.lab.client, ["and no answer came back: the endpoint is silent"; 2]);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_request_that_routing_drops_leads_to_rp_filter() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    served(&cluster, &service().endpoints([1]));
    let node = node(&cluster);
    // The client learns the node's link-layer address, which it could not ask for afterwards.
    cluster.lab.client.ask(at(V4, 80)).unwrap();
    node.run("sysctl", &["-w", "net.ipv4.conf.all.rp_filter=1"]).unwrap();
    // The way back to the client's second address is another interface.
    let client = &cluster.lab.client;
    client.ip("addr add 192.0.2.77/32 dev eth0").unwrap();
    node.ip("link add elsewhere type dummy\nlink set elsewhere up\nroute add 192.0.2.77/32 dev elsewhere")
        .unwrap();
    let trace = Trace::begin(&cluster, &[&at(V4, 80).to_string(), "--count", "1", "--seconds", "3"]);
    let source = Some("192.0.2.77:0".parse().unwrap());
    client.ask_in(Manner { source, patience: PATIENCE }, tcp(V4, 80)).unwrap_err();
    let (code, text) = trace.end();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("was lost after prerouting: rp_filter of"), "{text}");
    assert!(text.contains("IPReversePathFilter"), "{text}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_vip_or_virtual_server_deleted_by_hand_is_named() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    served(&cluster, &service().endpoints([1]));
    // The daemon would put them back.
    kill(Pid::from_raw(cluster.daemon().id().cast_signed()), Signal::SIGSTOP).unwrap();
    for ip in [V4, V6] {
        node(&cluster)
            .run(
                "ipvsadm",
                &[
                    "-d",
                    "-t",
                    &at(ip, 80).to_string(),
                    "-r",
                    &cluster.pod_address(1, ip.parse().unwrap()).to_string(),
                ],
            )
            .unwrap();
    }
    concludes(&cluster, &cluster.lab.client, ["has no real server"; 2]);
    for ip in [V4, V6] {
        node(&cluster).run("ipvsadm", &["-D", "-t", &at(ip, 80).to_string()]).unwrap();
    }
    concludes(
        &cluster,
        &cluster.lab.client,
        ["was delivered to a program of this node: IPVS has no virtual server at"; 2],
    );
    kill(Pid::from_raw(cluster.daemon().id().cast_signed()), Signal::SIGCONT).unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_client_outside_of_the_source_ranges_is_recognized() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let patch = json!({
        "spec": { "type": "LoadBalancer", "loadBalancerSourceRanges": ["203.0.113.0/24", "fd00:203::/32"] },
        "status": { "loadBalancer": { "ingress": [{ "ip": "198.51.100.2" }] } },
    });
    served(&cluster, &service().patch(&patch).endpoints([here(1)]));
    cluster.is_bound("198.51.100.2".parse().unwrap(), true);
    let trace = Trace::begin(&cluster, &["198.51.100.2:80", "--count", "1", "--seconds", "4"]);
    let manner = Manner { patience: PATIENCE, ..Manner::default() };
    cluster.lab.client.ask_in(manner, tcp("198.51.100.2", 80)).unwrap_err();
    let (_, text) = trace.end();
    assert!(text.contains("was dropped by ip kube-ipvs"), "{text}");
    assert!(text.contains("the client is outside the source ranges"), "{text}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn nothing_of_a_trace_is_left_even_if_it_is_killed() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    served(&cluster, &service().endpoints([1]));
    let mut trace = Trace::begin(&cluster, &["default/web", "--seconds", "60"]);
    trace.0.kill().unwrap();
    trace.0.wait().unwrap();
    eventually("the table is gone", || {
        let tables = node(&cluster).run("nft", &["list", "tables"])?;
        anyhow::ensure!(!tables.contains(TABLE), "{tables}");
        Ok(())
    })
    .unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_trace_may_send_the_packets_itself() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    served(&cluster, &service().endpoints([1]));
    let output = command(&cluster, &["trace", "default/web", "--probe", "--count", "2", "-o", "json"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let report: Value = serde_json::from_str(&text).unwrap();
    let flows = report["flows"].as_array().unwrap();
    assert_eq!(flows.len(), 2, "{text}");
    assert!(flows.iter().all(|flow| flow["answered"] == json!(true)), "{text}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_node_port_is_traced_by_its_number_at_the_nodes_addresses() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let ports = json!([{ "port": 80, "nodePort": 30_081 }]);
    let spec = json!({ "type": "NodePort", "clusterIPs": [V4, V6], "ports": ports });
    served(&cluster, &Service::new("web", &spec).endpoints([1]));
    let trace =
        |port| command(&cluster, &["trace", port, "--probe", "--count", "1", "-o", "json"]).output().unwrap();
    let output = trace("30081");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["flows"][0]["answered"], output.status.code()),
        (&json!(true), Some(0)),
        "{report:#}"
    );
    let output = trace("30082");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("this node serves no NodePort 30082"), "{said}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_probe_tells_endpoints_that_answer_from_those_that_refuse_and_are_silent() {
    let cluster = Cluster::start(3, &[NO_PERIOD]);
    served(&cluster, &service().endpoints([1, 2, 3]));
    cluster.answers_by(2, "tcp", "reject with tcp reset");
    cluster.answers_by(3, "tcp", "drop");
    let output = command(&cluster, &["probe", "default/web"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |pod: usize| {
        let pod = cluster.pod_address(pod, V4.parse().unwrap()).to_string();
        text.lines().find(|line| line.contains(&pod)).unwrap_or_else(|| panic!("{text}"))
    };
    assert!(line(1).contains("answers in"), "{text}");
    assert!(line(2).contains("refuses"), "{text}");
    assert!(line(3).contains("silent"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}
