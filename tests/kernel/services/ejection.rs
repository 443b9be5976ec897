//! Failing endpoints that get no new connections, and the clients that had already been sent there.

mod causes;
mod places;

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use ipvs::ServiceAddress;
use serde_json::json;
use testkit::{
    daemon::{binary, eventually},
    lab::{Host, Manner},
};

use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4, V6, tcp};

/// No client waits for longer, unless nothing rescues it.
const PATIENCE: Duration = Duration::from_secs(40);

/// A Service with this annotation.
fn ejecting(service: Service, what: &str) -> Service {
    service.patch(&json!({ "metadata": { "annotations": { "kube-ipvs.io/eject": what } } }))
}

/// A Service of this name at an address of each family.
fn named(name: &str, last: u16) -> Service {
    let vips = addresses(last).map(|address| address.ip);
    Service::new(name, &json!({ "clusterIPs": vips, "ports": [{ "port": 80 }] }))
}

/// The addresses of such a Service.
fn addresses(last: u16) -> [ServiceAddress; 2] {
    [tcp(&format!("10.96.0.{last}"), 80), tcp(&format!("fd00:10:96::{last:x}"), 80)]
}

/// The same with a scheduler.
fn scheduled(name: &str, last: u16, scheduler: &str) -> Service {
    let annotations = json!({ "kube-ipvs.io/scheduler": scheduler });
    ejecting(named(name, last), "silent").patch(&json!({ "metadata": { "annotations": annotations } }))
}

/// A client connects to each address every half second, for this long. Returns how long the slowest took.
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
        let times =
            asked.into_iter().map(|client| client.join().unwrap_or_else(|_| bail!("a client panicked")));
        times.collect::<Result<Vec<_>>>().map(|times| times.into_iter().max().unwrap_or_default())
    })
}

/// What a command prints.
fn printed(cluster: &Cluster, command: &[&str]) -> String {
    let mut asked = cluster.lab.node.command(&binary().unwrap().to_string_lossy());
    asked.args(command).arg("--control-socket").arg(cluster.daemon().socket());
    String::from_utf8(asked.output().unwrap().stdout).unwrap()
}

/// Lets a client ask at these addresses until the daemon knows their endpoints, and a pod drop what comes to it by a
/// protocol, as if its node had lost power. Then clients ask for some seconds. Returns how long the slowest took.
fn falls_silent(cluster: &Cluster, pods: &[usize], host: &Host, at: &[ServiceAddress]) -> Result<Duration> {
    clients(host, at, Duration::from_secs(3))?;
    for pod in pods {
        for protocol in ["tcp", "sctp"] {
            cluster.answers_by(*pod, protocol, "drop");
        }
    }
    clients(host, at, Duration::from_secs(5))
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
    let mut all = Vec::new();
    for (last, scheduler) in (10..).zip(schedulers) {
        let service = scheduled(scheduler, last, scheduler);
        cluster.write(&service.endpoints([1, 2, 3, 4]));
        all.extend(addresses(last));
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
    all.extend([tcp("192.0.2.1", 81), tcp(&node, 30_081)]);
    weighs(&cluster, &all, 2, |weight| weight > 0);
    clients(&cluster.lab.client, &all, Duration::from_secs(3)).unwrap();

    cluster.answers_by(2, "tcp", "drop");
    let slowest = clients(&cluster.lab.client, &all, Duration::from_secs(8)).unwrap();
    println!("slowest client: {slowest:?}");
    let says = |command: &[&str], words: &str| {
        let text = printed(&cluster, command);
        assert!(text.contains(words), "{words}: {text}");
    };
    for ip in [V4, V6] {
        let pod = cluster.pod_address(2, ip.parse().unwrap());
        says(&["history", "default/rr"], &format!("endpoint {pod} gets no new connections at"));
        let log = cluster.daemon().log();
        assert!(
            log.contains(&format!("default/rr: TCP {pod} gets no new connections: it does not answer")),
            "{log}"
        );
    }
    says(&["status"], "draining:        0");

    // A restart forgets it, and does not take it for a drain.
    cluster.restart(&[NO_PERIOD]);
    weighs(&cluster, &all, 2, |weight| weight > 0);
    cluster.resync_writes_nothing();

    cluster.answers_again(2);
    eventually("all pods have their whole weight", || {
        clients(&cluster.lab.client, &all, Duration::from_secs(1))?;
        let text = cluster.daemon().ask(&cluster.lab.node, "status")?;
        ensure!(!text.contains("\nejected:"), "{text}");
        Ok(())
    })
    .unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn clients_that_are_bound_to_a_silent_endpoint_are_served_by_another() {
    let cluster = Cluster::start(4, &[NO_PERIOD]);
    let spec = json!({ "clusterIPs": [V4, V6], "ports": [{ "port": 80 }] });
    let bound = ejecting(Service::new("bound", &spec).affinity(10_800), "silent");
    cluster.write(&bound.endpoints([1, 2, 3, 4]));
    cluster.write(&scheduled("sh", 20, "sh").endpoints([1, 2, 3, 4]));
    let addresses = [tcp(V4, 80), tcp("10.96.0.20", 80)];
    weighs(&cluster, &addresses, 2, |weight| weight > 0);
    let manner = Manner { patience: PATIENCE, ..Manner::default() };
    for address in addresses {
        let ask = || cluster.lab.client.ask_in(manner, address).unwrap().from;
        let first = ask();
        assert_eq!(ask(), first, "bound");
        let pod = (1..=4).find(|number| cluster.names(&[*number]).contains(&first)).unwrap();
        cluster.answers_by(pod, "tcp", "drop");
        clients(&cluster.lab.client, &[address], Duration::from_secs(4)).unwrap();
        assert_ne!(ask(), first);
        cluster.answers_again(pod);
    }
}
