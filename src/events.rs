//! Kubernetes Events: problems of a Service or of this node, shown where its owner looks, in `kubectl
//! describe service` and `kubectl describe node`; and the start of the proxy.
//!
//! Every node sees the same of a Service, and one Event is enough: its name is a digest of its text, so the
//! API server refuses all but the first. This also holds for a proxy that starts again and again, as long as
//! the API server keeps the first one, an hour by default. (`kube::runtime::events::Recorder` names Events by
//! the time, one for each node, and keeps the first text of those that it takes for repetitions.)

#[cfg(test)]
mod documented_tests;
mod event;
mod topics;

use std::{
    collections::BTreeSet,
    convert::Infallible,
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
use reconciler::{Notice, Observer, SyncEvent, SyncReport};
use service::ObjectName;
use tokio::{
    select,
    sync::{mpsc, oneshot},
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, info};

pub use self::event::Cause;
use self::topics::{RateLimit, Topic, Topics};
use crate::finding::Finding;

/// The texts that may wait while Events are sent.
const QUEUE: usize = 10_000;
/// Texts within this time are sent together: one Event for all that a sync found out about a Service.
const GATHER: Duration = Duration::from_secs(1);
/// All nodes find the same problem at the same time. Each waits for its part of this time, in milliseconds,
/// so that one creates the Event, and not all of them ask at once.
const SPREAD: u64 = 30_000;
/// The shortest time between two Events for the same reason about a Service or the node. Texts meanwhile are
/// sent then.
const QUIET: Duration = Duration::from_secs(600);
/// How often a lasting problem of the node is repeated: an Event does not stay for ever.
pub(crate) const REMINDER: Duration = Duration::from_secs(30 * 60);
/// How long the API server may take for one Event.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the API server is left alone when one could not be sent.
const PAUSE: Duration = Duration::from_secs(60);
/// How long an ending daemon waits for its last Events.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The object of an Event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Regarding {
    Service(ObjectName),
    /// This node.
    Node,
}

/// One sentence of an Event, with its topic.
#[derive(Debug)]
struct EventText {
    topic: Topic,
    text: String,
}

/// A message in the queue.
#[derive(Debug)]
enum Message {
    EventText(EventText),
    /// Everything before it is sent at once; then the sender is notified.
    Hurry(oneshot::Sender<()>),
}

/// A queue of texts: its sending end, and the publisher at its other end.
pub fn queue(client: Client, node_name: &str) -> (Outbox, Publisher) {
    let (sender, messages) = mpsc::channel(QUEUE);
    let outbox = Outbox { messages: Some(sender), dropped: Arc::default() };
    let dropped = Arc::clone(&outbox.dropped);
    let publisher = Publisher {
        client,
        node_name: node_name.to_owned(),
        messages,
        dropped,
        topics: Topics::new(node_name),
        rate_limit: RateLimit::default(),
        resume: Instant::now(),
        spread: Duration::from_millis(event::digest(&node_name) % SPREAD),
    };
    (outbox, publisher)
}

/// Takes texts for Events. The default drops them: without an API server there are no Events, and the log has
/// everything.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    messages: Option<mpsc::Sender<Message>>,
    dropped: Arc<AtomicUsize>,
}

impl Outbox {
    /// Queues a notice. Never waits: a full queue drops it. The log has it anyway.
    pub fn post(&self, Notice { service, reason, text }: Notice) {
        self.post_about_service(service, Cause::for_notice(reason), text);
    }

    /// Queues a finding about this node, if it has a cause.
    pub fn post_finding(&self, finding: &Finding) {
        if let Some(cause) = finding.cause {
            self.post_about_node(cause.into(), finding.to_string());
        }
    }

    /// Queues a sentence about this node, or about the proxy, whose Events belong to its node.
    pub fn post_about_node(&self, cause: Cause, text: String) {
        self.send((Regarding::Node, cause), text);
    }

    /// Queues a sentence about this node, again and again for as long as this is polled.
    pub async fn remind(&self, cause: Cause, text: &str) -> Infallible {
        loop {
            self.post_about_node(cause, text.to_owned());
            sleep(REMINDER).await;
        }
    }

    /// Queues a sentence about a Service.
    pub fn post_about_service(&self, service: ObjectName, cause: Cause, text: String) {
        self.send((Regarding::Service(service), cause), text);
    }

    fn send(&self, topic: Topic, text: String) {
        let Some(messages) = &self.messages else { return };
        if messages.try_send(Message::EventText(EventText { topic, text })).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits some seconds at most until the queue is sent: for a daemon that is about to end.
    pub async fn empty(&self) {
        let Some(messages) = &self.messages else { return };
        let (done, said) = oneshot::channel();
        let hurry = async {
            if messages.send(Message::Hurry(done)).await.is_ok() {
                _ = said.await;
            }
        };
        if timeout(LAST_WORDS, hurry).await.is_err() {
            debug!("the last Events were not sent in time");
        }
    }
}

/// Publishes the texts as Events.
pub struct Publisher {
    client: Client,
    node_name: String,
    messages: mpsc::Receiver<Message>,
    dropped: Arc<AtomicUsize>,
    topics: Topics,
    rate_limit: RateLimit,
    /// When the API server may be asked again.
    resume: Instant,
    /// This node's wait, so that not all nodes ask at once.
    spread: Duration,
}

impl Publisher {
    /// Publishes until the last outbox is dropped.
    pub async fn run(mut self) {
        loop {
            let next_due = self.topics.next_due(self.rate_limit.next());
            let next_round = next_due.map(|due| due.max(self.resume));
            select! {
                biased;
                message = self.messages.recv() => match message {
                    Some(Message::EventText(text)) => self.keep(text),
                    Some(Message::Hurry(done)) => {
                        // Includes texts that are still being gathered.
                        self.round(Instant::now() + GATHER).await;
                        _ = done.send(());
                    }
                    None => return,
                },
                // What became due while this node waited for its part of the time waits in its turn.
                () = until(next_round.map(|due| due + self.spread)) => {
                    self.round(Instant::now() - self.spread).await;
                }
            }
        }
    }

    fn keep(&mut self, text: EventText) {
        if !self.topics.keep(text) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Publishes what is due at `then` and within the rate limit, until the API server fails: the rest would
    /// hardly fare better.
    async fn round(&mut self, then: Instant) {
        while let Some((topic, texts)) = self.topics.due(then, self.rate_limit.allows_one()) {
            let delivery = self.say(&topic, texts).await;
            if let (Regarding::Service(_), _) = &topic {
                self.rate_limit.record();
            }
            match delivery {
                Delivery::Done => self.topics.said(&topic),
                Delivery::Later => {
                    self.topics.failed(&topic);
                    self.resume = Instant::now() + PAUSE;
                    break;
                }
            }
        }
        match self.dropped.swap(0, Ordering::Relaxed) {
            0 => {}
            dropped => info!(dropped, "too many Events at once"),
        }
    }

    /// Publishes one Event, unless it exists: ours, or another node's.
    async fn say(&self, topic: &Topic, texts: &BTreeSet<String>) -> Delivery {
        match timeout(PATIENCE, self.publish(topic, texts)).await {
            Ok(Ok(())) => Delivery::Done,
            Ok(Err(error)) => {
                debug!(about = ?topic, %error, "cannot create Event");
                Delivery::after(&error)
            }
            Err(_) => {
                debug!(about = ?topic, "cannot create Event: the API server does not answer");
                Delivery::Later
            }
        }
    }

    async fn publish(&self, (regarding, cause): &Topic, texts: &BTreeSet<String>) -> kube::Result<()> {
        let event = match regarding {
            Regarding::Service(service) => {
                let Some(uid) = self.uid(service).await? else { return Ok(()) };
                event::about_service(service, &uid, *cause, texts, &self.node_name)
            }
            Regarding::Node => event::about_node(*cause, texts, &self.node_name),
        };
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        match events.create(&PostParams::default(), &event).await {
            // Another node has created it, or this one before a restart.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            result => result.map(drop),
        }
    }

    /// The Service's uid, by which `kubectl describe` finds its Events; none if the Service is gone. The
    /// role `system:node-proxier` may list Services but not get one.
    async fn uid(&self, service: &ObjectName) -> kube::Result<Option<String>> {
        let services: Api<v1::Service> = Api::namespaced(self.client.clone(), service.namespace());
        let only = ListParams::default().fields(&format!("metadata.name={}", service.name())).match_any();
        let found = services.list_metadata(&only).await?;
        Ok(found.items.into_iter().find_map(|object| object.metadata.uid))
    }
}

/// The result of publishing an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    /// The Event exists; or it is refused, and would be again: while a namespace is being deleted, or its
    /// quota is used up, it takes no Event. That must not delay the Events of others.
    Done,
    /// To be tried again: the API server is away, too busy, or does not know this client.
    Later,
}

impl Delivery {
    fn after(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status)
                if (400..500).contains(&status.code) && !matches!(status.code, 401 | 408 | 429) =>
            {
                Self::Done
            }
            _ => Self::Later,
        }
    }
}

/// Waits until then, or for ever.
async fn until(then: Option<Instant>) {
    match then {
        Some(then) => sleep_until(then).await,
        None => future::pending().await,
    }
}

/// Creates an Event of the node for each sync that repaired something, and for each that removed virtual
/// servers that no Service made: the other program's owner may find it there.
pub struct SyncEvents(pub Outbox);

impl Observer for SyncEvents {
    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        if let Some(text) = repaired(sync.report) {
            self.0.post_about_node(Cause::FOREIGN_CHANGE, text);
        }
        if let Some(text) = removed(sync.report) {
            self.0.post_about_node(Cause::FOREIGN_REMOVED, text);
        }
    }
}

/// The text of an Event about repairs, without a number so that repetitions are one Event.
fn repaired(report: &SyncReport) -> Option<String> {
    let first = report.first_repair()?;
    let others = if report.repairs.len() > 1 { " and more" } else { "" };
    Some(format!(
        "another program has changed what kube-ipvs programmed; repaired: {first}{others}. ipvsadm --clear, nft flush \
         ruleset and other proxies do that"
    ))
}

fn removed(report: &SyncReport) -> Option<String> {
    let removed = &report.removed_foreign;
    (removed.count > 0).then(|| {
        format!(
            "virtual servers that belong to no Service were removed, {} in all: {removed}. To keep those of a range, add \
             it to ipvs.excludeCIDRs; to keep all, set --foreign-virtual-servers=keep",
            removed.count
        )
    })
}

#[cfg(test)]
pub(crate) mod tests;
