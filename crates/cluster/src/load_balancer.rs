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
    known: Arc<Known>,
    threads: Vec<JoinHandle<()>>,
}

/// A watch, while it runs.
type Watch = Mutex<Option<Child>>;

/// What its threads share.
#[derive(Default)]
struct Known {
    services: Mutex<Balanced>,
    nodes: Mutex<TakingPart>,
    /// kubectl, which watches Services, and the one for nodes.
    watches: [Watch; 2],
    stop: AtomicBool,
}

impl LoadBalancer {
    /// Starts it.
    pub(crate) fn start() -> Self {
        let known = Arc::new(Known::default());
        let start = |work: fn(&Known)| {
            let known = Arc::clone(&known);
            thread::spawn(move || work(&known))
        };
        let threads = [Known::balance, Known::note_nodes, Known::announce].map(start).into();
        Self { known, threads }
    }
}

impl Drop for LoadBalancer {
    fn drop(&mut self) {
        self.known.stop.store(true, Relaxed);
        self.known.watches.iter().for_each(end);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    /// Gives Services their addresses.
    fn balance(&self) {
        let balance = |event: &Value| services::balance(event, &self.services);
        let [watch, _] = &self.watches;
        self.until_stopped(|| self.follow(watch, "services --all-namespaces", balance));
    }

    /// Notes which nodes take part.
    fn note_nodes(&self) {
        let [_, watch] = &self.watches;
        self.until_stopped(|| {
            forget_deleted(&self.nodes)?;
            self.follow(watch, "nodes", |event| note(event, &self.nodes))
        });
    }

    /// Leads each address to the nodes that serve it.
    fn announce(&self) {
        let mut announced = Announced::default();
        self.until_stopped(|| {
            let (services, nodes) = (locked(&self.services).clone(), locked(&self.nodes).clone());
            // Nodes join and leave.
            announced.update(&Cluster::open()?, &services, &nodes)
        });
        // The next one gives the same addresses to other Services.
        if let Err(error) = announced.lead_nowhere() {
            eprintln!("load balancer: {error:#}");
        }
    }

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
    fn follow(&self, watch: &Watch, objects: &str, see: impl Fn(&Value) -> Result<()>) -> Result<()> {
        let mut kubectl = kubectl::command()?;
        kubectl.arg("get").args(objects.split(' '));
        // In chunks, a long list would be one event with lists in it.
        kubectl.args(["--watch", "--output-watch-events", "--output=json", "--chunk-size=0"]);
        kubectl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = kubectl.spawn().context("starting kubectl get --watch")?;
        let events = child.stdout.take().context("a child without stdout")?;
        let mut complaints = child.stderr.take().context("a child without stderr")?;
        *locked(watch) = Some(child);
        if self.stop.load(Relaxed) {
            end(watch);
        }
        let events = Deserializer::from_reader(BufReader::new(events)).into_iter::<Value>();
        for event in events.map_while(Result::ok) {
            if let Err(error) = see(&event) {
                eprintln!("load balancer: {error:#}");
            }
        }
        end(watch);
        let mut complaint = String::new();
        complaints.read_to_string(&mut complaint)?;
        ensure!(complaint.is_empty(), "kubectl get --watch: {}", complaint.trim_end());
        Ok(())
    }
}

fn end(watch: &Watch) {
    if let Some(mut child) = locked(watch).take() {
        // It may have ended by itself.
        drop(child.kill());
        drop(child.wait());
    }
}

/// The label of nodes that load balancers leave out, as before maintenance.
pub(crate) const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// The names of the nodes that take part: those that have been ready and are not left out. Later only health checks
/// decide, whatever a node says of itself (KEP-3458).
type TakingPart = BTreeSet<String>;

/// Drops nodes that no longer exist: a new watch does not report what was deleted before it began.
fn forget_deleted(taking_part: &Mutex<TakingPart>) -> Result<()> {
    let printed = kubectl::output("get nodes --output=jsonpath={.items[*].metadata.name}")?;
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
