//! The API server as source: three watches, one for each kind of object.
//!
//! While the server is out of reach nothing is sent, so that the node keeps serving what it last
//! knew. After each complete list everything is sent as one replacement.

mod failure;
mod reflector;
mod retry;

#[cfg(test)]
mod tests;

use std::convert::Infallible;

use kube::{Api, Client};
use service::{Change, EndpointSlice, Node, Service};

use self::reflector::{Reflector, Selectors};
use crate::view::{Kind, View};

/// Services of other proxies are none of ours, whatever the label's value.
const SERVICE_LABELS: &str = "!service.kubernetes.io/service-proxy-name";
/// Headless Services have nothing to serve.
const SERVICE_FIELDS: &str = "spec.clusterIP!=None";
/// Nor have their slices.
const SLICE_LABELS: &str = "!service.kubernetes.io/headless";

/// Watches Services, EndpointSlices and the Node of this name, and sends what they say, for ever.
///
/// `send` is called from one task, in the order of each kind's events; between the kinds there is no
/// order. Nothing is sent of a kind before its first complete list.
pub async fn watch(client: Client, node_name: &str, send: impl Fn(Change)) -> Infallible {
    let services = Selectors { labels: Some(SERVICE_LABELS.into()), fields: Some(SERVICE_FIELDS.into()) };
    let slices = Selectors { labels: Some(SLICE_LABELS.into()), fields: None };
    let node = Selectors { labels: None, fields: Some(format!("metadata.name={node_name}")) };

    let (never, _, _) = tokio::join!(
        follow::<Service>(&client, services, &send),
        follow::<EndpointSlice>(&client, slices, &send),
        follow::<Node>(&client, node, &send),
    );
    never
}

async fn follow<T: Kind>(client: &Client, selectors: Selectors, send: &impl Fn(Change)) -> Infallible {
    let api = Api::<View<T>>::all(client.clone());
    let send = |news| {
        if let Some(change) = T::change(news) {
            send(change);
        }
    };
    Reflector::new(api, selectors, send).run().await
}
