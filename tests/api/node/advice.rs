//! What `kubectl describe node` shows of a node that hurts traffic to Services.

use std::{
    fs::{self, File},
    io,
    net::{Ipv4Addr, UdpSocket},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use testkit::{control_plane::ControlPlane, daemon::binary};

use super::{daemon, lab, node_event, register};

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
    let lab = lab(1, &server);
    register(&lab, &server, "node", None);
    lab.node.run("nft", &[HOST_FIREWALL]).unwrap();

    let _daemon = daemon(&lab, &server, &[]);
    let event = node_event(&server, "node", "HostFirewallDrops").unwrap();
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(event.reporting_component.as_deref(), Some("kube-ipvs"));
    let message = event.message.unwrap();
    for words in ["inet host input", "inet host forward", "remedy: --host-firewall=accept"] {
        assert!(message.contains(words), "{words} is not in: {message}");
    }
}

/// The daemon sees this in the place of what is the machine's: no test is to make its table that small.
const SMALL_TABLE: &str = r#"mount --bind "$0" /proc/sys/net/netfilter/nf_conntrack_max && exec "$@""#;

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn a_node_whose_table_of_conntrack_is_full_has_an_event_that_says_so() {
    let Some(server) = ControlPlane::from_env_or_skip().unwrap() else { return };
    let lab = lab(0, &server);
    register(&lab, &server, "full-node", None);
    let files = tempfile::tempdir().unwrap();
    let file = |name| files.path().join(name);
    fs::write(file("max"), "1\n").unwrap();
    let mut daemon = lab
        .node
        .command("unshare")
        .args(["--mount", "sh", "-c", SMALL_TABLE])
        .args([file("max"), binary().unwrap()])
        .args(["run", "--cluster-cidr=10.244.0.0/16", "--hostname-override=full-node"])
        .args(["--ipvs-sync-period=1s", "--conntrack-max-per-core=0"])
        .args(["--kubeconfig".into(), server.proxy_kubeconfig()])
        .args(["--control-socket".into(), file("control.sock")])
        .stderr(File::create(file("log")).unwrap())
        .spawn()
        .unwrap();
    // The table counts what was sent since conntrack is active here, and the API server may send nothing for a minute.
    let socket = lab.node.inside(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))).unwrap().unwrap();
    let (stop, stopped) = mpsc::channel::<()>();
    let flow = thread::spawn(move || {
        while stopped.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
            socket.send_to(b"anything", socket.local_addr()?)?;
        }
        io::Result::Ok(())
    });
    let event = node_event(&server, "full-node", "ConntrackTableFull");
    drop(stop);
    flow.join().unwrap().unwrap();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let event = event.with_context(|| fs::read_to_string(file("log")).unwrap()).unwrap();
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    let message = event.message.unwrap();
    for words in ["conntrack's table is full", "remedy: sysctl -w net.netfilter.nf_conntrack_max=2"] {
        assert!(message.contains(words), "{words} is not in: {message}");
    }
    server.delete_node("full-node").unwrap();
}
