//! Failing endpoints that get no new connections, and the clients that had already been sent there.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use ipvs::ServiceAddress;
use serde_json::json;
use testkit::{
    daemon::{binary, eventually},
    lab::{Host, Manner},
};

use crate::support::cluster::{Cluster, NO_PERIOD, POD_PORT, Service, V4, V6, tcp};

/// No client waits for longer, unless nothing rescues it.
const PATIENCE: Duration = Duration::from_secs(20);

/// IPVS counts every two seconds, and the first tick has answers from before. A client asks again after a second, and
/// then after two; the first question after the ejection is lost.
const RESCUED: Duration = Duration::from_secs(12);

/// A Service with this annotation.
fn ejecting(service: Service, what: &str) -> Service {
    service.patch(&json!({ "metadata": { "annotations": { "kube-ipvs.io/eject": what } } }))
}

/// A Service of this name at an address of each family, with a scheduler.
fn scheduled(name: &str, last: u16, scheduler: &str) -> Service {
    let spec = json!({
        "clusterIPs": [format!("10.96.0.{last}"), format!("fd00:10:96::{last:x}")],
        "ports": [{ "port": 80 }],
    });
    let annotations = json!({ "kube-ipvs.io/scheduler": scheduler });
    ejecting(Service::new(name, &spec), "silent")
        .patch(&json!({ "metadata": { "annotations": annotations } }))
}

/// Lets a pod drop what comes to its port, as if its node had lost power.
fn silence(cluster: &Cluster, pod: usize) {
    let rule = format!("add rule inet f i tcp dport {POD_PORT} drop");
    for command in ["add table inet f", "add chain inet f i { type filter hook input priority 0; }", &rule] {
        cluster.lab.pods[pod - 1].run("nft", &[command]).unwrap();
    }
}

fn let_answer(cluster: &Cluster, pod: usize) {
    cluster.lab.pods[pod - 1].run("nft", &["flush", "ruleset"]).unwrap();
}

/// A client connects to each address every half second, for this long. Returns how long the slowest took, or the first
/// failure.
fn clients(host: &Host, at: &[ServiceAddress], lasting: Duration) -> Result<Duration> {
    let manner = Manner { patience: PATIENCE, ..Manner::default() };
    let begin = Instant::now();
    thread::scope(|scope| {
        let mut asked = Vec::new();
        while begin.elapsed() < lasting {
            for service in at {
                asked.push(scope.spawn(move || {
                    let begin = Instant::now();
                    host.ask_in(manner, *service).map(|_| begin.elapsed())
                }));
            }
            thread::sleep(Duration::from_millis(500));
        }
        let mut slowest = Duration::ZERO;
        for client in asked {
            slowest = slowest.max(client.join().expect("a client panicked")?);
        }
        Ok(slowest)
    })
}

/// The weight of a pod at each of these addresses.
fn weighs(cluster: &Cluster, at: &[ServiceAddress], pod: usize, check: impl Fn(u32) -> bool) {
    cluster.shows(&format!("another weight of pod {pod}"), |table| {
        at.iter().all(|address| {
            let pod = cluster.pod_address(pod, address.ip);
            let server = table.get(address).and_then(|server| server.real_servers.get(&pod));
            server.is_some_and(|server| check(server.weight))
        })
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn clients_of_a_silent_endpoint_are_served_by_others() {
    let mut cluster = Cluster::start(4, &[NO_PERIOD]);
    let schedulers = ["rr", "wrr", "lc", "wlc", "sed", "nq", "mh"];
    let mut addresses = Vec::new();
    for (last, scheduler) in (10..).zip(schedulers) {
        let service = scheduled(scheduler, last, scheduler);
        cluster.write(&service.endpoints([1, 2, 3, 4]));
        addresses.push(tcp(&format!("10.96.0.{last}"), 80));
        addresses.push(tcp(&format!("fd00:10:96::{last:x}"), 80));
    }
    let everywhere = json!({
        "type": "LoadBalancer",
        "clusterIPs": [V4, V6],
        "ports": [{ "port": 81, "nodePort": 30_081 }],
    });
    let status = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] } } });
    let everywhere = ejecting(Service::new("everywhere", &everywhere), "silent").patch(&status);
    cluster.write(&everywhere.endpoints([1, 2, 3, 4]));
    let node = cluster.lab.node.address(V4.parse().unwrap()).to_string();
    addresses.extend([tcp("192.0.2.1", 81), tcp(&node, 30_081)]);
    weighs(&cluster, &addresses, 2, |weight| weight > 0);
    clients(&cluster.lab.client, &addresses, Duration::from_secs(3)).expect("all pods answer");

    silence(&cluster, 2);
    let slowest =
        clients(&cluster.lab.client, &addresses, Duration::from_secs(8)).expect("each client is served");
    println!("slowest client: {slowest:?}");
    assert!(slowest < RESCUED, "{slowest:?}");
    weighs(&cluster, &addresses, 2, |weight| weight == 0);
    for pod in [1, 3, 4] {
        weighs(&cluster, &addresses, pod, |weight| weight > 0);
    }
    let says = |command: &[&str], words: &str| {
        let mut asked = cluster.lab.node.command(&binary().unwrap().to_string_lossy());
        asked.args(command).arg("--control-socket").arg(cluster.daemon().socket());
        let text = String::from_utf8(asked.output().unwrap().stdout).unwrap();
        assert!(text.contains(words), "{text}");
    };
    says(&["explain", "default/rr"], ", weight 0: ejected for ");
    says(&["status"], "endpoints ejected");
    says(&["status"], "draining:        0");
    says(&["history", "default/rr"], "gets no new connections at");
    cluster.resync_writes_nothing();
    assert!(cluster.daemon().log().contains("gets no new connections: it does not answer"));

    // A restart forgets it, and does not take it for a drain.
    cluster.restart(&[NO_PERIOD]);
    weighs(&cluster, &addresses, 2, |weight| weight > 0);
    cluster.resync_writes_nothing();

    let_answer(&cluster, 2);
    eventually("all pods have their whole weight", || {
        clients(&cluster.lab.client, &addresses, Duration::from_secs(1))?;
        let text = cluster.daemon().ask(&cluster.lab.node, "status")?;
        ensure!(!text.contains("ejected"), "{text}");
        Ok(())
    })
    .unwrap();
}
