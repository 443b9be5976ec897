//! The Nodes of the cluster: this node's, and the others while anything depends on their addresses.
//!
//! With a wrong name of this node everything seems to work, and load balancers leave it.
//!
//! Each Node is written every few minutes, and a watch of all Nodes on each node costs the API server the square of
//! that. A cluster whose Services have only ClusterIPs and NodePorts is spared it.

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
use service::{Change, Event, Options, Service};
use tokio::{
    select,
    sync::{Notify, watch},
    time::{sleep, timeout},
};
use tracing::warn;

use super::Source;
use crate::{
    events::{Cause, Outbox},
    serve::health::UnknownNode,
};

/// For how long the Nodes are followed after the last need. A Service that comes and goes makes no list.
const KEPT: Duration = Duration::from_secs(5 * 60);
/// Over how long all nodes begin that learn of the first need at the same moment.
const SPREAD: Duration = Duration::from_secs(5);
/// For how long external addresses wait for the list, as Services do for the Node.
const LIST_PATIENCE: Duration = Duration::from_secs(30);

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
    pub(crate) fn on_change(&self, change: &Change, options: &Options) {
        let is_external = |service: &Service| service.has_external_addresses(options);
        let needed = match change {
            Change::Services(Event::Apply(service)) => is_external(service),
            Change::Services(Event::InitApply(services) | Event::Replace(services)) => {
                services.iter().any(is_external)
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
            if matches!(self.source, Source::Api(_))
                && timeout(LIST_PATIENCE, listed.notified()).await.is_err()
            {
                warn!(
                    "the Nodes could not be listed within {} s: external addresses are bound without checking whether they \
                     belong to another node",
                    LIST_PATIENCE.as_secs()
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

/// How long the Node may be missing before an Event says so: the proxy may start before the kubelet has created it.
const NODE_PATIENCE: Duration = Duration::from_secs(30);

/// Whether the source has the Node, for `kube-ipvs status`. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct KnownNode {
    name: String,
    /// What a missing Node means for this source.
    unknown: UnknownNode,
    /// Whether the Node exists; `None` before the source has sent anything.
    exists: watch::Sender<Option<bool>>,
}

impl KnownNode {
    pub(crate) fn new(name: &str, unknown: UnknownNode) -> Self {
        Self { name: name.to_owned(), unknown, exists: watch::Sender::new(None) }
    }

    /// Takes note of a change from the source.
    pub(crate) fn on_change(&self, change: &Change) {
        match change {
            Change::Node(Some(_)) => _ = self.exists.send_replace(Some(true)),
            // Manifests need no Node.
            Change::Node(None) if self.unknown == UnknownNode::NotEligible => {
                self.exists.send_replace(Some(false));
            }
            _ => {}
        }
    }

    /// The problem if the Node is missing.
    pub(crate) fn trouble(&self) -> Option<String> {
        (*self.exists.borrow() == Some(false)).then(|| no_node(&self.name))
    }

    /// Repeats the problem in Events while the Node is missing for longer than [`NODE_PATIENCE`].
    pub(crate) async fn report(&self, outbox: &Outbox) -> Infallible {
        let mut exists = self.exists.subscribe();
        loop {
            // Fails only without a sender, which is ours.
            _ = exists.wait_for(|exists| *exists == Some(false)).await;
            let say = async {
                sleep(NODE_PATIENCE).await;
                outbox.remind(Cause::NO_SUCH_NODE, &no_node(&self.name)).await
            };
            select! {
                never = say => match never {},
                _ = exists.wait_for(|exists| *exists == Some(true)) => {}
            }
        }
    }
}

/// The text for a missing Node of this name.
pub(crate) fn no_node(name: &str) -> String {
    format!(
        "there is no Node {name}: check --hostname-override. Without the Node, load balancers avoid this node, and \
         NodePorts and zones may be wrong"
    )
}

#[cfg(test)]
mod tests {
    use service::Node;

    use super::*;
    use crate::events::tests::Server;

    fn known(unknown: UnknownNode, changes: &[Change]) -> KnownNode {
        let node = KnownNode::new("othername", unknown);
        for change in changes {
            node.on_change(change);
        }
        node
    }

    fn node() -> Change {
        Change::Node(Some(Node::default()))
    }

    #[test]
    fn a_node_that_is_not_there_is_named_until_it_is() {
        let known = |changes: &[Change]| known(UnknownNode::NotEligible, changes);
        assert_eq!(known(&[]).trouble(), None, "nothing is known yet");
        let other_change = Change::Services(Event::Replace(Vec::new()));
        let trouble = known(&[Change::Node(None), other_change]).trouble().unwrap();
        assert!(trouble.starts_with("there is no Node othername: check --hostname-override."), "{trouble}");
        assert_eq!(known(&[Change::Node(None), node()]).trouble(), None);
        assert!(known(&[node(), Change::Node(None)]).trouble().is_some());
    }

    #[test]
    fn manifests_need_no_node() {
        assert_eq!(known(UnknownNode::Eligible, &[Change::Node(None)]).trouble(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_minute_without_a_node_is_an_event_and_less_is_none() {
        let server = Server::taking();
        let (outbox, publisher) = server.queue();
        tokio::spawn(publisher.run());
        let known = known(UnknownNode::NotEligible, &[Change::Node(None)]);
        let story = async {
            sleep(NODE_PATIENCE / 2).await;
            known.on_change(&node());
            sleep(NODE_PATIENCE * 4).await;
            assert_eq!(server.events(), [""; 0]);
            known.on_change(&Change::Node(None));
            sleep(NODE_PATIENCE * 4).await;
        };
        tokio::select! {
            () = story => {}
            never = known.report(&outbox) => match never {},
        }
        let [event] = &server.events()[..] else { panic!("not one Event") };
        assert_eq!((&event["reason"], &event["type"]), (&"NoSuchNode".into(), &"Warning".into()));
        assert_eq!(event["note"], no_node("othername"));
    }
}
