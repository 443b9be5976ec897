//! The version before and the present one take over from each other on a node that is in use. What one leaves in the
//! kernel and on the node, the other goes on with; each asks the other's daemon.

use std::{collections::BTreeSet, env, path::PathBuf, thread};

use anyhow::ensure;
use testkit::{
    daemon::{Daemon, binary, eventually},
    lab::Host,
};

use crate::{
    daemon::restarts::{A_WHILE, SERVICE, has_synced, terminate, write_service},
    support::{
        cluster::{Cluster, NO_PERIOD, page},
        traffic,
    },
};

/// Metrics that the version before has and the present one does not, each with a line in CHANGELOG.md.
const METRICS_THAT_ARE_GONE: [&str; 0] = [];

/// What a program asks a daemon by its control socket.
const QUESTIONS: [&str; 4] = ["status", "list", "diff", "resync"];

/// The program of the version before.
fn earlier() -> PathBuf {
    env::var_os("KUBE_IPVS_EARLIER_BIN").unwrap().into()
}

/// The lines of a running daemon's metrics that name them and their types.
fn types_of_metrics(node: &Host) -> BTreeSet<String> {
    let text = page(node, "/metrics").unwrap();
    text.lines().filter(|line| line.starts_with("# TYPE ")).map(str::to_owned).collect()
}

#[test]
#[ignore = "needs root, ip_vs and the version before: cargo xtask test --tier release"]
fn upgrade_and_downgrade_under_load_lose_nothing() {
    goes_up_and_down(&[NO_PERIOD]);
}

#[test]
#[ignore = "needs root, ip_vs and the version before: cargo xtask test --tier release"]
fn upgrade_and_downgrade_with_vips_that_are_routes_lose_nothing() {
    goes_up_and_down(&[NO_PERIOD, "--vip-binding=route"]);
}

fn goes_up_and_down(arguments: &[&str]) {
    let cluster = Cluster::without_daemon(3);
    let node = &cluster.lab.node;
    let another_client = traffic::another_client(&cluster.lab);
    write_service(&cluster);
    let versions = [earlier(), binary().unwrap()];
    let files = tempfile::tempdir().unwrap();
    let (socket, manifests) = (files.path().join("control.sock"), cluster.manifests.path().to_string_lossy());
    let arguments = [&["--manifests", &manifests], arguments].concat();
    let start = |version: &PathBuf| Daemon::of_version(node, version.clone(), &arguments, &socket).unwrap();

    let mut daemon = start(&versions[0]);
    has_synced(&daemon, node);
    let mut metrics = vec![types_of_metrics(node)];
    let load = traffic::start(&traffic::targets(&cluster.lab, &another_client, SERVICE));
    let servers = node.run("ipvsadm", &["-Sn"]).unwrap();
    for turn in 1..=4 {
        let next = start(&versions[turn % 2]);
        eventually("the next version waits for its turn", || {
            ensure!(next.log().contains("waiting until it ends"), "{}", next.log());
            Ok(())
        })
        .unwrap();
        thread::sleep(A_WHILE);
        terminate(&daemon, node);
        assert_eq!(daemon.ended().unwrap().0, Some(0));
        has_synced(&next, node);
        daemon = next;
        for version in &versions {
            for question in QUESTIONS {
                daemon.ask_by(node, version, question).unwrap();
            }
        }
        thread::sleep(A_WHILE);
        metrics.push(types_of_metrics(node));
    }
    assert_eq!(node.run("ipvsadm", &["-Sn"]).unwrap(), servers);
    traffic::is_whole(load);
    let gone: Vec<_> = metrics[0]
        .difference(&metrics[1])
        .filter(|metric| !METRICS_THAT_ARE_GONE.iter().any(|gone| metric.contains(gone)))
        .collect();
    assert!(gone.is_empty(), "metrics are gone, or have another type: {gone:?}");
}
