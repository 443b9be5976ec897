//! One tenant's costly changes: how long a neighbour, cluster DNS and another program that changes nf_tables wait
//! meanwhile.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use ipvs::{Ipvs as _, KernelIpvs, Protocol, ServiceAddress};
use serde_json::{Value, json};
use testkit::{
    kernel_baseline::{PORT, Size},
    lab::{Host, Lab},
    objects::{self, with},
};

use super::{
    api::{Api, Objects},
    case::{Binding, Program},
    endpoint_change::AT_ONCE,
    figures::{Figures, Waits},
    node::{Node, PATIENCE, Running},
};
use crate::statistics::Percentiles;

/// Between two changes of the same neighbour, and of the other program.
const PAUSE: Duration = Duration::from_millis(50);
/// How soon the daemon knows of a change; before that it is in sync without it.
const KNOWN_WITHIN: Duration = Duration::from_millis(300);
/// How long one change of the tenant may take.
const TENANT_PATIENCE: Duration = Duration::from_secs(900);
/// What another program does to nf_tables.
const TRANSACTION: &str = "add table ip another; delete table ip another";

/// Makes the tenant's changes, one after the other. The tenant has as many ports and endpoints as `size` says.
pub(super) fn measure(size: Size) -> Result<Figures> {
    let lab = Lab::new(0, PORT)?;
    let objects = beginning(&lab.node, size);
    let node = Node::with(lab, size, objects)?;
    let running = node.start(Program::KubeIpvs(Binding::Route), &[AT_ONCE])?;
    until_synced(&node, &running, Instant::now()).with_context(|| running.last_words())?;
    let changes = changes(size).into_iter().map(|(change, object)| {
        node.api.change(&object);
        waits(&node, &running, &change).with_context(|| format!("{change}: {}", running.last_words()))
    });
    Ok(Figures::Fairness(changes.collect::<Result<_>>()?))
}

/// What the cluster has before the tenant changes anything.
fn beginning(node: &Host, size: Size) -> Objects {
    let ranges = |name, last| restricted(name, last, 10 + last, size);
    Objects {
        node: objects::node(&[node.ipv4.into()], &["10.244.0.0/24"]),
        services: vec![
            DNS.service(1),
            NEIGHBOUR.service(1),
            LARGE.service(size.services),
            hashed(size, "a=1,b=1"),
            ranges("restricted", 1),
            ranges("restricted-too", 2),
            ranges("restricted-as-well", 3),
        ],
        slices: vec![DNS.moved(0), NEIGHBOUR.moved(0)],
    }
}

/// What the tenant changes, in this order: what it removes makes what it adds in the next two minutes slower.
fn changes(size: Size) -> Vec<(String, Value)> {
    let Size { services: ports, endpoints } = size;
    let (few, ranges) = (ports.div_ceil(4), 2 * endpoints);
    let restricted = |round| {
        let change = format!("replaces {ranges} source ranges, where two others have as many");
        (change, restricted("restricted", 1, round, size))
    };
    let real_servers = few * endpoints;
    let weighed = |weights| {
        (format!("changes the weights of {real_servers} real servers with `mh`"), hashed(size, weights))
    };
    let large = |verb, round| {
        (format!("{verb} {endpoints} endpoints of {ports} ports"), LARGE.slice(ports, endpoints, round))
    };
    vec![
        restricted(20),
        restricted(21),
        (format!("adds {real_servers} real servers with `mh`"), HASHED.slice(few, endpoints, 127)),
        weighed("a=2,b=1"),
        weighed("a=3,b=1"),
        large("adds", 128),
        large("replaces", 129),
        large("replaces", 130),
        large("replaces", 131),
    ]
}

/// How long each of them waits until the tenant's last change is carried out.
fn waits(node: &Node, running: &Running, change: &str) -> Result<Waits> {
    let (begun, over) = (Instant::now(), AtomicBool::new(false));
    let host = &node.lab.node;
    let again = |wait: &dyn Fn() -> Result<Duration>| {
        let mut times = Vec::new();
        while times.is_empty() || !over.load(Ordering::Relaxed) {
            times.push(wait()?.as_secs_f64());
            thread::sleep(PAUSE);
        }
        Percentiles::from_times(times).context("nothing was measured")
    };
    thread::scope(|scope| {
        let neighbour = scope.spawn(|| again(&|| NEIGHBOUR.moves(&node.api, host)));
        let dns = scope.spawn(|| again(&|| DNS.moves(&node.api, host)));
        let nft = scope.spawn(|| {
            again(&|| {
                let asked = Instant::now();
                host.run("nft", &[TRANSACTION]).map(|_| asked.elapsed())
            })
        });
        let done = until_synced(node, running, begun);
        let took = begun.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        let figures = [neighbour, dns, nft].map(|thread| thread.join().ok().context("a thread panicked")?);
        done?;
        let [neighbour, dns, nft] = figures;
        Ok(Waits { change: change.to_owned(), took, neighbour: neighbour?, dns: dns?, nft: nft? })
    })
}

/// Waits until all that was asked for is in the kernel.
fn until_synced(node: &Node, running: &Running, begun: Instant) -> Result<()> {
    loop {
        thread::sleep(Duration::from_millis(100));
        // Before its first sync it does not answer.
        let status = running.kube_ipvs()?.status(&node.lab.node).unwrap_or_default();
        if begun.elapsed() > KNOWN_WITHIN && status.get("synced") == Some(&Value::Bool(true)) {
            return Ok(());
        }
        ensure!(begun.elapsed() < TENANT_PATIENCE, "it takes too long: {status:#}");
    }
}

/// A Service at ports from this one on.
struct Asked {
    namespace: &'static str,
    name: &'static str,
    ip: Ipv4Addr,
    port: u32,
}

const NEIGHBOUR: Asked =
    Asked { namespace: "default", name: "neighbour", ip: Ipv4Addr::new(10, 96, 0, 80), port: 80 };
/// The daemon knows it by its namespace and its port.
const DNS: Asked =
    Asked { namespace: "kube-system", name: "kube-dns", ip: Ipv4Addr::new(10, 96, 0, 10), port: 53 };
const LARGE: Asked =
    Asked { namespace: "tenant", name: "large", ip: Ipv4Addr::new(10, 96, 1, 1), port: 1_000 };
const HASHED: Asked =
    Asked { namespace: "tenant", name: "hashed", ip: Ipv4Addr::new(10, 96, 1, 2), port: 1_000 };

impl Asked {
    fn ports(&self, count: u32) -> Value {
        let port = |port: u32| json!({"name": port.to_string(), "port": port, "protocol": "TCP"});
        (self.port..self.port + count).map(port).collect()
    }

    fn service(&self, ports: u32) -> Value {
        objects::service_of(self.namespace, self.name, &[self.ip.into()], &self.ports(ports))
    }

    /// As many endpoints, in two zones; other ones in each round.
    fn slice(&self, ports: u32, endpoints: u32, round: u8) -> Value {
        let endpoint = |number: u32| {
            let [.., high, low] = number.to_be_bytes();
            let zone = if number.is_multiple_of(2) { "a" } else { "b" };
            json!({"addresses": [Ipv4Addr::new(10, round, high, low)], "zone": zone})
        };
        let endpoints = (0..endpoints).map(endpoint).collect::<Value>();
        objects::slice_of((self.namespace, self.name), "1", "IPv4", &endpoints, &self.ports(ports))
    }

    /// Its one endpoint, at the place of this number.
    fn moved(&self, number: u8) -> Value {
        self.slice(1, 1, number)
    }

    /// Moves the endpoint, and returns how long it takes until the kernel has it.
    fn moves(&self, api: &Api, node: &Host) -> Result<Duration> {
        static PLACE: AtomicU8 = AtomicU8::new(1);
        let number = PLACE.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(self.port)?;
        let at = ServiceAddress { protocol: Protocol::Tcp, ip: self.ip.into(), port };
        let pod = IpAddr::from([10, number, 0, 0]);
        let asked = Instant::now();
        api.change(&self.moved(number));
        node.inside(move || {
            let mut kernel = KernelIpvs::open()?;
            while asked.elapsed() < PATIENCE {
                let real_servers = kernel.real_servers(at.into())?;
                if real_servers.iter().any(|real| real.config.address.ip == pod && real.config.weight > 0) {
                    return Ok(asked.elapsed());
                }
                // Leaves the processor to the program under test, if there is only one.
                thread::sleep(Duration::from_millis(1));
            }
            bail!("{pod} is not served")
        })?
    }
}

/// The tenant's Service whose scheduler computes a table of all its real servers, with these weights by zone.
fn hashed(size: Size, weights: &str) -> Value {
    let annotations = json!({"kube-ipvs.io/scheduler": "mh", "kube-ipvs.io/weights-by-zone": weights});
    with(HASHED.service(size.services.div_ceil(4)), "/metadata", "annotations", annotations)
}

/// A load balancer of the tenant that some ranges of clients may use, which depend on `first`.
fn restricted(name: &'static str, last: u8, first: u8, size: Size) -> Value {
    let asked = Asked { namespace: "tenant", name, ip: Ipv4Addr::new(10, 96, 3, last), port: 80 };
    let range = |number: u32| {
        let [.., high, low] = number.to_be_bytes();
        format!("{first}.{high}.{low}.0/25")
    };
    let ranges = (0..2 * size.endpoints).map(range).collect();
    let service = with(asked.service(1), "/spec", "type", "LoadBalancer".into());
    let service = with(service, "/spec", "loadBalancerSourceRanges", ranges);
    let ingress = json!([{"ip": Ipv4Addr::new(203, 0, 113, last)}]);
    with(service, "", "status", json!({"loadBalancer": {"ingress": ingress}}))
}
