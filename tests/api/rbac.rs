//! Watching with the role in manifests/base/rbac.yaml, at a real kube-apiserver. The daemon as a whole is in
//! api/node/rbac.rs.

use std::{cell::Cell, time::Duration};

use kube::Client;
use kubernetes::api::{Watches, watch};
use testkit::control_plane::ControlPlane;
use tokio::time::{sleep, timeout};

use crate::support::role::{Right, account, kubeconfig, role};

const PATIENCE: Duration = Duration::from_secs(20);

/// `None`, said as a skip, where there is no API server.
fn server() -> Option<ControlPlane> {
    let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS") else {
        println!("SKIP: no kube-apiserver: KUBEBUILDER_ASSETS is not set");
        return None;
    };
    let server = ControlPlane::start(assets.as_ref(), &[]).unwrap();
    server.create_node("node", &["192.0.2.1".parse().unwrap()], None, &[]).unwrap();
    Some(server)
}

/// Watches with these rights until `done`, given what cannot be watched and how many changes have come.
fn watch_until(
    server: &ControlPlane,
    name: &str,
    rights: &[Right],
    done: impl Fn(&[String], usize) -> bool,
) -> Vec<String> {
    account(server, name, rights);
    let kubeconfigs = tempfile::tempdir().unwrap();
    let client: Client = server.client_for(&kubeconfig(server, name, kubeconfigs.path())).unwrap();
    let (watches, changes) = (Watches::default(), Cell::new(0));
    let enough = async {
        while !done(&watches.troubles(), changes.get()) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    server.block_on(async {
        tokio::select! {
            never = watch(client, "node", &watches, |_| changes.set(changes.get() + 1)) => match never {},
            within = timeout(PATIENCE, enough) => assert!(within.is_ok(), "{name}: {:?}", watches.troubles()),
        }
    });
    watches.troubles()
}

#[test]
#[ignore = "needs kube-apiserver: cargo xtask test --tier api"]
fn each_right_of_the_role_of_the_manifests_is_needed_to_watch() {
    let Some(server) = server() else { return };
    let role = role();
    // The Node, the Services and the slices: the list of each is a change.
    let troubles =
        watch_until(&server, "all", &role, |troubles, changes| troubles.is_empty() && changes >= 3);
    assert_eq!(troubles, [""; 0]);

    for right in role.iter().filter(|right| right.resource != "events") {
        let rest: Vec<_> = role.iter().filter(|other| *other != right).cloned().collect();
        let name = format!("without-{}-{}", right.verb, right.resource);
        let refusal = right.refusal();
        let is_reported = |troubles: &[String], _| troubles.iter().any(|line| line.contains(&refusal));
        let troubles = watch_until(&server, &name, &rest, is_reported);
        let others =
            rest.iter().map(Right::refusal).filter(|other| troubles.iter().any(|line| line.contains(other)));
        assert_eq!(others.collect::<Vec<_>>(), [""; 0], "{name}");
    }
}
