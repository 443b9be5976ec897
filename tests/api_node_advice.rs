//! What `kubectl describe node` shows of a node that hurts traffic to Services.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::Event;
use kube::{Api, api::ListParams};
use testkit::{
    control_plane::ControlPlane,
    daemon::{Daemon, eventually_within},
    lab::Lab,
};

/// The node reaches its API server over lo.
const HOST_FIREWALL: &str = "
    table inet host {
        chain input { type filter hook input priority 0; policy drop; iif lo accept; }
        chain forward { type filter hook forward priority 0; policy drop; }
    }";

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn a_node_whose_firewall_drops_what_it_does_not_know_has_an_event_that_says_so() {
    let Some(server) = ControlPlane::from_env_or_skip().unwrap() else { return };
    let lab = Lab::new(1, 8080).unwrap();
    lab.node.reach(server.address().unwrap()).unwrap();
    server.create_node("node", &[lab.node.ipv4.into(), lab.node.ipv6.into()], None, &[]).unwrap();
    lab.node.run("nft", &[HOST_FIREWALL]).unwrap();

    let kubeconfig = server.proxy_kubeconfig();
    let _daemon = Daemon::start(&lab.node, &["--kubeconfig", &kubeconfig.to_string_lossy()]).unwrap();
    // As kubectl selects, with the uid that kubelet gives: the Node's name.
    let of_the_node = ListParams::default()
        .fields("involvedObject.kind=Node,involvedObject.name=node,involvedObject.uid=node");
    let events: Api<Event> = Api::namespaced(server.admin_client(), "default");
    // Each node waits for its part of ten seconds.
    let event = eventually_within(Duration::from_secs(60), "the Node has an Event", || {
        let found = server.block_on(events.list(&of_the_node))?.items;
        found.into_iter().find(|event| event.reason.as_deref() == Some("HostFirewallDrops")).context("none")
    })
    .unwrap();
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(event.reporting_component.as_deref(), Some("kube-ipvs"));
    let message = event.message.unwrap();
    for words in ["inet host input", "inet host forward", "remedy: --host-firewall=accept"] {
        assert!(message.contains(words), "{words} is not in: {message}");
    }
}
