//! A stand-in for a cloud's load balancer: Services of that type get an address, and it leads to their nodes.
//!
//! It does what a cloud's does and no more: it leads each address to the nodes whose proxy says that it serves there,
//! by the health check port of the Service or of the proxy itself. A node takes part from when it is ready until it is
//! labelled as taken out, or deleted.

mod announced;
mod services;

use std::{
    collections::BTreeSet,
    io::{BufReader, Read as _},
    process::{Child, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use announced::Announced;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Deserializer, Value, json};
use services::Balanced;

use crate::{kubectl, state::Cluster};

/// How often nodes are asked, and the pause before kubectl is started again.
const PAUSE: Duration = Duration::from_secs(1);

/// It works until it is dropped.
pub(crate) struct LoadBalancer {
    services: Arc<Watch>,
    nodes: Arc<Watch>,
    threads: Vec<JoinHandle<()>>,
}

impl LoadBalancer {
    /// Starts it.
    pub(crate) fn start() -> Self {
        let (services, balanced) = (Arc::new(Watch::default()), Arc::new(Mutex::new(Balanced::new())));
        let (nodes, taking_part) = (Arc::new(Watch::default()), Arc::new(Mutex::new(TakingPart::new())));
        let balance = {
            let (watch, balanced) = (Arc::clone(&services), Arc::clone(&balanced));
            let all = ["services", "--all-namespaces"];
            move || watch.until_stopped(|| watch.follow(&all, |event| services::balance(event, &balanced)))
        };
        let note = {
            let (watch, taking_part) = (Arc::clone(&nodes), Arc::clone(&taking_part));
            move || {
                watch.until_stopped(|| {
                    forget_deleted(&taking_part)?;
                    watch.follow(&["nodes"], |event| note(event, &taking_part))
                });
            }
        };
        let announce = {
            let (watch, mut announced) = (Arc::clone(&services), Announced::default());
            move || {
                watch.until_stopped(|| {
                    let (now, taking_part) = (locked(&balanced).clone(), locked(&taking_part).clone());
                    // Nodes join and leave.
                    announced.update(&Cluster::open()?, &now, &taking_part)
                });
                // The next one gives the same addresses to other Services.
                if let Err(error) = announced.lead_nowhere() {
                    eprintln!("load balancer: {error:#}");
                }
            }
        };
        let threads = vec![thread::spawn(balance), thread::spawn(note), thread::spawn(announce)];
        Self { services, nodes, threads }
    }
}

impl Drop for LoadBalancer {
    fn drop(&mut self) {
        self.services.end();
        self.nodes.end();
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One watch. It ends with the API server, and is started again.
#[derive(Default)]
struct Watch {
    kubectl: Mutex<Option<Child>>,
    stop: AtomicBool,
}

impl Watch {
    /// Does something again and again, with a pause after each time. While it fails in one way, that is said once.
    fn until_stopped(&self, mut work: impl FnMut() -> Result<()>) {
        let mut last = String::new();
        while !self.stop.load(Relaxed) {
            let complaint = work().err().map(|error| format!("load balancer: {error:#}")).unwrap_or_default();
            if complaint != last && !complaint.is_empty() {
                eprintln!("{complaint}");
            }
            last = complaint;
            thread::sleep(PAUSE);
        }
    }

    /// Sees every event of these objects until kubectl ends. It begins with all of them.
    fn follow(&self, objects: &[&str], see: impl Fn(&Value) -> Result<()>) -> Result<()> {
        let mut kubectl = kubectl::command()?;
        kubectl.arg("get").args(objects).args(["--watch", "--output-watch-events", "--output=json"]);
        // In chunks, a long list would be one event with lists in it.
        kubectl.arg("--chunk-size=0");
        kubectl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = kubectl.spawn().context("starting kubectl get --watch")?;
        let events = child.stdout.take().context("a child without stdout")?;
        let mut complaints = child.stderr.take().context("a child without stderr")?;
        *locked(&self.kubectl) = Some(child);
        if self.stop.load(Relaxed) {
            self.end();
        }
        let events = Deserializer::from_reader(BufReader::new(events)).into_iter::<Value>();
        for event in events.map_while(Result::ok) {
            if let Err(error) = see(&event) {
                eprintln!("load balancer: {error:#}");
            }
        }
        self.end_kubectl();
        let mut complaint = String::new();
        complaints.read_to_string(&mut complaint)?;
        ensure!(complaint.is_empty(), "kubectl get --watch: {}", complaint.trim_end());
        Ok(())
    }

    /// Ends it for good.
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

/// The label of nodes that load balancers leave out, as before maintenance.
pub(crate) const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// The names of the nodes that take part: those that have been ready and are not left out. Later only health checks
/// decide, whatever a node says of itself (KEP-3458).
type TakingPart = BTreeSet<String>;

/// Drops nodes that no longer exist: a new watch does not report what was deleted before it began.
fn forget_deleted(taking_part: &Mutex<TakingPart>) -> Result<()> {
    let printed = kubectl::output(&["get", "nodes", "--output=jsonpath={.items[*].metadata.name}"])?;
    let there: BTreeSet<_> = printed.split_whitespace().collect();
    locked(taking_part).retain(|name| there.contains(name.as_str()));
    Ok(())
}

/// Notes what an event says of a node.
fn note(event: &Value, taking_part: &Mutex<TakingPart>) -> Result<()> {
    let node = event.pointer("/object").context("an event without an object")?;
    let name = node.pointer("/metadata/name").and_then(Value::as_str).context("a Node without name")?;
    let is_gone = event.pointer("/type") == Some(&json!("DELETED"));
    let is_excluded = node.pointer("/metadata/labels").is_some_and(|labels| labels.get(EXCLUDED).is_some());
    if is_gone || is_excluded {
        locked(taking_part).remove(name);
    } else if is_ready(node) {
        locked(taking_part).insert(name.to_owned());
    }
    Ok(())
}

fn is_ready(node: &Value) -> bool {
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
    let says_so =
        |one: &Value| one.get("type") == Some(&json!("Ready")) && one.get("status") == Some(&json!("True"));
    conditions.is_some_and(|all| all.iter().any(says_so))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &str, labels: &Value, ready: &str) -> Value {
        let status = json!({ "conditions": [{ "type": "Ready", "status": ready }] });
        json!({ "type": kind, "object": { "metadata": { "name": "worker", "labels": labels }, "status": status } })
    }

    #[test]
    fn a_node_takes_part_from_when_it_is_ready_until_it_is_taken_out_or_deleted() {
        let taking_part = Mutex::default();
        let excluded = json!({ EXCLUDED: "" });
        for (event, takes_part) in [
            (event("ADDED", &Value::Null, "False"), false),
            (event("MODIFIED", &Value::Null, "True"), true),
            (event("MODIFIED", &json!({}), "Unknown"), true),
            (event("MODIFIED", &excluded, "True"), false),
            (event("MODIFIED", &json!({}), "True"), true),
            (event("DELETED", &json!({}), "True"), false),
        ] {
            note(&event, &taking_part).unwrap();
            assert_eq!(locked(&taking_part).contains("worker"), takes_part, "{event}");
        }
    }
}
