//! The other Nodes of the cluster, followed while anything depends on their addresses.
//!
//! Each Node is written every few minutes, and a watch of all Nodes on each node costs the API server the square of that.
//! A cluster whose Services have only ClusterIPs and NodePorts is spared it.

use std::{
    convert::Infallible,
    future,
    hash::{BuildHasher, BuildHasherDefault},
    sync::Arc,
    time::Duration,
};

use kubernetes::api::Watches;
use reconciler::{Observer, SyncEvent};
use rustc_hash::FxHasher;
use service::{Change, Event, Service};
use tokio::{
    select,
    sync::{Notify, watch},
    time::{sleep, timeout},
};
use tracing::warn;

use super::Source;

/// For how long the Nodes are followed after the last need. A Service that comes and goes makes no list.
const KEPT: Duration = Duration::from_secs(5 * 60);
/// Over how long all nodes begin that learn of the first need at the same moment.
const SPREAD: Duration = Duration::from_secs(5);
/// For how long external addresses wait for the list, as Services do for the Node.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether anything depends on the addresses of the other nodes.
///
/// The desired state knows, but is read only after a sync; and the first sync waits for the Nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodesNeeded(Arc<watch::Sender<bool>>);

impl NodesNeeded {
    /// A receiver of this fact.
    pub(crate) fn receiver(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }

    /// Notes a new Service with an external address.
    pub(crate) fn on_change(&self, change: &Change) {
        let needed = match change {
            Change::Services(Event::Apply(service)) => service.has_external_addresses(),
            Change::Services(Event::InitApply(services) | Event::Replace(services)) => {
                services.iter().any(Service::has_external_addresses)
            }
            _ => false,
        };
        if needed {
            self.set(true);
        }
    }

    fn set(&self, needed: bool) {
        self.0.send_if_modified(|known| std::mem::replace(known, needed) != needed);
    }
}

impl Observer for NodesNeeded {
    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        self.set(sync.state.needs_nodes());
    }
}

/// Follows the other Nodes.
pub(crate) struct OtherNodes<'a, F> {
    pub(crate) source: &'a Source,
    pub(crate) node_name: &'a str,
    pub(crate) watches: &'a Watches,
    pub(crate) first_sync_ended: watch::Receiver<bool>,
    /// Receives the changes.
    pub(crate) send: F,
}

impl<F: Fn(Change)> OtherNodes<'_, F> {
    /// Follows the Nodes while they are needed, and a while longer, for ever.
    pub(crate) async fn follow(&self, needed: watch::Receiver<bool>) -> Infallible {
        loop {
            if needed.clone().wait_for(|needed| *needed).await.is_err() {
                return future::pending().await;
            }
            // At a start the first sync waits for them.
            if *self.first_sync_ended.borrow() {
                sleep(self.own_share_of(SPREAD)).await;
            }
            select! {
                never = self.follow_or_give_up() => match never {},
                () = no_longer(needed.clone()) => {}
            }
            if matches!(self.source, Source::Api(_)) {
                (self.send)(Change::ForgetPeers);
            }
        }
    }

    /// Follows the Nodes. If they cannot be listed, nothing waits for them after a while.
    async fn follow_or_give_up(&self) -> Infallible {
        let listed = Notify::new();
        let send = |change| {
            if matches!(&change, Change::Peers(event) if event.completes_the_list()) {
                listed.notify_one();
            }
            (self.send)(change);
        };
        let give_up = async {
            if matches!(self.source, Source::Api(_)) && timeout(PATIENCE, listed.notified()).await.is_err() {
                warn!(
                    "the Nodes could not be listed within {} s: external addresses are bound without checking whether they \
                     belong to another node",
                    PATIENCE.as_secs()
                );
                (self.send)(Change::PeersUnavailable);
            }
            future::pending::<Infallible>().await
        };
        select! {
            never = self.source.follow_peers(self.node_name, self.watches, send) => never,
            never = give_up => never,
        }
    }

    /// A part of a time that differs from node to node, and is always the same on one.
    fn own_share_of(&self, all: Duration) -> Duration {
        let hash = BuildHasherDefault::<FxHasher>::default().hash_one(self.node_name);
        let share = u32::try_from(hash >> 32).unwrap_or_default();
        all.mul_f64(f64::from(share) / f64::from(u32::MAX))
    }
}

/// Waits until they have not been needed for a while.
async fn no_longer(mut needed: watch::Receiver<bool>) {
    loop {
        if needed.wait_for(|needed| !*needed).await.is_err() {
            return future::pending().await;
        }
        if timeout(KEPT, needed.wait_for(|needed| *needed)).await.is_err() {
            return;
        }
    }
}
