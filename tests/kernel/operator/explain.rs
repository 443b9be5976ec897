//! `explain` of an address, a port and a client: what it says is what happens.

use std::{net::IpAddr, time::Duration};

use serde_json::{Value, json};
use testkit::{
    daemon::{binary, eventually},
    lab::{CLUSTER_CIDR, Host, Manner},
};

use crate::support::cluster::{Cluster, Endpoint, NO_PERIOD, Service, V4, V6, elsewhere, here, tcp};

const BALANCED: &str = "203.0.113.7";
const NODE_IP: &str = "192.168.50.1";
const NODE_PORT: u16 = 30_080;

/// How long a client waits that may get no answer: until it has asked twice.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Runs a command of the program, with the exit code and what was printed.
fn run(cluster: &Cluster, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = cluster.lab.node.command(&binary().unwrap().to_string_lossy());
    let output = command.args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

/// Explains something with the daemon.
fn explain(cluster: &Cluster, arguments: &[&str]) -> (Option<i32>, String) {
    let socket = cluster.daemon().socket().to_str().unwrap();
    run(cluster, &[&["explain", "--control-socket", socket], arguments].concat())
}

/// Waits until both say these words and exit with this code: the daemon, and the program without it but with its flags.
fn both_say(cluster: &Cluster, arguments: &[&str], flags: &[&str], code: i32, words: &[&str]) {
    let manifests = format!("--manifests={}", cluster.manifests.path().display());
    let cluster_cidr = format!("--cluster-cidr={CLUSTER_CIDR}");
    let daemon = ["--", "--proxy-mode=ipvs", "--hostname-override=node", &cluster_cidr, &manifests];
    eventually("both explain it alike", || {
        let with = explain(cluster, arguments);
        let without = run(cluster, &[&["explain"], arguments, &daemon, flags].concat());
        for (found, said) in [with, without] {
            anyhow::ensure!(found == Some(code), "{arguments:?}: {found:?}: {said}");
            for part in words {
                anyhow::ensure!(said.contains(part), "{arguments:?}: {part} in:\n{said}");
            }
        }
        Ok(())
    })
    .unwrap();
}

/// A load balancer's Service with a NodePort and these fields of its spec.
fn balanced(spec: &Value) -> Service {
    let usual = json!({
        "type": "LoadBalancer", "clusterIPs": [V4], "ports": [{ "port": 80, "nodePort": NODE_PORT }],
    });
    let status = json!({ "loadBalancer": { "ingress": [{ "ip": BALANCED }] } });
    Service::new("web", &usual).patch(&json!({ "spec": spec, "status": status }))
}

/// The masqueraded and the other source addresses, by their words in JSON.
const MASQUERADED: [&str; 3] = ["not-a-pod-of-this-node", "policy-cluster", "this-node"];
const KEPT: [&str; 2] = ["pod-of-this-node", "policy-local"];

/// Compares what is said of a client at an address with what happens to it.
fn is_true_of(cluster: &Cluster, client: &Host, to: (&str, u16)) -> anyhow::Result<()> {
    let (ip, port) = to;
    let like: IpAddr = ip.parse()?;
    let source = client.address(like).to_string();
    let (_, said) = explain(cluster, &[&format!("{ip}:{port}"), "--from", &source, "-o", "json"]);
    let answer: Value = serde_json::from_str(&said)?;
    let explained = &answer["served"][0]["parts"][0]["addresses"][0]["client"];
    let admission = &explained["admission"];
    let is_let_in =
        admission == "everyone" || admission == "this-node" || admission["source-range"].is_string();
    let manner = Manner { patience: PATIENCE, ..Manner::default() };
    let answered = client.ask_in(manner, tcp(ip, port));
    anyhow::ensure!(answered.is_ok() == is_let_in, "{source} to {ip}:{port}: {explained:#}\n{answered:?}");
    let Ok(answered) = answered else { return Ok(()) };
    let words = explained["source"].as_str().unwrap_or_default();
    anyhow::ensure!(MASQUERADED.contains(&words) || KEPT.contains(&words), "{explained:#}");
    let is_itself = explained["may_reach_itself"] == true && answered.from == client.name;
    let is_masqueraded = MASQUERADED.contains(&words) || is_itself;
    let seen_as_itself = answered.seen_as.to_string() == source;
    // The node masquerades its own connections to an address of its own.
    anyhow::ensure!(
        client.name == "node" || seen_as_itself != is_masqueraded,
        "{source} to {ip}:{port}, seen as {}: {explained:#}",
        answered.seen_as
    );
    Ok(())
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_is_explained_of_a_client_is_what_happens_to_it() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let at_pods = |pods: Vec<Endpoint>, spec: Value| balanced(&spec).endpoints(pods);
    for service in [
        at_pods(vec![here(1), here(2)], json!({})),
        at_pods(vec![here(1)], json!({ "externalTrafficPolicy": "Local" })),
        at_pods(vec![elsewhere(2)], json!({ "externalTrafficPolicy": "Local" })),
        at_pods(vec![here(1)], json!({ "loadBalancerSourceRanges": ["192.168.50.0/24"] })),
        at_pods(vec![here(1)], json!({ "loadBalancerSourceRanges": ["10.244.0.0/16", "198.51.100.0/24"] })),
    ] {
        cluster.apply(&service);
        let lab = &cluster.lab;
        for client in [&lab.client, &lab.pods[0], &lab.node] {
            for to in [(V4, 80), (BALANCED, 80), (NODE_IP, NODE_PORT)] {
                eventually("it is explained", || is_true_of(&cluster, client, to)).unwrap();
            }
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_client_outside_the_source_ranges_sees_them_as_the_service_writes_them() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    cluster.write(&balanced(&json!({ "loadBalancerSourceRanges": ["198.51.100.0/24"] })).endpoints([1]));
    let expected = [
        "default/web\n",
        "load balancer, externalTrafficPolicy Cluster, only from 198.51.100.0/24\n",
        "192.168.50.2 is dropped: it is in no range of spec.loadBalancerSourceRanges\n",
        "used, default/web-ipv4",
    ];
    both_say(&cluster, &[&format!("{BALANCED}:80"), "--from", "192.168.50.2"], &[], 0, &expected);
    let by_name = ["192.168.50.2 is let in; masqueraded: not a pod of this node\n", expected[2]];
    both_say(&cluster, &["svc/web", "--from", "192.168.50.2"], &[], 0, &by_name);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_node_port_outside_node_port_addresses_names_the_service_and_where_it_is_served() {
    const FLAGS: [&str; 1] = ["--nodeport-addresses=10.244.0.0/16"];
    let mut cluster = Cluster::without_daemon(1);
    cluster.write(&balanced(&json!({})).endpoints([1]));
    cluster.restart(&[&[NO_PERIOD], &FLAGS[..]].concat());
    let elsewhere = "30080 is the NodePort of default/web: --nodeport-addresses leaves the address out; this node \
                     serves NodePorts at 10.244.1.1\n";
    both_say(&cluster, &[&format!("{NODE_IP}:{NODE_PORT}")], &FLAGS, 1, &[elsewhere]);
    both_say(&cluster, &["30080"], &FLAGS, 0, &["TCP 10.244.1.1:30080  NodePort", "used, default/web-ipv4"]);
    both_say(&cluster, &[":30081"], &FLAGS, 1, &["no Service has the NodePort 30081\n"]);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn an_address_says_why_no_service_is_served_there() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let spec = json!({ "clusterIPs": [V4, V6], "externalIPs": [NODE_IP], "ports": [{ "port": 80 }] });
    cluster.write_manifest(
        "node",
        &json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node" },
            "status": { "addresses": [{ "type": "InternalIP", "address": NODE_IP }] },
        }),
    );
    cluster.write(&Service::new("web", &spec).endpoints([1]));
    let refused = "refused: default/web: spec.externalIPs: 192.168.50.1 is not served: it is a node's IP";
    both_say(&cluster, &[&format!("{NODE_IP}:80")], &[], 1, &[refused]);
    let rejected = "no Service is served at port 81 there: this node rejects connections to it; there are\n";
    let there = [rejected, &format!("  TCP {V4}:80  ClusterIP of default/web\n")];
    both_say(&cluster, &[&format!("{V4}:81")], &[], 1, &there);
    both_say(&cluster, &[&format!("[{V6}]:80")], &[], 0, &["default/web\n", "ClusterIP"]);
    let pod = cluster.pod_address(1, V4.parse().unwrap());
    let used = format!("endpoint: {pod} of default/web, default/web-ipv4: used\n");
    both_say(&cluster, &[&pod.ip().to_string()], &[], 0, &[&used]);
    both_say(&cluster, &["198.51.100.1:80"], &[], 1, &["no Service is served at port 80 there\n"]);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn typos_of_selector_port_and_name_lead_to_the_next_step() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let named = |name: &str, port: &str| {
        let spec = json!({ "clusterIPs": [V4], "ports": [{ "name": port, "port": 80 }] });
        Service::new(name, &spec)
    };
    cluster.write(&named("web", "http").endpoints([0_usize; 0]));
    let empty = "EndpointSlice default/web-ipv4 has no endpoint: no pod matches spec.selector";
    both_say(&cluster, &["default/web"], &[], 0, &[empty, "kubectl -n default describe service web\n"]);

    let mut manifest = named("web", "http").endpoints([1]).manifest(&cluster.lab);
    let items = manifest["items"].as_array_mut().unwrap();
    items[1]["ports"][0]["name"] = json!("htp");
    cluster.write_manifest("web", &manifest);
    both_say(
        &cluster,
        &["default/web"],
        &[],
        0,
        &["default/web-ipv4: has no port of this name and protocol\n"],
    );

    manifest["items"].as_array_mut().unwrap().truncate(1);
    cluster.write_manifest("web", &manifest);
    let none = "no EndpointSlice of IPv4 belongs to the Service: kubectl -n default get endpointslices -l \
                kubernetes.io/service-name=web\n";
    both_say(&cluster, &["-n", "default", "web"], &[], 0, &[none]);
    both_say(&cluster, &["default/wep"], &[], 1, &["did you mean default/web?\n"]);
    both_say(&cluster, &["shop/web"], &[], 1, &["did you mean default/web?\n"]);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_cannot_be_asked_is_refused_in_one_line() {
    let cluster = Cluster::start(0, &[NO_PERIOD]);
    for (arguments, complaint) in [
        (&["unknown"][..], "kube-ipvs: invalid name \"unknown\": expected NAMESPACE/NAME"),
        (&["default/web", "-n", "shop"], "kube-ipvs: default/web is not in the namespace shop\n"),
        (&["10.96.0.10", "--from", "192.0.2.1"], "kube-ipvs: the address has no port: expected IP:PORT"),
        (&["70000"], "invalid port \"70000\": expected a number from 1 to 65535"),
        (&["10.96.0.10:80/icmp"], "invalid protocol \"icmp\": expected tcp, udp or sctp"),
        (&["10.96.0.10:80", "--from", "client"], "invalid value 'client' for '--from <IP>'"),
    ] {
        let (code, said) = explain(&cluster, arguments);
        assert!(code == Some(64) && said.contains(complaint), "{arguments:?}: {code:?} {said}");
    }
}
