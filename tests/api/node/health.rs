//! Health and Events of the proxy with a real kube-apiserver.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
};

use anyhow::ensure;
use k8s_openapi::api::core::v1::{Event, Service};
use kube::Api;
use serde_json::{Value, json};
use testkit::{
    control_plane::ControlPlane,
    daemon::{Daemon, eventually, eventually_within},
    lab::{Host, Lab, Page},
    metrics::value,
};

use super::{EVENT_WITHIN, daemon, events, lab, node_event, node_events, register};
use crate::support::cluster::page;

/// The health check port of the test's Service.
const PORT: u16 = 32_100;

/// A lab whose node has a name of its own at a server that other tests may share.
struct Cluster {
    lab: Lab,
    server: ControlPlane,
    node: &'static str,
}

impl Cluster {
    /// `None`, said as a skip, where there is no API server.
    fn new(node: &'static str) -> Option<Self> {
        let server = ControlPlane::from_env_or_skip().unwrap()?;
        Some(Self { lab: lab(1, &server), server, node })
    }

    fn daemon(&self, arguments: &[&str]) -> Daemon {
        let arguments = [&["--hostname-override", self.node], arguments].concat();
        daemon(&self.lab, &self.server, &arguments)
    }

    fn create_node(&self) {
        register(&self.lab, &self.server, self.node, None);
    }

    fn taint(&self, taints: &Value) {
        self.server
            .apply(&json!({
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": self.node},
                "spec": {"taints": taints},
            }))
            .unwrap();
    }

    /// Waits until a page of the node has this status.
    fn answers(&self, port: u16, path: &str, status: u16) -> Page {
        let at = SocketAddr::new(self.lab.node.ipv4.into(), port);
        eventually(&format!("{at}{path} answers {status}"), || {
            let page = self.lab.client.get(at, path)?;
            ensure!(page.status == status, "{page:?}");
            Ok(page)
        })
        .unwrap()
    }

    fn node_events(&self, reason: &str) -> Vec<Event> {
        node_events(&self.server, self.node, reason)
    }

    fn node_event(&self, reason: &str) -> Event {
        node_event(&self.server, self.node, reason).unwrap()
    }
}

fn occupy(node: &Host, port: u16) -> TcpListener {
    node.inside(move || TcpListener::bind(("::", port))).unwrap().unwrap()
}

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn load_balancers_are_sent_elsewhere_when_the_node_is_about_to_go_or_gone() {
    let Some(cluster) = Cluster::new("health-node") else { return };
    let daemon = cluster.daemon(&[]);
    let said = cluster.answers(10_256, "/healthz", 503);
    assert!(said.body.contains("\"nodeEligible\":false"), "there is no Node yet: {said:?}");
    cluster.answers(10_256, "/livez", 200);
    let status = || daemon.ask(&cluster.lab.node, "status");
    eventually("the status says that there is no Node", || {
        let status = status()?;
        ensure!(status.contains("no, waiting for the Node health-node and its IPs for "), "{status}");
        ensure!(
            status.contains("problem:         there is no Node health-node: check --hostname"),
            "{status}"
        );
        Ok(())
    })
    .unwrap();

    cluster.create_node();
    cluster.answers(10_256, "/healthz", 200);
    assert!(!status().unwrap().contains("there is no Node"), "{}", status().unwrap());
    cluster.taint(&json!([{"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}]));
    let said = cluster.answers(10_256, "/healthz", 503);
    assert!(said.body.contains("\"nodeEligible\":false,\"healthy\":true"), "{said:?}");
    cluster.answers(10_256, "/livez", 200);
    cluster.taint(&json!([{"key": "another", "effect": "NoSchedule"}]));
    cluster.answers(10_256, "/healthz", 200);
    cluster.server.delete_node(cluster.node).unwrap();
    cluster.answers(10_256, "/healthz", 503);
    cluster.answers(10_256, "/livez", 200);
}

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn that_the_proxy_starts_is_one_event_of_the_node_however_often_it_does() {
    let Some(cluster) = Cluster::new("starting-node") else { return };
    cluster.create_node();
    let daemon = cluster.daemon(&[]);
    let event = cluster.node_event("Starting");
    assert_eq!((event.type_.as_deref(), event.action.as_deref()), (Some("Normal"), Some("StartKubeProxy")));
    daemon.kill().unwrap();

    // The second one finds its port taken, and ends with an Event that says so.
    let _taken = occupy(&cluster.lab.node, 10_256);
    let (code, log) = cluster.daemon(&["--bind-address-hard-fail"]).ended().unwrap();
    assert_eq!(code, Some(1), "{log}");
    let [event] = &cluster.node_events("FailedToStartProxierHealthcheck")[..] else {
        panic!("no Event:\n{log}")
    };
    assert_eq!((event.type_.as_deref(), event.action.as_deref()), (Some("Warning"), Some("StartKubeProxy")));
    let message = event.message.as_deref().unwrap();
    assert!(message.contains("0.0.0.0:10256") && message.contains("kube-proxy still running?"), "{message}");
    assert_eq!(cluster.node_events("Starting").len(), 1);
    cluster.server.delete_node(cluster.node).unwrap();
}

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn what_something_else_changed_is_repaired_and_an_event_of_the_node() {
    let Some(cluster) = Cluster::new("repaired-node") else { return };
    cluster.create_node();
    let daemon = cluster.daemon(&[]);
    let node = &cluster.lab.node;
    // The API server's own Service is served everywhere.
    eventually("the first sync has ended", || {
        ensure!(daemon.log().contains(" synced "), "{}", daemon.log());
        Ok(())
    })
    .unwrap();
    node.run("ip", &["link", "delete", "kube-ipvs0"]).unwrap();
    let event = cluster.node_event("ForeignChangeRepaired");
    assert_eq!((event.type_.as_deref(), event.action.as_deref()), (Some("Warning"), Some("SyncProxyRules")));
    let message = event.message.as_deref().unwrap();
    assert!(message.contains("; repaired: ensure device kube-ipvs0"), "{message}");
    cluster.server.delete_node(cluster.node).unwrap();
}

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn a_control_socket_that_cannot_be_made_is_an_event_of_the_node() {
    let Some(cluster) = Cluster::new("silent-node") else { return };
    cluster.create_node();
    let files = tempfile::tempdir().unwrap();
    let socket = files.path().join("control.sock");
    fs::write(&socket, "precious").unwrap();
    let kubeconfig = cluster.server.proxy_kubeconfig();
    let arguments = ["--kubeconfig", &kubeconfig.to_string_lossy(), "--hostname-override", cluster.node];
    let _daemon = Daemon::with_socket(&cluster.lab.node, &arguments, &socket).unwrap();
    let event = cluster.node_event("NoControlSocket");
    assert_eq!((event.type_.as_deref(), event.action.as_deref()), (Some("Warning"), Some("LookAtNode")));
    let message = event.message.unwrap();
    assert_eq!(
        message,
        format!("{} is not a socket, so the control socket cannot be made", socket.display())
    );
    cluster.server.delete_node(cluster.node).unwrap();
}

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn the_metrics_say_when_the_api_server_was_last_heard() {
    let Some(cluster) = Cluster::new("heard-node") else { return };
    cluster.create_node();
    let _daemon = cluster.daemon(&[]);
    let begin = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64() - 60.0;
    eventually("everything is watched", || {
        let page = page(&cluster.lab.node, "/metrics")?;
        ensure!(value(&page, "kube_ipvs_api_server_last_heard_timestamp_seconds")? > begin, "{page}");
        ensure!(value(&page, "kube_ipvs_unwatched_resources")? < 1.0, "{page}");
        Ok(())
    })
    .unwrap();
    cluster.server.delete_node(cluster.node).unwrap();
}

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn a_taken_health_check_port_is_an_event_of_its_service_and_opened_when_free() {
    let Some(cluster) = Cluster::new("checked-node") else { return };
    let namespace = "health-checks";
    let apply = |object: &Value| cluster.server.apply(object).unwrap();
    cluster.create_node();
    apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}));
    apply(&json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": namespace, "name": "web"},
        "spec": {
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": PORT,
            "ports": [{"port": 80, "targetPort": 8080}],
        },
    }));
    apply(&json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"namespace": namespace, "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"port": 8080}],
        "endpoints": [{
            "addresses": [cluster.lab.pods[0].ipv4],
            "nodeName": cluster.node,
            "conditions": {"ready": true},
        }],
    }));
    let services: Api<Service> = Api::namespaced(cluster.server.admin_client(), namespace);
    let uid = cluster.server.block_on(services.get("web")).unwrap().metadata.uid.unwrap();
    let events = || {
        let selected = [("kind", "Service"), ("namespace", namespace), ("name", "web"), ("uid", &uid)];
        events(&cluster.server, namespace, &selected)
    };

    let taken = occupy(&cluster.lab.node, PORT);
    let daemon = cluster.daemon(&[]);
    let event = eventually_within(EVENT_WITHIN, "the Service has an Event", || {
        events().pop().ok_or_else(|| anyhow::anyhow!("no Event"))
    })
    .unwrap();
    assert_eq!(
        (event.reason.as_deref(), event.action.as_deref()),
        (Some("FailedToStartServiceHealthcheck"), Some("Listen"))
    );
    let note = format!(
        "node checked-node failed to start healthcheck \"{namespace}/web\" on port {PORT}: 0.0.0.0: "
    );
    assert!(event.message.as_deref().unwrap().starts_with(&note), "{event:?}");
    drop(taken);
    let page = cluster.answers(PORT, "/", 200);
    assert_eq!(page.header("x-load-balancing-endpoint-weight"), Some("1"));
    assert_eq!(events().len(), 1);
    drop(daemon);
    cluster.server.delete::<Service>(namespace, "web").unwrap();
    cluster.server.delete_node(cluster.node).unwrap();
}
