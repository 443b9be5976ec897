//! Events: what is wrong with a Service, said where its owner looks, `kubectl describe service`.
//!
//! Every node sees the same, and one Event is enough: its name comes from what it says, so the API server
//! refuses all but the first. (`kube::runtime::events::Recorder` names Events by the time, one for each
//! node, and keeps the first text of those that it takes for repetitions.)

mod event;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    iter,
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
use reconciler::{Notice, Reason};
use service::ObjectName;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info};

/// How many notices may wait to be sent.
const QUEUE: usize = 1_000;
/// Notices that come within this time of each other are sent together: one Event for all that a sync
/// found out about a Service.
const GATHER: Duration = Duration::from_secs(1);
/// How long nothing more is said of a Service for the same reason.
const QUIET: Duration = Duration::from_secs(600);
/// How long the API server may take for one Event.
const PATIENCE: Duration = Duration::from_secs(30);

/// A queue of notices: where they are left, and who makes Events of them.
pub fn queue(client: Client, node_name: &str) -> (Outbox, Publisher) {
    let (sender, notices) = mpsc::channel(QUEUE);
    let outbox = Outbox { notices: sender, dropped: Arc::default() };
    let dropped = Arc::clone(&outbox.dropped);
    let publisher =
        Publisher { client, node_name: node_name.to_owned(), notices, dropped, told: HashMap::new() };
    (outbox, publisher)
}

/// Where notices are left.
#[derive(Clone, Debug)]
pub struct Outbox {
    notices: mpsc::Sender<Notice>,
    dropped: Arc<AtomicUsize>,
}

impl Outbox {
    /// Leaves a notice and never waits: with too many at once it is dropped. The log has it anyway.
    pub fn post(&self, notice: Notice) {
        if self.notices.try_send(notice).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Makes Events of notices.
pub struct Publisher {
    client: Client,
    node_name: String,
    notices: mpsc::Receiver<Notice>,
    dropped: Arc<AtomicUsize>,
    /// What was said within [`QUIET`], and when.
    told: HashMap<(ObjectName, Reason), Instant>,
}

impl Publisher {
    /// Publishes until nobody is left to leave a notice. What fails is not tried again.
    pub async fn run(mut self) {
        while let Some(first) = self.notices.recv().await {
            sleep(GATHER).await;
            for ((service, reason), texts) in self.gather(first) {
                if !self.is_news(&service, reason) {
                    continue;
                }
                match timeout(PATIENCE, self.publish(&service, reason, &texts)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => debug!(%service, ?reason, %error, "no Event"),
                    Err(_) => debug!(%service, ?reason, "no Event: the API server does not answer"),
                }
            }
            match self.dropped.swap(0, Ordering::Relaxed) {
                0 => {}
                dropped => info!(dropped, "too many Events at once"),
            }
        }
    }

    /// Everything that waits, by Service and reason.
    fn gather(&mut self, first: Notice) -> BTreeMap<(ObjectName, Reason), BTreeSet<String>> {
        let mut gathered = BTreeMap::<_, BTreeSet<_>>::new();
        for Notice { service, reason, text } in
            iter::once(first).chain(iter::from_fn(|| self.notices.try_recv().ok()))
        {
            gathered.entry((service, reason)).or_default().insert(text);
        }
        gathered
    }

    /// Whether nothing was said of it for a while; from now on something was.
    fn is_news(&mut self, service: &ObjectName, reason: Reason) -> bool {
        let (now, about) = (Instant::now(), (service.clone(), reason));
        self.told.retain(|_, told| now.duration_since(*told) < QUIET);
        let is_news = !self.told.contains_key(&about);
        if is_news {
            self.told.insert(about, now);
        }
        is_news
    }

    async fn publish(
        &self,
        service: &ObjectName,
        reason: Reason,
        texts: &BTreeSet<String>,
    ) -> kube::Result<()> {
        let Some(uid) = self.uid(service).await? else { return Ok(()) };
        let event = event::warning(service, &uid, reason, texts, &self.node_name);
        let events: Api<Event> = Api::namespaced(self.client.clone(), &service.namespace);
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

#[cfg(test)]
mod tests;
