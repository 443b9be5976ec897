//! The API server as source: three watches, one for each kind of object.
//!
//! While the server is unreachable nothing is sent, so the node keeps serving what it last knew. The objects of
//! the first list are sent as they arrive (InitApply), and its end carries the names of all of them (InitDone).
//! A later list is sent as one replacement.

mod client;
mod encoding;
mod failure;
mod reflector;
mod requests;
mod watches;

#[cfg(test)]
mod tests;

use std::{convert::Infallible, time::Duration};

use kube::Client;
use service::{Change, EndpointSlice, Event, Node, Service};
use tokio::{sync::Notify, time::timeout};
use tracing::warn;

pub use self::client::{ClientError, client, for_single_objects};
pub use self::watches::{PastFailure, Watch, WatchState, Watches};

use self::reflector::{Fields, Reflector, Selectors};
use crate::objects::Kind as _;

/// The label selector for Services: those with this label belong to other proxies, whatever its value.
const SERVICE_LABELS: &str = "!service.kubernetes.io/service-proxy-name";
/// The field selector for Services: headless ones have nothing to serve. Servers before 1.31 do not know
/// the field.
const SERVICE_FIELDS: &str = "spec.clusterIP!=None";
/// The label selector for EndpointSlices: those of headless Services have nothing to serve.
const SLICE_LABELS: &str = "!service.kubernetes.io/headless";

/// How long Services wait for a Node with IPs, as with kube-proxy. Without the node's zone, zone hints
/// mean nothing: a restart would add the endpoints of other zones and remove them a moment later. Without
/// its IPs, `nodePortAddresses: [primary]` would remove every NodePort. So an answer without the Node, or
/// with a Node that still has no IPs, does not end the wait.
const NODE_PATIENCE: Duration = Duration::from_secs(30);

/// Watches Services, EndpointSlices and the Node of this name, and sends their changes for ever.
///
/// `send` is called from one task, in the order of each kind's events. There is no order between the kinds,
/// except that a Node with IPs comes first if the server sends it within half a minute. `watches` holds the
/// state of each watch.
pub async fn watch(client: Client, node_name: &str, watches: &Watches, send: impl Fn(Change)) -> Infallible {
    let services =
        Selectors { labels: Some(SERVICE_LABELS.into()), fields: Fields::IfKnown(SERVICE_FIELDS.into()) };
    let slices = Selectors { labels: Some(SLICE_LABELS.into()), fields: Fields::None };

    let ips_known = Notify::new();
    let node = watch_node(&client, node_name, watches, |change| {
        if matches!(&change, Change::Node(Some(node)) if !node.ips.is_empty()) {
            ips_known.notify_one();
        }
        send(change);
    });
    let everything_else = async {
        if timeout(NODE_PATIENCE, ips_known.notified()).await.is_err() {
            warn!(
                "no Node with IPs for this node within {} s; continuing without it",
                NODE_PATIENCE.as_secs()
            );
        }
        let send_services = |event| send(Change::Services(event));
        let services =
            Reflector::<Service, _>::new(&client, Service::PLURAL, services, watches, send_services);
        let send_slices = |event| send(Change::Slices(event));
        let slices =
            Reflector::<EndpointSlice, _>::new(&client, EndpointSlice::PLURAL, slices, watches, send_slices);
        tokio::join!(services.run(), slices.run())
    };
    let (never, _) = tokio::join!(node, everything_else);
    never
}

/// The name of the watch of other nodes in `status` and metrics.
const OTHER_NODES: &str = "nodes (others)";

/// Watches the Nodes of all others than this name, and sends their changes for ever. Each node of a cluster reports to
/// its Node every five minutes, so this is only done where something depends on it.
pub async fn watch_peers(
    client: &Client,
    node_name: &str,
    watches: &Watches,
    send: impl Fn(Change),
) -> Infallible {
    let others = Selectors { labels: None, fields: Fields::Always(format!("metadata.name!={node_name}")) };
    let _forgotten_at_the_end = ForgottenWhenDropped(watches, OTHER_NODES);
    let send = |event| send(Change::Peers(event));
    Reflector::<Node, _>::new(client, OTHER_NODES, others, watches, send).run().await
}

/// A watch that may end. `status` must not show its last failure afterwards.
struct ForgottenWhenDropped<'a>(&'a Watches, &'static str);

impl Drop for ForgottenWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.forget(self.1);
    }
}

/// Watches only the Node of this name, and sends its changes for ever.
pub async fn watch_node(
    client: &Client,
    node_name: &str,
    watches: &Watches,
    send: impl Fn(Change),
) -> Infallible {
    let node = Selectors { labels: None, fields: Fields::Always(format!("metadata.name={node_name}")) };
    let send = |event| this_node(event).into_iter().for_each(&send);
    Reflector::<Node, _>::new(client, Node::PLURAL, node, watches, send).run().await
}

/// The change of this node for an event of a list or a watch that holds no other node.
fn this_node(event: Event<Node>) -> Option<Change> {
    let node = match event {
        Event::Apply(node) => Some(node),
        Event::InitApply(nodes) => return nodes.into_iter().next_back().map(|node| Change::Node(Some(node))),
        Event::Replace(nodes) => nodes.into_iter().next_back(),
        Event::InitDone(names) if !names.is_empty() => return None,
        Event::InitDone(_) => None,
        Event::Delete(name) => {
            warn!("the Node {} was deleted; its last zone, addresses and pod CIDRs stay in use", name.name());
            return Some(Change::Node(None));
        }
    };
    if node.is_none() {
        warn!(
            "no Node has this node's name (--hostname-override): unless it was known before, zone hints are not \
             used, and nodePortAddresses \"primary\" serves no NodePort"
        );
    }
    Some(Change::Node(node))
}
