//! Events: what is wrong with a Service, or with this node, said where its owner looks, `kubectl describe
//! service` and `kubectl describe node`.
//!
//! Every node sees the same of a Service, and one Event is enough: its name comes from what it says, so the
//! API server refuses all but the first. (`kube::runtime::events::Recorder` names Events by the time, one for
//! each node, and keeps the first text of those that it takes for repetitions.)

mod event;
mod topics;

use std::{
    collections::BTreeSet,
    future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::{core::v1, events::v1::Event};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use reconciler::Notice;
use service::ObjectName;
use tokio::{
    select,
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, info};

use self::topics::{About, Topics};

/// How many notices may wait while Events are sent.
const QUEUE: usize = 10_000;
/// Notices that come within this time of each other are sent together: one Event for all that a sync
/// found out about a Service.
const GATHER: Duration = Duration::from_secs(1);
/// All nodes find out the same at the same time. Each waits for its part of this time, in milliseconds,
/// so that one creates the Event, and not all of them ask at once.
const SPREAD: u64 = 10_000;
/// How long nothing more is said of a Service, or of the node, for the same reason. What comes meanwhile is
/// said then.
const QUIET: Duration = Duration::from_secs(600);
/// How long the API server may take for one Event.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the API server is left alone when one could not be sent.
const PAUSE: Duration = Duration::from_secs(60);

/// What an Event can be about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Regarding {
    Service(ObjectName),
    /// The one that we run on.
    Node,
}

/// One sentence for an Event, about what and for which reason, in Kubernetes' spelling.
#[derive(Debug)]
struct Remark {
    about: About,
    text: String,
}

/// A queue of notices: where they are left, and who makes Events of them.
pub fn queue(client: Client, node_name: &str) -> (Outbox, Publisher) {
    let (sender, remarks) = mpsc::channel(QUEUE);
    let outbox = Outbox { remarks: sender, dropped: Arc::default() };
    let dropped = Arc::clone(&outbox.dropped);
    let publisher = Publisher {
        client,
        node_name: node_name.to_owned(),
        remarks,
        dropped,
        topics: Topics::default(),
        resume: Instant::now(),
    };
    (outbox, publisher)
}

/// Where notices are left.
#[derive(Clone, Debug)]
pub struct Outbox {
    remarks: mpsc::Sender<Remark>,
    dropped: Arc<AtomicUsize>,
}

impl Outbox {
    /// Leaves a notice and never waits: with too many at once it is dropped. The log has it anyway.
    pub fn post(&self, Notice { service, reason, text }: Notice) {
        self.send((Regarding::Service(service), event::word(reason)), text);
    }

    /// The same about this node, for a reason in Kubernetes' spelling.
    pub fn post_about_node(&self, reason: &'static str, text: String) {
        self.send((Regarding::Node, reason), text);
    }

    fn send(&self, about: About, text: String) {
        if self.remarks.try_send(Remark { about, text }).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Makes Events of notices.
pub struct Publisher {
    client: Client,
    node_name: String,
    remarks: mpsc::Receiver<Remark>,
    dropped: Arc<AtomicUsize>,
    topics: Topics,
    /// When the API server may be asked again.
    resume: Instant,
}

impl Publisher {
    /// Publishes until nobody is left to leave a notice.
    pub async fn run(mut self) {
        loop {
            let next_round = self.topics.next_due().map(|due| due.max(self.resume));
            select! {
                biased;
                remark = self.remarks.recv() => match remark {
                    Some(remark) => self.keep(remark),
                    None => return,
                },
                () = until(next_round) => self.round().await,
            }
        }
    }

    fn keep(&mut self, remark: Remark) {
        if !self.topics.keep(remark) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Says all that is due now, until something cannot be said: the rest would hardly fare better.
    async fn round(&mut self) {
        let now = Instant::now();
        sleep(Duration::from_millis(event::digest(&self.node_name) % SPREAD)).await;
        while let Some((about, texts)) = self.topics.due(now) {
            if self.say(&about, texts).await {
                self.topics.said(&about);
            } else {
                self.topics.failed(&about);
                self.resume = Instant::now() + PAUSE;
                break;
            }
        }
        match self.dropped.swap(0, Ordering::Relaxed) {
            0 => {}
            dropped => info!(dropped, "too many Events at once"),
        }
    }

    /// Whether it is said now, by whomever.
    async fn say(&self, about: &About, texts: &BTreeSet<String>) -> bool {
        match timeout(PATIENCE, self.publish(about, texts)).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => debug!(?about, %error, "no Event"),
            Err(_) => debug!(?about, "no Event: the API server does not answer"),
        }
        false
    }

    async fn publish(&self, (regarding, reason): &About, texts: &BTreeSet<String>) -> kube::Result<()> {
        let event = match regarding {
            Regarding::Service(service) => {
                let Some(uid) = self.uid(service).await? else { return Ok(()) };
                event::about_service(service, &uid, reason, texts, &self.node_name)
            }
            Regarding::Node => event::about_node(reason, texts, &self.node_name),
        };
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        match events.create(&PostParams::default(), &event).await {
            // Another node, or this one before a restart, has said it.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            result => result.map(drop),
        }
    }

    /// The Service's uid, by which `kubectl describe` finds its Events; none if the Service is gone. The
    /// role `system:node-proxier` may list Services but not get one.
    async fn uid(&self, service: &ObjectName) -> kube::Result<Option<String>> {
        let services: Api<v1::Service> = Api::namespaced(self.client.clone(), &service.namespace);
        let only = ListParams::default().fields(&format!("metadata.name={}", service.name)).match_any();
        let found = services.list_metadata(&only).await?;
        Ok(found.items.into_iter().find_map(|object| object.metadata.uid))
    }
}

/// Waits until then, or for ever.
async fn until(then: Option<Instant>) {
    match then {
        Some(then) => sleep_until(then).await,
        None => future::pending().await,
    }
}

#[cfg(test)]
mod tests;
