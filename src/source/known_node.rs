//! Notices that the API server has no Node of this name: with a wrong name everything seems to work, and load balancers
//! leave this node.

use std::{convert::Infallible, time::Duration};

use service::Change;
use tokio::{select, sync::watch, time::sleep};

use crate::{
    events::{Cause, Outbox},
    serve::health::UnknownNode,
};

/// How long the Node may be missing before an Event says so: the proxy may start before the kubelet has created it.
const PATIENCE: Duration = Duration::from_secs(30);

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

    /// Repeats the problem in Events while the Node is missing for longer than [`PATIENCE`].
    pub(crate) async fn report(&self, outbox: &Outbox) -> Infallible {
        let mut exists = self.exists.subscribe();
        loop {
            // Fails only without a sender, which is ours.
            _ = exists.wait_for(|exists| *exists == Some(false)).await;
            let say = async {
                sleep(PATIENCE).await;
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
        "there is no Node {name}: is --hostname-override right? Without the Node, load balancers leave this node, and \
         NodePorts and zones may be wrong"
    )
}

#[cfg(test)]
mod tests {
    use service::{Event, Node};

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
        assert!(
            trouble.starts_with("there is no Node othername: is --hostname-override right?"),
            "{trouble}"
        );
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
            sleep(PATIENCE / 2).await;
            known.on_change(&node());
            sleep(PATIENCE * 4).await;
            assert_eq!(server.events(), [""; 0]);
            known.on_change(&Change::Node(None));
            sleep(PATIENCE * 4).await;
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
