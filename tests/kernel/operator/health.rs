//! Health checks, as load balancers, kubelets and autoscalers use them.

use std::{
    fs,
    net::{IpAddr, SocketAddr, TcpListener},
    path::Path,
};

use anyhow::ensure;
use serde_json::{Value, json};
use testkit::{
    daemon::{Daemon, binary, eventually},
    lab::{Connection, Host, Page},
};

use crate::support::cluster::{self, Cluster, NO_PERIOD, Service, at, elsewhere, here};

/// The node, as its client reaches it.
const NODE: [&str; 2] = ["192.168.50.1", "fd00:50::1"];

/// Where the load balancer's address is.
const BALANCER: [&str; 2] = ["203.0.113.20", "2001:db8::20"];

/// Waits until an address answers with this status.
fn answers(host: &Host, server: SocketAddr, path: &str, status: u16) -> Page {
    eventually(&format!("{server}{path} answers {status}"), || {
        let page = host.get(server, path)?;
        ensure!(page.status == status, "{page:?}");
        Ok(page)
    })
    .unwrap()
}

/// Waits until an address answers for so many endpoints.
fn weighs(host: &Host, server: SocketAddr, weight: usize) {
    let page = eventually(&format!("{server} has the weight {weight}"), || {
        let page = host.get(server, "/")?;
        let said = page.header("x-load-balancing-endpoint-weight");
        ensure!(said == Some(&weight.to_string()), "{page:?}");
        Ok(page)
    })
    .unwrap();
    assert_eq!(page.status, if weight > 0 { 200 } else { 503 }, "{page:?}");
    let body: Value = serde_json::from_str(&page.body).unwrap();
    let service = json!({ "namespace": "default", "name": "web" });
    assert_eq!(body, json!({ "service": service, "localEndpoints": weight, "serviceProxyHealthy": true }));
}

/// Waits until no program listens there.
fn is_closed(host: &Host, server: SocketAddr) {
    eventually(&format!("{server} is closed"), || {
        let answer = host.get(server, "/").map_err(|error| format!("{error:#}"));
        ensure!(answer.as_ref().is_err_and(|error| error.contains("refused")), "{answer:?}");
        Ok(())
    })
    .unwrap();
}

/// Lets a program of the node have a port.
fn occupy(node: &Host, port: u16) -> TcpListener {
    node.inside(move || TcpListener::bind(("::", port))).unwrap().unwrap()
}

/// A Service of both families with a load balancer that asks at this port.
fn web(port: u16) -> Service {
    let spec = json!({
        "type": "LoadBalancer",
        "clusterIPs": [cluster::V4, cluster::V6],
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": port,
        "ports": [{ "port": 80 }],
    });
    let ingress = BALANCER.map(|ip| json!({ "ip": ip }));
    Service::new("web", &spec).patch(&json!({ "status": { "loadBalancer": { "ingress": ingress } } }))
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn healthz_and_livez_answer_at_every_address_of_the_node() {
    let cluster = Cluster::start(1, &[]);
    let client = &cluster.lab.client;
    cluster.apply(&web(32_000).endpoints([1]));
    for ip in NODE {
        let healthz = answers(client, at(ip, 10_256), "/healthz", 200);
        assert_eq!(healthz.header("content-type"), Some("application/json"));
        assert_eq!(healthz.header("x-content-type-options"), Some("nosniff"));
        let said: Value = serde_json::from_str(&healthz.body).unwrap();
        assert_eq!((&said["healthy"], &said["nodeEligible"]), (&json!(true), &json!(true)));
        for family in ["IPv4", "IPv6"] {
            assert_eq!(said["status"][family]["healthy"], json!(true), "{said}");
        }
        let livez: Value =
            serde_json::from_str(&answers(client, at(ip, 10_256), "/livez", 200).body).unwrap();
        assert_eq!((&livez["healthy"], livez.get("nodeEligible")), (&json!(true), None));
        answers(client, at(ip, 10_256), "/other", 404);
    }
    // The Node says that the autoscaler is about to take it away.
    cluster.write_manifest(
        "node",
        &json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": { "name": "node" },
            "spec": { "taints": [{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }] },
        }),
    );
    answers(client, at(NODE[0], 10_256), "/healthz", 503);
    answers(client, at(NODE[0], 10_256), "/livez", 200);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_daemon_without_services_yet_is_live_not_ready_and_its_status_shows_no_zeros() {
    let mut cluster = Cluster::start(1, &[]);
    let service = Service::tcp(cluster::V4).endpoints([1]);
    cluster.apply(&service);
    answers(&cluster.lab.client, at(NODE[0], 10_256), "/readyz", 200);
    cluster.stop();

    // No program listens there.
    let daemon = Daemon::start(&cluster.lab.node, &["--master=http://127.0.0.1:1"]).unwrap();
    answers(&cluster.lab.client, at(NODE[0], 10_256), "/readyz", 503);
    answers(&cluster.lab.client, at(NODE[0], 10_256), "/livez", 200);
    let status = eventually("the API server was asked", || {
        let status = daemon.ask(&cluster.lab.node, "status")?;
        ensure!(status.contains("problem:         API server: nodes not watched for "), "{status}");
        Ok(status)
    })
    .unwrap();
    for line in [
        "synced:          no, waiting for the Node node and its IPs for ",
        "virtual servers: not known yet; what was programmed before stays: `kube-ipvs list` shows it\n",
    ] {
        assert!(status.contains(line), "{line} in:\n{status}");
    }
    assert!(!status.contains("real servers:") && !status.contains("VIPs:"), "{status}");
    cluster.lab.client.ask(service.address()).unwrap();

    let mut resync = cluster.lab.node.command(&binary().unwrap().to_string_lossy());
    let resync = resync.arg("resync").arg("--control-socket").arg(daemon.socket()).output().unwrap();
    let said = String::from_utf8(resync.stderr).unwrap();
    assert!(
        said.contains("the desired state may be out of date: API server: nodes not watched for "),
        "{said}"
    );
    assert_eq!(resync.status.code(), Some(1), "there is nothing to sync to");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_node_that_is_about_to_go_says_so_first_and_forwards_to_the_last() {
    let mut cluster = Cluster::start(1, &[]);
    let web = web(32_000).endpoints([1]);
    cluster.apply(&web);
    let balancer = at(BALANCER[0], 80);
    let mut connection = cluster.lab.client.connect(balancer).unwrap();
    let node = |spec: Value| json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node" }, "spec": spec });
    let forwards = |cluster: &Cluster, connection: &mut Connection| {
        connection.still_works().unwrap();
        for address in [balancer, web.address()] {
            cluster.lab.client.ask(address).unwrap();
        }
    };
    // The autoscaler takes it away: load balancers ask here, and stop sending.
    let taints = json!([{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }]);
    cluster.write_manifest("node", &node(json!({ "taints": taints })));
    answers(&cluster.lab.client, at(NODE[0], 10_256), "/healthz", 503);
    forwards(&cluster, &mut connection);
    // The pod is ended with the node: nothing answers that it is healthy, and the kernel goes on.
    cluster.stop();
    for port in [10_256, 32_000] {
        is_closed(&cluster.lab.client, at(NODE[0], port));
    }
    forwards(&cluster, &mut connection);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_port_that_another_program_has_is_waited_for_and_traffic_is_not() {
    let mut cluster = Cluster::without_daemon(1);
    let taken = occupy(&cluster.lab.node, 10_256);
    let service = Service::tcp(cluster::V4).endpoints([1]);
    cluster.write(&service);
    cluster.restart(&[]);
    cluster.apply(&service);
    eventually("the log says so", || {
        let log = cluster.daemon().log();
        ensure!(log.contains("for health checks (is kube-proxy still running?)"), "{log}");
        Ok(())
    })
    .unwrap();
    let problem =
        "problem:         cannot listen at 0.0.0.0:10256 for health checks (is kube-proxy still running?): ";
    let status = || cluster.daemon().ask(&cluster.lab.node, "status").unwrap();
    assert!(status().contains(problem), "{}", status());
    drop(taken);
    answers(&cluster.lab.client, at(NODE[0], 10_256), "/healthz", 200);
    assert!(!status().contains("problem:"), "{}", status());
    let log = cluster.daemon().log();
    assert_eq!(log.matches("is kube-proxy still running?").count(), 1, "{log}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn with_bind_address_hard_fail_a_port_that_another_program_has_is_the_end() {
    let cluster = Cluster::without_daemon(0);
    let _taken = occupy(&cluster.lab.node, 10_256);
    let hard_fail = ["--bind-address-hard-fail"];
    let daemon = Daemon::with_manifests(&cluster.lab.node, cluster.manifests.path(), &hard_fail).unwrap();
    let (code, log) = daemon.ended().unwrap();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("is kube-proxy still running?") && log.contains("0.0.0.0:10256"), "{log}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_health_check_port_reports_ready_endpoints_and_moves_with_its_service() {
    // Nothing happens by the clock: a pod that begins to terminate, and stays a real server, is counted at once.
    let cluster = Cluster::start(3, &[NO_PERIOD]);
    let client = &cluster.lab.client;
    let (port, moved) = (32_000, 32_001);
    let weigh = |port, weight| {
        for ip in NODE.into_iter().chain(BALANCER) {
            weighs(client, at(ip, port), weight);
        }
    };
    for (endpoints, weight) in [
        (vec![], 0),
        (vec![here(1)], 1),
        (vec![here(1), here(2), elsewhere(3)], 2),
        (vec![here(1), here(2).terminating()], 1),
        (vec![here(1).terminating()], 0),
        (vec![elsewhere(3)], 0),
        (vec![here(2)], 1),
    ] {
        cluster.write(&web(port).endpoints(endpoints));
        weigh(port, weight);
    }
    cluster.write(&web(moved).endpoints([2]));
    weigh(moved, 1);
    is_closed(client, at(NODE[0], port));
    // Another program can have the old one now.
    drop(occupy(&cluster.lab.node, port));
    cluster.delete(&web(moved));
    for ip in NODE {
        is_closed(client, at(ip, moved));
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn node_port_addresses_restrict_health_check_ports_and_new_addresses_are_followed() {
    let ranges = "--nodeport-addresses=192.168.50.0/24,fd00:50::/64";
    let cluster = Cluster::start(1, &[NO_PERIOD, ranges]);
    let lab = &cluster.lab;
    let port = 32_000;
    cluster.apply(&web(port).endpoints([1]));
    for ip in NODE {
        weighs(&lab.client, at(ip, port), 1);
    }
    // The node's addresses towards the pod.
    for ip in NODE.map(|like| lab.pods[0].gateway(like.parse::<IpAddr>().unwrap())) {
        is_closed(&lab.client, SocketAddr::new(ip, port));
    }
    let another = "192.168.50.77";
    // A socket that listens there, as the kernel writes it.
    let listens = "4D32A8C0:7D00 00000000:0000 0A";
    let sockets = || lab.node.inside(|| fs::read_to_string("/proc/thread-self/net/tcp")).unwrap().unwrap();
    lab.node.ip(&format!("addr add {another}/24 dev eth0")).unwrap();
    weighs(&lab.client, at(another, port), 1);
    assert!(sockets().contains(listens), "{}", sockets());
    lab.node.ip(&format!("addr del {another}/24 dev eth0")).unwrap();
    eventually("its socket is gone", || {
        ensure!(!sockets().contains(listens), "{}", sockets());
        Ok(())
    })
    .unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_health_check_port_that_another_program_has_is_opened_when_it_is_free() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let port = 32_000;
    let taken = occupy(&cluster.lab.node, port);
    cluster.apply(&web(port).endpoints([1]));
    let line = format!("node node failed to start healthcheck \"default/web\" on port {port}");
    eventually("the log says so", || {
        let log = cluster.daemon().log();
        ensure!(log.replace('\\', "").contains(&line), "{log}");
        Ok(())
    })
    .unwrap();
    drop(taken);
    for ip in NODE {
        weighs(&cluster.lab.client, at(ip, port), 1);
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_script_learns_whether_all_is_programmed_and_can_wait_for_it() {
    let mut cluster = Cluster::without_daemon(1);
    let node = &cluster.lab.node;
    let ask = |node: &Host, socket: &Path, how: &str| {
        let words = ["status", how, "--control-socket", &socket.to_string_lossy()];
        node.run(&binary().unwrap().to_string_lossy(), &words).map_err(|error| format!("{error:#}"))
    };
    let error = ask(node, Path::new("/nowhere"), "--wait=1s").unwrap_err();
    assert!(error.contains("no daemon answers at /nowhere"), "{error}");

    // No program listens there.
    let daemon = Daemon::start(node, &["--master=http://127.0.0.1:1"]).unwrap();
    let unlisted = eventually("the daemon answers", || {
        let said = ask(node, daemon.socket(), "--wait=1s").unwrap_err();
        ensure!(!said.contains("no daemon answers"), "{said}");
        Ok(said)
    })
    .unwrap();
    assert!(unlisted.contains("the check failed: NOT in sync: waiting for the Node node"), "{unlisted}");
    assert!(unlisted.contains("kube-ipvs:"), "the status is printed too: {unlisted}");
    daemon.kill().unwrap();

    cluster.write(&Service::tcp(cluster::V4).endpoints([1]));
    cluster.restart(&[]);
    for how in ["--wait", "--check"] {
        let status = ask(&cluster.lab.node, cluster.daemon().socket(), how).unwrap();
        assert!(status.contains("synced:          yes"), "{how}: {status}");
    }
}
