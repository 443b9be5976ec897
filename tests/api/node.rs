//! The program on a node of a lab, fed by a real API server. These run in the test kernel.

mod advice;
mod cidr;
mod credentials;
mod following;
mod health;
mod rbac;
mod token;

use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Event;
use kube::{Api, api::ListParams};
use testkit::{
    control_plane::ControlPlane,
    daemon::{Daemon, eventually_within},
    lab::Lab,
};

/// Each node waits for its part of half a minute before it sends an Event.
const EVENT_WITHIN: Duration = Duration::from_secs(60);

/// A lab with so many pods, whose node reaches the API server.
fn lab(pods: u8, server: &ControlPlane) -> Lab {
    let lab = Lab::new(pods, 8080).unwrap();
    lab.node.reach(server.address().unwrap()).unwrap();
    lab
}

/// Registers the lab's node under this name.
fn register(lab: &Lab, server: &ControlPlane, name: &str, zone: Option<&str>) {
    server.create_node(name, &[lab.node.ipv4.into(), lab.node.ipv6.into()], zone, &[]).unwrap();
}

/// Starts the daemon on the lab's node, with the rights of kube-proxy.
fn daemon(lab: &Lab, server: &ControlPlane, arguments: &[&str]) -> Daemon {
    let kubeconfig = server.proxy_kubeconfig();
    let kubeconfig = ["--kubeconfig", &kubeconfig.to_string_lossy()];
    Daemon::start(&lab.node, &[&kubeconfig[..], arguments].concat()).unwrap()
}

/// The Events that `kubectl describe` selects by these fields of the object that they are about.
fn events(server: &ControlPlane, namespace: &str, about: &[(&str, &str)]) -> Vec<Event> {
    let selected = about.iter().map(|(field, value)| format!("involvedObject.{field}={value}"));
    let selected = ListParams::default().fields(&selected.collect::<Vec<_>>().join(","));
    let events: Api<Event> = Api::namespaced(server.admin_client(), namespace);
    server.block_on(events.list(&selected)).unwrap().items
}

/// The Events of a Node for this reason. Its uid is the one that the kubelet gives: its name.
fn node_events(server: &ControlPlane, node: &str, reason: &str) -> Vec<Event> {
    let mut events = events(server, "default", &[("kind", "Node"), ("name", node), ("uid", node)]);
    events.retain(|event| event.reason.as_deref() == Some(reason));
    events
}

/// Waits for an Event of a Node for this reason.
fn node_event(server: &ControlPlane, node: &str, reason: &str) -> Result<Event> {
    eventually_within(EVENT_WITHIN, "the Node has an Event", || {
        node_events(server, node, reason).pop().with_context(|| format!("no Event {reason}"))
    })
}
