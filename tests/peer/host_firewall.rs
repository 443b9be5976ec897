//! A host whose own firewall drops: the same packets pass beside kube-proxy and beside kube-ipvs.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use anyhow::ensure;
use serde_json::{Value, json};
use testkit::{
    control_plane::ControlPlane,
    daemon::{Daemon, eventually_within},
    kube_proxy::{self, KubeProxy},
    lab::{Host, Lab},
};

use crate::support::peer::PATIENCE;

/// How long nothing must be heard of a packet that is dropped.
const SILENCE: Duration = Duration::from_millis(2500);

const POD_PORT: u16 = 8080;
const SSH: u16 = 22;
const NODE_PORT: u16 = 30_779;
const HEALTH_CHECKS: u16 = 30_780;
const VIPS: [&str; 2] = ["10.96.7.9", "fd00:10:96::779"];
const LOAD_BALANCERS: [&str; 2] = ["203.0.113.79", "2001:db8::79"];

/// What a host may have, for iptables and ip6tables, and how many of the packets pass then. The rules of its proxy
/// come before.
const HOSTS: [(&[&str], usize); 6] = [
    (&[], 28),
    // But for what is sent to the pod itself.
    (&["-P FORWARD DROP"], 24),
    (&["-A FORWARD -j REJECT"], 24),
    (&["-P FORWARD DROP", MARKED], 28),
    // What the node sends, and health checks.
    (&["-P FORWARD DROP", "-P INPUT DROP", LOOPBACK, ANSWERS, ICMPV6], 8),
    (&["-A FORWARD -j DROP", LOOPBACK, ANSWERS, ICMPV6, "-A INPUT -j REJECT"], 8),
];
/// Another program's mark, which asks for masquerading.
const MARKED: &str = "-t mangle -A PREROUTING -p tcp --dport 8080 -j MARK --or-mark 0x4000";
const LOOPBACK: &str = "-A INPUT -i lo -j ACCEPT";
const ANSWERS: &str = "-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT";
/// Neighbours are to be found.
const ICMPV6: &str = "-A INPUT -p 58 -j ACCEPT";

fn iptables(node: &Host, command: &str) {
    for iptables in ["iptables", "ip6tables"] {
        node.run(iptables, &command.split(' ').collect::<Vec<_>>()).unwrap();
    }
}

fn close(node: &Host, host: &[&str]) {
    for command in host {
        iptables(node, command);
    }
}

fn open(node: &Host, host: &[&str]) {
    for command in host.iter().rev() {
        let undo = if command.starts_with("-P ") {
            command.replace("DROP", "ACCEPT")
        } else {
            command.replacen("-A ", "-D ", 1)
        };
        iptables(node, &undo);
    }
}

/// A Service that is reached in every way, and that load balancers ask about. Its endpoint is a pod of the node.
fn write_service(server: &ControlPlane, pod: &Host) {
    let ingress = LOAD_BALANCERS.map(|ip| json!({ "ip": ip }));
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "closed", "namespace": "default" },
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": VIPS[0],
            "clusterIPs": VIPS,
            "ipFamilyPolicy": "RequireDualStack",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": HEALTH_CHECKS,
            "ports": [{ "name": "http", "port": 80, "nodePort": NODE_PORT }],
        },
        "status": { "loadBalancer": { "ingress": ingress } },
    });
    let slice = |family: &str, address: IpAddr| {
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("closed-{}", family.to_lowercase()),
                "namespace": "default",
                "labels": { "kubernetes.io/service-name": "closed" },
            },
            "addressType": family,
            "ports": [{ "name": "http", "port": POD_PORT }],
            "endpoints": [{ "addresses": [address], "nodeName": "node" }],
        })
    };
    let objects: [Value; 3] = [service, slice("IPv4", pod.ipv4.into()), slice("IPv6", pod.ipv6.into())];
    for object in objects {
        server.apply(&object).unwrap();
    }
}

/// A node, with a program of its own, and two pods of which the Service has the first.
fn lab(server: &ControlPlane) -> Lab {
    let lab = Lab::new(2, POD_PORT).unwrap();
    lab.node.reach(server.address().unwrap()).unwrap();
    lab.node.serve(SSH).unwrap();
    lab
}

/// Who is asked by whom, and what comes of it, one a line.
fn outcomes(lab: &Lab) -> Vec<String> {
    let (node, client, [pod, another]) = (&lab.node, &lab.client, &lab.pods[..]) else { panic!("two pods") };
    let mut questions = Vec::new();
    for (vip, load_balancer) in VIPS.into_iter().zip(LOAD_BALANCERS) {
        let [vip, load_balancer]: [IpAddr; 2] = [vip, load_balancer].map(|ip| ip.parse().unwrap());
        let (outside, inside) = (client.gateway(vip), another.gateway(vip));
        questions.extend([
            (node, "ClusterIP", vip, 80),
            (client, "ClusterIP", vip, 80),
            (pod, "ClusterIP", vip, 80),
            (another, "ClusterIP", vip, 80),
            (client, "load balancer", load_balancer, 80),
            (another, "load balancer", load_balancer, 80),
            (client, "NodePort", outside, NODE_PORT),
            (another, "NodePort", inside, NODE_PORT),
            (client, "health check port", outside, HEALTH_CHECKS),
            (another, "health check port", inside, HEALTH_CHECKS),
            (client, "health check port", load_balancer, HEALTH_CHECKS),
            (client, "the node's own program", outside, SSH),
            (client, "the pod itself", pod.address(vip), POD_PORT),
            (another, "the pod itself", pod.address(vip), POD_PORT),
        ]);
    }
    thread::scope(|scope| {
        let asked = questions.into_iter().map(|(from, what, ip, port)| {
            scope.spawn(move || format!("{} → {what} {ip}: {}", from.name, outcome(from, (ip, port).into())))
        });
        let asked: Vec<_> = asked.collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    })
}

fn outcome(from: &Host, to: SocketAddr) -> String {
    match from.inside(move || TcpStream::connect_timeout(&to, SILENCE).map(drop)).unwrap() {
        Ok(()) => "connected".to_owned(),
        Err(error) if error.kind() == ErrorKind::TimedOut => "no answer".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
#[ignore = "needs root, ip_vs, kube-apiserver and kube-proxy: cargo xtask test --tier peer"]
fn behind_a_closed_iptables_the_same_packets_pass_as_with_kube_proxy() {
    let Some(server) = kube_proxy::control_plane().unwrap() else { return };
    let (theirs, ours) = (lab(&server), lab(&server));
    let addresses = [theirs.node.ipv4.into(), theirs.node.ipv6.into()];
    server.create_node("node", &addresses, None, &[]).unwrap();
    write_service(&server, &theirs.pods[0]);
    let kubeconfig = server.proxy_kubeconfig();
    let arguments = ["--kubeconfig", &*kubeconfig.to_string_lossy()];
    let _kube_proxy = KubeProxy::start(&theirs.node, &arguments).unwrap();
    let _kube_ipvs = Daemon::start(&ours.node, &arguments).unwrap();
    for (who, lab) in [("kube-proxy", &theirs), ("kube-ipvs", &ours)] {
        eventually_within(PATIENCE, &format!("{who} serves everything"), || {
            let left: Vec<_> =
                outcomes(lab).into_iter().filter(|line| !line.ends_with(": connected")).collect();
            ensure!(left.is_empty(), "{left:#?}");
            Ok(())
        })
        .unwrap();
    }
    for (host, passing) in HOSTS {
        close(&theirs.node, host);
        close(&ours.node, host);
        // Where the machine has much to do, an answer may come after more than the silence.
        let expected = eventually_within(PATIENCE, "so many packets pass beside kube-proxy", || {
            let seen = outcomes(&theirs);
            let passed = seen.iter().filter(|line| line.ends_with(": connected")).count();
            ensure!(passed == passing, "{host:?}: {passed}: {seen:#?}");
            Ok(seen)
        })
        .unwrap();
        eventually_within(PATIENCE, "the same packets pass", || {
            let seen = outcomes(&ours);
            let pairs = expected.iter().zip(&seen).filter(|(one, other)| one != other);
            let others: Vec<_> = pairs.map(|(one, other)| format!("{one}, but here {other}")).collect();
            ensure!(others.is_empty(), "{host:?}: {others:#?}");
            Ok(())
        })
        .unwrap();
        open(&theirs.node, host);
        open(&ours.node, host);
    }
    for slice in ["closed-ipv4", "closed-ipv6"] {
        server.delete::<k8s_openapi::api::discovery::v1::EndpointSlice>("default", slice).unwrap();
    }
    server.delete::<k8s_openapi::api::core::v1::Service>("default", "closed").unwrap();
}
