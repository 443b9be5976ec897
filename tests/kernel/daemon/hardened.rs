//! The rights of the pod in manifests/base/daemonset.yaml: an init container that may do everything, then a
//! daemon with CAP_NET_ADMIN alone, for which /proc/sys and /sys are read-only.

use std::{fs, net::IpAddr, process::Stdio};

use anyhow::ensure;
use serde_json::json;
use testkit::{
    daemon::{binary, eventually},
    lab::Lab,
};

/// What a container runtime does for `drop: [ALL]`, `add: [NET_ADMIN]`, `allowPrivilegeEscalation: false` and a
/// read-only root: mounts that cannot be written, no capability that execve(2) could give back.
const CONTAINER: &str = r#"
set -e
for mount in /proc/sys /sys; do mount --bind $mount $mount; mount -o remount,bind,ro $mount; done
exec setpriv --no-new-privs --bounding-set=-all,+net_admin --inh-caps=-all "$@"
"#;

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn after_the_init_container_the_daemon_needs_net_admin_and_no_more() {
    let lab = Lab::new(1, 8080).unwrap();
    let files = tempfile::tempdir().unwrap();
    let (manifests, log) = (files.path().join("manifests"), files.path().join("log"));
    fs::create_dir(&manifests).unwrap();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "web"},
        "spec": {"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ports": [{"port": 80, "targetPort": 8080}]},
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "namespace": "default", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"},
        },
        "ports": [{"port": 8080}],
        "endpoints": [{"addresses": [lab.pods.first().unwrap().ipv4], "conditions": {"ready": true}}],
    });
    fs::write(manifests.join("service.json"), service.to_string()).unwrap();
    fs::write(manifests.join("slice.json"), slice.to_string()).unwrap();

    let binary = binary().unwrap();
    let binary = binary.to_string_lossy();
    let socket = files.path().join("control.sock");
    let socket = socket.to_string_lossy();
    let directory = manifests.to_string_lossy();
    let settings = [
        "--manifests",
        &directory,
        "--cluster-cidr=10.244.0.0/16",
        "--hostname-override=node",
        "-v=1",
        "--ipvs-strict-arp",
        "--conntrack-tcp-timeout-established=2h",
        "--conntrack-udp-timeout=31s",
        "--ipvs-udp-timeout=301s",
        "--control-socket",
        &socket,
    ];
    lab.node.run(&binary, &[&["run", "--init-only"], &settings[..]].concat()).unwrap();
    let table = lab.node.run("ipvsadm", &["-Ln"]).unwrap();
    assert!(!table.contains("10.96.0.10"), "{table}");

    let log_file = fs::File::create(&log).unwrap();
    let mut daemon = lab
        .node
        .command("unshare")
        .args(["--mount", "sh", "-c", CONTAINER, "sh", &binary, "run"])
        .args(settings)
        .stdin(Stdio::null())
        .stdout(log_file.try_clone().unwrap())
        .stderr(log_file)
        .spawn()
        .unwrap();
    let web = (IpAddr::from([10, 96, 0, 10]), 80).into();
    let answered = eventually("the Service answers", || {
        let log = fs::read_to_string(&log)?;
        ensure!(daemon.try_wait()?.is_none(), "it has ended:\n{log}");
        lab.client.ask(web).map(drop).map_err(|error| error.context(log))
    });
    let status = lab.node.run(&binary, &["status", "--control-socket", &socket]);
    let said = fs::read_to_string(&log).unwrap();
    let capabilities = fs::read_to_string(format!("/proc/{}/status", daemon.id()));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    answered.unwrap();
    let status = status.unwrap();
    assert!(status.contains("synced:          yes"), "{status}");
    assert!(said.contains("cannot set the OOM score adjustment"), "not confined:\n{said}");
    // CAP_NET_ADMIN is bit 12, in include/uapi/linux/capability.h.
    assert!(capabilities.unwrap().contains("CapEff:\t0000000000001000"));
}
