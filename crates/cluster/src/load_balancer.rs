//! A stand-in for a cloud's load balancer: Services of that type get an address, and it leads to their nodes.
//!
//! It does what a cloud's does and no more: it announces each address to the world outside through nodes whose proxy
//! says that it serves there, by the health check port of the Service or of the proxy itself, but for nodes that are
//! labelled as taken out.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufReader;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Deserializer, Value, json};

use crate::kubectl;
use crate::network;
use crate::node::Node;
use crate::state::Cluster;

/// Addresses are given from here on.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 1);

/// What a cloud keeps a Service by until its load balancer is gone.
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// Where a proxy says whether its node serves.
const PROXY_HEALTH: u16 = 10256;

/// How long a node may leave checks without an answer. Clouds wait about as long (three checks, eight seconds apart,
/// with GKE): a proxy that is replaced does not answer for some seconds.
const PATIENCE: Duration = Duration::from_secs(24);

/// How often nodes are asked.
const PAUSE: Duration = Duration::from_secs(1);

/// The label of nodes that load balancers leave out, as before maintenance.
pub(crate) const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// It works until it is dropped.
pub(crate) struct LoadBalancer {
    services: Arc<Watch>,
    excluded: Arc<Watch>,
    threads: Vec<JoinHandle<()>>,
}

/// kubectl, which tells of objects. It ends with the API server, and is started again.
#[derive(Default)]
struct Watch {
    kubectl: Mutex<Option<Child>>,
    stop: AtomicBool,
}

/// The names of the nodes that are left out.
type Excluded = BTreeSet<String>;

/// What it balances, by namespace and name.
type Balanced = BTreeMap<String, Service>;

/// A Service with an address.
#[derive(Clone, PartialEq, Eq)]
struct Service {
    address: Ipv4Addr,
    /// Where a node says whether it has endpoints, if it matters.
    health_check: Option<u16>,
    /// Whether a client stays with one node: each has an affinity of its own to endpoints.
    is_sticky: bool,
}

impl Service {
    /// Where a node says whether it serves.
    fn port(&self) -> u16 {
        self.health_check.unwrap_or(PROXY_HEALTH)
    }
}

impl LoadBalancer {
    /// Starts it.
    pub(crate) fn start(cluster: &Arc<Cluster>) -> Self {
        let (services, balanced) = (Arc::new(Watch::default()), Arc::new(Mutex::new(Balanced::new())));
        let (excluded, left_out) = (Arc::new(Watch::default()), Arc::new(Mutex::new(Excluded::new())));
        let balance = {
            let (watch, balanced) = (Arc::clone(&services), Arc::clone(&balanced));
            let all = ["services", "--all-namespaces"];
            move || watch.until_stopped(|| watch.follow(&all, |event| balance(event, &balanced)))
        };
        let exclude = {
            let (watch, left_out) = (Arc::clone(&excluded), Arc::clone(&left_out));
            let labelled = ["nodes", "--selector", EXCLUDED];
            move || {
                watch.until_stopped(|| {
                    // A watch begins with all of them.
                    locked(&left_out).clear();
                    watch.follow(&labelled, |event| exclude(event, &left_out))
                });
            }
        };
        let announce = {
            let (cluster, watch, mut announced) =
                (Arc::clone(cluster), Arc::clone(&services), Announced::default());
            move || {
                watch.until_stopped(|| {
                    let (now, left_out) = (locked(&balanced).clone(), locked(&left_out).clone());
                    announced.update(&cluster, &now, &left_out)
                });
                // The next one gives the same addresses to other Services.
                if let Err(error) = announced.lead_to(BTreeMap::new()) {
                    eprintln!("load balancer: {error:#}");
                }
            }
        };
        let threads = vec![thread::spawn(balance), thread::spawn(exclude), thread::spawn(announce)];
        Self { services, excluded, threads }
    }
}

impl Drop for LoadBalancer {
    fn drop(&mut self) {
        self.services.end();
        self.excluded.end();
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

impl Watch {
    /// Does something again and again, with a pause after each time.
    fn until_stopped(&self, mut work: impl FnMut() -> Result<()>) {
        while !self.stop.load(Relaxed) {
            if let Err(error) = work() {
                eprintln!("load balancer: {error:#}");
            }
            thread::sleep(PAUSE);
        }
    }

    /// Sees every event of these objects until kubectl ends.
    fn follow(&self, objects: &[&str], see: impl Fn(&Value) -> Result<()>) -> Result<()> {
        let mut kubectl = kubectl::command()?;
        kubectl.arg("get").args(objects).args(["--watch", "--output-watch-events", "--output=json"]);
        kubectl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = kubectl.spawn().context("starting kubectl get --watch")?;
        let events = child.stdout.take().context("a child without stdout")?;
        *locked(&self.kubectl) = Some(child);
        if self.stop.load(Relaxed) {
            self.end();
        }
        for event in
            Deserializer::from_reader(BufReader::new(events)).into_iter::<Value>().map_while(Result::ok)
        {
            if let Err(error) = see(&event) {
                eprintln!("load balancer: {error:#}");
            }
        }
        self.end_kubectl();
        Ok(())
    }

    fn end(&self) {
        self.stop.store(true, Relaxed);
        self.end_kubectl();
    }

    fn end_kubectl(&self) {
        if let Some(mut child) = locked(&self.kubectl).take() {
            // It may have ended by itself.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes a node that is to be left out, or no longer.
fn exclude(event: &Value, left_out: &Mutex<Excluded>) -> Result<()> {
    let name =
        event.pointer("/object/metadata/name").and_then(Value::as_str).context("a Node without name")?;
    if event.pointer("/type").and_then(Value::as_str) == Some("DELETED") {
        locked(left_out).remove(name);
    } else {
        locked(left_out).insert(name.to_owned());
    }
    Ok(())
}

/// Gives an address to a Service that wants one, and takes it back.
fn balance(event: &Value, balanced: &Mutex<Balanced>) -> Result<()> {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (namespace, name) = (text("/object/metadata/namespace"), text("/object/metadata/name"));
    let key = format!("{namespace}/{name}");
    let finalizers = event.pointer("/object/metadata/finalizers").and_then(Value::as_array);
    let is_kept = finalizers.is_some_and(|all| all.iter().any(|one| one == FINALIZER));
    let is_deleted = !text("/object/metadata/deletionTimestamp").is_empty();
    let is_wanted = text("/object/spec/type") == "LoadBalancer"
        && text("/object/spec/loadBalancerClass").is_empty()
        && !is_deleted
        && text("/type") != "DELETED";
    let of_service = |arguments: &[&str]| -> Result<()> {
        let all: Vec<&str> =
            ["--namespace", namespace, "patch", "service", name].iter().chain(arguments).copied().collect();
        match kubectl::output(&all) {
            // Whoever deleted it was faster.
            Err(error) if error.to_string().contains("(NotFound)") => Ok(()),
            done => done.map(drop),
        }
    };
    if !is_wanted {
        let was = locked(balanced).remove(&key);
        if text("/type") == "DELETED" {
            return Ok(());
        }
        if was.is_some() && !is_deleted {
            of_service(&[
                "--subresource=status",
                "--type=merge",
                "--patch",
                r#"{"status":{"loadBalancer":null}}"#,
            ])?;
        }
        if is_kept {
            of_service(&["--type=merge", "--patch", r#"{"metadata":{"finalizers":null}}"#])?;
        }
        return Ok(());
    }
    let health_check = event.pointer("/object/spec/healthCheckNodePort").and_then(Value::as_u64);
    let health_check = health_check.and_then(|port| u16::try_from(port).ok());
    let address = {
        let mut balanced = locked(balanced);
        let free = (0..=u8::MAX)
            .map(|more| Ipv4Addr::from(u32::from(FIRST) + u32::from(more)))
            .find(|address| balanced.values().all(|service| service.address != *address));
        let known = balanced.get(&key).map(|service| service.address);
        let address = known.or(free).context("no address is left")?;
        let is_sticky = text("/object/spec/sessionAffinity") == "ClientIP";
        balanced.insert(key, Service { address, health_check, is_sticky });
        address
    };
    if !is_kept {
        let patch = json!({"metadata": {"finalizers": [FINALIZER]}}).to_string();
        of_service(&["--type=merge", "--patch", &patch])?;
    }
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": address, "ipMode": "VIP"}]}}});
    if text("/object/status/loadBalancer/ingress/0/ip") != address.to_string() {
        of_service(&["--subresource=status", "--type=merge", "--patch", &status.to_string()])?;
    }
    Ok(())
}

/// Where each address leads, and what is known of the nodes.
#[derive(Default)]
struct Announced {
    routes: Routes,
    /// When a port of a node said last that the node serves.
    served: BTreeMap<SocketAddr, Instant>,
}

/// The nodes that each address leads to.
type Routes = BTreeMap<Ipv4Addr, Vec<Node>>;

/// What a node answers to a health check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Serves,
    DoesNot,
    Silent,
}

impl Announced {
    /// Leads each address to the nodes that serve it.
    fn update(&mut self, cluster: &Cluster, balanced: &Balanced, left_out: &Excluded) -> Result<()> {
        let taking_part = cluster.workers().iter().filter(|node| !left_out.contains(&node.name));
        let nodes: Vec<Node> = taking_part.cloned().collect();
        let ports: BTreeSet<u16> = balanced.values().map(Service::port).collect();
        for port in ports {
            for node in &nodes {
                self.ask((node.ipv4(), port).into());
            }
        }
        let mut routes = Routes::new();
        for service in balanced.values() {
            let serves = |node: &&Node| self.served.contains_key(&(node.ipv4(), service.port()).into());
            let most = if service.is_sticky { 1 } else { nodes.len() };
            routes.insert(service.address, nodes.iter().filter(serves).take(most).cloned().collect());
        }
        self.lead_to(routes)
    }

    /// A node that does not answer is given up after a while.
    fn ask(&mut self, node: SocketAddr) {
        match health(node) {
            Health::Serves => drop(self.served.insert(node, Instant::now())),
            // It has no endpoints of the Service. A proxy that says so of itself may have just started.
            Health::DoesNot if node.port() != PROXY_HEALTH => drop(self.served.remove(&node)),
            Health::DoesNot | Health::Silent => {
                let is_given_up = self.served.get(&node).is_some_and(|last| last.elapsed() > PATIENCE);
                if is_given_up {
                    self.served.remove(&node);
                }
            }
        }
    }

    /// Makes the routes these. One that cannot be changed is tried again the next time.
    fn lead_to(&mut self, routes: Routes) -> Result<()> {
        let gone: Vec<_> =
            self.routes.keys().filter(|address| !routes.contains_key(*address)).copied().collect();
        for address in gone {
            network::withdraw(address)?;
            self.routes.remove(&address);
        }
        for (address, nodes) in routes {
            if self.routes.get(&address) != Some(&nodes) {
                network::announce(address, &nodes)?;
                self.routes.insert(address, nodes);
            }
        }
        Ok(())
    }
}

/// Asks inside the namespace, as all that has to do with the cluster.
fn health(node: SocketAddr) -> Health {
    let mut curl = network::inside("curl");
    curl.args(["--silent", "--fail", "--max-time", "2", "--output", "/dev/null"]);
    curl.arg(format!("http://{node}/healthz"));
    match curl.status().ok().and_then(|status| status.code()) {
        Some(0) => Health::Serves,
        // An answer that says no.
        Some(22) => Health::DoesNot,
        _ => Health::Silent,
    }
}
