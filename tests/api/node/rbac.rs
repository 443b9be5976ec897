//! The daemon with the role in manifests/base/rbac.yaml, at a real kube-apiserver.

use anyhow::ensure;
use k8s_openapi::api::{core::v1::Service, events::v1::Event};
use kube::{Api, api::ListParams};
use serde_json::json;
use testkit::{
    control_plane::ControlPlane,
    daemon::{Daemon, eventually, eventually_within},
    lab::Lab,
};

use super::{EVENT_WITHIN, lab, register};
use crate::support::role::{Right, account, kubeconfig, role};

struct Cluster {
    lab: Lab,
    server: ControlPlane,
    kubeconfigs: tempfile::TempDir,
}

impl Cluster {
    /// `None`, said as a skip, where there is no API server.
    fn new() -> Option<Self> {
        let server = ControlPlane::from_env_or_skip().unwrap()?;
        let lab = lab(0, &server);
        register(&lab, &server, "node", None);
        Some(Self { lab, server, kubeconfigs: tempfile::tempdir().unwrap() })
    }

    /// The daemon with these rights. Only this level logs Events that it could not create.
    fn daemon(&self, name: &str, rights: &[Right]) -> Daemon {
        account(&self.server, name, rights);
        let kubeconfig = kubeconfig(&self.server, name, self.kubeconfigs.path());
        Daemon::start(&self.lab.node, &["--kubeconfig", &kubeconfig.to_string_lossy(), "-v=4"]).unwrap()
    }

    /// Has two Services want one address, which is worth an Event.
    fn contradict(&self, namespace: &str) {
        let metadata = json!({"name": namespace});
        self.server.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})).unwrap();
        for name in ["elder", "younger"] {
            self.server
                .apply(&json!({
                    "apiVersion": "v1", "kind": "Service",
                    "metadata": {"namespace": namespace, "name": name},
                    "spec": {"externalIPs": ["203.0.113.77"], "ports": [{"port": 80}]},
                }))
                .unwrap();
        }
    }

    fn make_up(&self, namespace: &str) {
        for name in ["elder", "younger"] {
            self.server.delete::<Service>(namespace, name).unwrap();
        }
    }

    fn events(&self, namespace: &str) -> anyhow::Result<Vec<Event>> {
        let events: Api<Event> = Api::namespaced(self.server.admin_client(), namespace);
        Ok(self.server.block_on(events.list(&ListParams::default()))?.items)
    }
}

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn the_role_of_the_manifests_is_enough_for_the_daemon() {
    let Some(cluster) = Cluster::new() else { return };
    cluster.contradict("role");
    let daemon = cluster.daemon("role", &role());
    eventually_within(EVENT_WITHIN, "there is an Event", || {
        ensure!(!cluster.events("role")?.is_empty());
        Ok(())
    })
    .unwrap();
    eventually("everything is programmed", || {
        let status = daemon.ask(&cluster.lab.node, "status")?;
        ensure!(status.contains("synced:          yes"), "{status}");
        Ok(())
    })
    .unwrap();
    let log = daemon.log();
    assert!(!log.contains("forbidden"), "{log}");
    cluster.make_up("role");
}

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn without_the_right_to_create_events_services_are_served_and_the_log_says_so() {
    let Some(cluster) = Cluster::new() else { return };
    let (events, rest): (Vec<_>, Vec<_>) = role().into_iter().partition(|right| right.resource == "events");
    cluster.contradict("no-events");
    let daemon = cluster.daemon("no-events", &rest);
    eventually_within(EVENT_WITHIN, "each right that is missing is named", || {
        let log = daemon.log();
        for right in &events {
            ensure!(log.contains(&right.refusal()), "{}", right.refusal());
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(cluster.events("no-events").unwrap(), []);
    let status = daemon.ask(&cluster.lab.node, "status").unwrap();
    assert!(status.contains("synced:          yes"), "{status}");
    cluster.make_up("no-events");
}
