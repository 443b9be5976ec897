//! A stand-in for a cloud's load balancer: Services of that type get an address, and it leads to their nodes.
//!
//! It does what a cloud's does and no more: it leads each address to the nodes whose proxy says that it serves there,
//! by the health check port of the Service or of the proxy itself, but for nodes that are labelled as taken out.

mod announced;
mod services;
mod watch;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::kubectl;
use crate::state::Cluster;
use announced::Announced;
use services::Balanced;
use watch::Watch;

/// How often nodes are asked, and the pause before kubectl is started again.
const PAUSE: Duration = Duration::from_secs(1);

/// The label of nodes that load balancers leave out, as before maintenance.
pub(crate) const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// The names of the nodes that are left out.
type Excluded = BTreeSet<String>;

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
        let (nodes, excluded) = (Arc::new(Watch::default()), Arc::new(Mutex::new(Excluded::new())));
        let balance = {
            let (watch, balanced) = (Arc::clone(&services), Arc::clone(&balanced));
            let all = ["services", "--all-namespaces"];
            move || watch.until_stopped(|| watch.follow(&all, |event| services::balance(event, &balanced)))
        };
        let exclude = {
            let (watch, excluded) = (Arc::clone(&nodes), Arc::clone(&excluded));
            let labelled = ["nodes", "--selector", EXCLUDED];
            move || {
                watch.until_stopped(|| {
                    // Nobody says later what was deleted meanwhile.
                    let now = labelled_now()?;
                    *locked(&excluded) = now;
                    watch.follow(&labelled, |event| exclude(event, &excluded))
                });
            }
        };
        let announce = {
            let (watch, mut announced) = (Arc::clone(&services), Announced::default());
            move || {
                watch.until_stopped(|| {
                    let (now, left_out) = (locked(&balanced).clone(), locked(&excluded).clone());
                    // Nodes join and leave.
                    announced.update(&Cluster::open()?, &now, &left_out)
                });
                // The next one gives the same addresses to other Services.
                if let Err(error) = announced.lead_nowhere() {
                    eprintln!("load balancer: {error:#}");
                }
            }
        };
        let threads = vec![thread::spawn(balance), thread::spawn(exclude), thread::spawn(announce)];
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

fn labelled_now() -> Result<Excluded> {
    let names = "--output=jsonpath={.items[*].metadata.name}";
    let printed = kubectl::output(&["get", "nodes", "--selector", EXCLUDED, names])?;
    Ok(printed.split_whitespace().map(str::to_owned).collect())
}

/// Notes a node that is to be left out, or no longer.
fn exclude(event: &Value, excluded: &Mutex<Excluded>) -> Result<()> {
    let name =
        event.pointer("/object/metadata/name").and_then(Value::as_str).context("a Node without name")?;
    if event.pointer("/type").and_then(Value::as_str) == Some("DELETED") {
        locked(excluded).remove(name);
    } else {
        locked(excluded).insert(name.to_owned());
    }
    Ok(())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
