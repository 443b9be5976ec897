//! Serves the `healthCheckNodePort` of each Service: load balancers ask there whether this node has endpoints of it,
//! and how many.
//!
//! The writer thread leaves the wanted answers and goes on. A task of the runtime opens and closes the servers.

mod wanted;

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ::http::{HeaderValue, Method, StatusCode};
use ipvs::Family;
use reconciler::Observer;
use serde::Serialize;
use serde_json::ser::PrettyFormatter;
use service::ObjectName;
use tokio::{select, sync::watch, task::JoinHandle, time::sleep};
use tracing::{debug, info, warn};

use super::{
    health::Health,
    http::{ConnectionLimit, Page, Pages, RETRY, listen_in_family, page, serve},
};
use crate::events::{Cause, Outbox};
use wanted::{AnswerObserver, WantedAnswers};

/// The connections at all ports together, which any client may open: with 12 kB for each that has begun to ask, 25 MB.
const MOST_CONNECTIONS: usize = 2048;

/// A Service, and one of this node's addresses.
type Key = (ObjectName, SocketAddr);

/// Keeps a server for each wanted port.
#[derive(Debug)]
pub struct HealthCheckPorts {
    node_name: String,
    health: Health,
    outbox: Outbox,
    wanted: watch::Receiver<WantedAnswers>,
    servers: BTreeMap<Key, PortServer>,
    /// The ports that cannot be opened, most likely taken by another program.
    failing: BTreeSet<Key>,
    limit: ConnectionLimit,
}

/// A server at one address.
#[derive(Debug)]
struct PortServer {
    ready: Arc<AtomicUsize>,
    task: JoinHandle<Infallible>,
}

impl HealthCheckPorts {
    /// Starts without servers. Also returns the observer of the writer thread.
    pub fn new(
        node_name: &str,
        families: BTreeSet<Family>,
        health: Health,
        outbox: Outbox,
    ) -> (Self, Box<dyn Observer>) {
        let (sender, wanted) = watch::channel(WantedAnswers::default());
        let ports = Self {
            node_name: node_name.to_owned(),
            health,
            outbox,
            wanted,
            servers: BTreeMap::new(),
            failing: BTreeSet::new(),
            limit: ConnectionLimit::new(MOST_CONNECTIONS),
        };
        (ports, Box::new(AnswerObserver::new(families, sender)))
    }

    /// Serves until the future is dropped.
    ///
    /// A port that cannot be opened is tried again periodically and after each change. Upstream tries with each sync,
    /// but a sync without changes is not reported here, and the program that has the port leaves without notice.
    pub async fn run(mut self) -> Infallible {
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            self.serve(&wanted).await;
            select! {
                changed = self.wanted.changed() => if changed.is_err() {
                    // The writer thread is gone, and the daemon about to end.
                    return future::pending().await;
                },
                () = sleep(RETRY), if !self.failing.is_empty() => {}
            }
        }
    }

    async fn serve(&mut self, wanted: &WantedAnswers) {
        let wanted: BTreeMap<Key, usize> = wanted.answers().collect();
        self.failing.retain(|key| wanted.contains_key(key));
        // All before the first is opened: a port may move from one Service to another.
        let gone: Vec<_> = self.servers.keys().filter(|key| !wanted.contains_key(key)).cloned().collect();
        for key in gone {
            let Some(server) = self.servers.remove(&key) else { continue };
            server.close().await;
            debug!(service = %key.0, address = %key.1, "health check port closed");
        }
        for (key, ready) in wanted {
            match self.servers.get(&key) {
                Some(server) => server.ready.store(ready, Ordering::Relaxed),
                None => self.open(key, ready),
            }
        }
    }

    /// Opens a port. If that fails, the Service's other addresses are served all the same. Upstream closes them, and
    /// one address used by another program makes the load balancer lose the node.
    fn open(&mut self, key: Key, ready: usize) {
        let (service, address) = &key;
        match listen_in_family(*address) {
            Ok(listener) => {
                match self.failing.remove(&key) {
                    true => {
                        info!(namespace = service.namespace(), %service, %address, "the health check port is open now");
                    }
                    false => debug!(%service, %address, "health check port opened"),
                }
                let ready = Arc::new(AtomicUsize::new(ready));
                let answer = PortAnswer {
                    service: service.clone(),
                    ready: Arc::clone(&ready),
                    health: self.health.clone(),
                };
                let task = tokio::spawn(serve(listener, Arc::new(answer), self.limit.clone()));
                self.servers.insert(key, PortServer { ready, task });
            }
            Err(error) if self.failing.contains(&key) => {
                debug!(%service, %address, %error, "no health check port");
            }
            Err(error) => {
                let text = format!(
                    "node {} failed to start healthcheck \"{service}\" on port {}: {}: {error}",
                    self.node_name,
                    address.port(),
                    address.ip(),
                );
                warn!(
                    namespace = service.namespace(),
                    object = %service,
                    "{text}; it is tried again every {} seconds",
                    RETRY.as_secs()
                );
                self.outbox.post_about_service(service.clone(), Cause::NO_SERVICE_HEALTH_CHECK, text);
                self.failing.insert(key);
            }
        }
    }
}

impl PortServer {
    /// Closes the port and its connections.
    async fn close(mut self) {
        self.task.abort();
        // The result is the cancellation.
        drop((&mut self.task).await);
    }
}

impl Drop for PortServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The header with this node's weight among the nodes.
const WEIGHT: &str = "x-load-balancing-endpoint-weight";

/// Answers for one Service in one family, for any path and method, as in kube-proxy.
struct PortAnswer {
    service: ObjectName,
    ready: Arc<AtomicUsize>,
    health: Health,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    service: Name<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct Name<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl Pages for PortAnswer {
    /// The response at a Service's port. A leaving node does not count here: `/healthz` says that.
    fn page(&self, _: &Method, _: &str) -> Page {
        let local_endpoints = self.ready.load(Ordering::Relaxed);
        let service_proxy_healthy = self.health.is_healthy();
        let (namespace, name) = self.service.parts();
        let service = Name { namespace, name };
        let body = indented(&Body { service, local_endpoints, service_proxy_healthy });
        let ok = local_endpoints > 0 && service_proxy_healthy;
        let status = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let mut page = page(status, "application/json", body);
        page.headers_mut().insert(WEIGHT, HeaderValue::from(local_endpoints));
        page
    }
}

/// The body as JSON, indented with tabs as kube-proxy has it.
fn indented(body: &Body<'_>) -> String {
    let mut text = Vec::new();
    let mut serializer =
        serde_json::Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(b"\t"));
    // Strings and numbers, into memory.
    _ = body.serialize(&mut serializer);
    String::from_utf8(text).unwrap_or_default()
}

#[cfg(test)]
mod tests;
