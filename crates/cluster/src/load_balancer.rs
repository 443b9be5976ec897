//! A stand-in for a cloud's load balancer: Services of that type get an address, and it leads to their nodes.
//!
//! It does what a cloud's does and no more: it leads each address to the nodes whose proxy says that it serves there,
//! by the health check port of the Service or of the proxy itself. A node takes part from when it is ready until it is
//! labelled as taken out, or deleted.

mod announced;
mod nodes;
mod services;
mod watch;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use announced::Announced;
pub(crate) use nodes::EXCLUDED;
use nodes::TakingPart;
use services::Balanced;
use watch::Watch;

use crate::state::Cluster;

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
                    nodes::forget_deleted(&taking_part)?;
                    watch.follow(&["nodes"], |event| nodes::note(event, &taking_part))
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
