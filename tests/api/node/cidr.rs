//! `detectLocalMode: NodeCIDR` with a real kube-apiserver.

use anyhow::ensure;
use serde_json::json;
use testkit::{control_plane::ControlPlane, daemon::eventually};

use super::{daemon, lab, register};

/// Not the Node that other tests have at the same server.
const NAME: &str = "with-pod-cidrs";

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn the_daemon_waits_for_the_pod_cidrs_of_its_node_and_ends_when_it_has_others() {
    let Some(server) = ControlPlane::from_env_or_skip().unwrap() else { return };
    let lab = lab(0, &server);
    let daemon = daemon(&lab, &server, &["--hostname-override", NAME, "--detect-local-mode=NodeCIDR"]);
    let waits = || {
        eventually("it waits", || {
            let status = daemon.ask(&lab.node, "status")?;
            ensure!(status.contains(&format!("waiting for the podCIDRs of the Node {NAME}")), "{status}");
            Ok(())
        })
        .unwrap();
    };

    // There is no Node yet, then one without pod CIDRs, which a controller gives it then.
    waits();
    register(&lab, &server, NAME, None);
    waits();
    let node = |cidrs: [&str; 2]| {
        let [first, _] = cidrs;
        let spec = json!({"podCIDR": first, "podCIDRs": cidrs});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}, "spec": spec});
        server.apply(&node).unwrap();
    };
    let cidrs = ["10.244.7.0/24", "fd00:10:244:7::/64"];
    node(cidrs);
    eventually("the tables go by the pod CIDRs", || {
        for (family, cidr) in [("ip", cidrs[0]), ("ip6", cidrs[1])] {
            let table = lab.node.run("nft", &["list", "table", family, "kube-ipvs"])?;
            ensure!(table.contains(&format!("saddr {cidr} ")), "{table}");
        }
        Ok(())
    })
    .unwrap();

    // A Node that is gone changes nothing. Registered anew it is given others.
    server.delete_node(NAME).unwrap();
    eventually("the log says that the Node is gone", || {
        ensure!(daemon.log().contains("was deleted; its last zone, addresses and pod CIDRs stay in use"));
        Ok(())
    })
    .unwrap();
    daemon.ask(&lab.node, "status").unwrap();
    node(["10.244.9.0/24", "fd00:10:244:7::/64"]);
    let (code, log) = daemon.ended().unwrap();
    assert_eq!(code, Some(1), "{log}");
    let said = "changed from 10.244.7.0/24,fd00:10:244:7::/64 to 10.244.9.0/24,fd00:10:244:7::/64";
    assert!(log.contains(said), "{log}");
    server.delete_node(NAME).unwrap();
}
