//! What cannot work is refused with one line that names it, before the kernel is touched.

use std::fs;

use testkit::{daemon::Daemon, lab::Lab};

/// Starts the daemon where it cannot work; returns its exit code and what it said.
fn refused(lab: &Lab, arguments: &[&str]) -> (Option<i32>, String) {
    let before = kernel(lab);
    let ended = Daemon::start(&lab.node, arguments).unwrap().ended().unwrap();
    assert_eq!(kernel(lab), before, "the kernel was changed by {arguments:?}");
    ended
}

fn kernel(lab: &Lab) -> [String; 4] {
    [
        lab.node.run("ipvsadm", &["-Ln"]).unwrap(),
        lab.node.run("ip", &["-brief", "link"]).unwrap(),
        lab.node.run("nft", &["list", "ruleset"]).unwrap(),
        lab.node.run("sysctl", &["net.ipv4.vs.conntrack", "net.ipv4.ip_forward"]).unwrap(),
    ]
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_scheduler_that_the_kernel_lacks_is_refused_by_name() {
    let lab = Lab::new(0, 8080).unwrap();
    let manifests = tempfile::tempdir().unwrap();
    let (code, said) =
        refused(&lab, &["--manifests", &manifests.path().to_string_lossy(), "--ipvs-scheduler=nonesuch"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("nonesuch") && said.contains("ip_vs_nonesuch"), "{said}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_malformed_manifest_is_refused_by_its_file() {
    let lab = Lab::new(0, 8080).unwrap();
    let manifests = tempfile::tempdir().unwrap();
    fs::write(manifests.path().join("web.yaml"), "kind: Service\nmetadata: {name: [\n").unwrap();
    let (code, said) = refused(&lab, &["--manifests", &manifests.path().to_string_lossy()]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("web.yaml"), "{said}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_missing_kubeconfig_is_refused_by_its_path() {
    let lab = Lab::new(0, 8080).unwrap();
    let (code, said) = refused(&lab, &["--kubeconfig=/nonexistent/kubeconfig"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("/nonexistent/kubeconfig"), "{said}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_process_without_net_admin_is_refused() {
    let lab = Lab::new(0, 8080).unwrap();
    let manifests = tempfile::tempdir().unwrap();
    let binary = testkit::daemon::binary().unwrap();
    let output = lab
        .node
        .command("setpriv")
        .args(["--bounding-set=-net_admin", "--inh-caps=-net_admin", "--"])
        .arg(&binary)
        .args(["run", "--proxy-mode=ipvs", "--manifests"])
        .arg(manifests.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("CAP_NET_ADMIN"), "{said}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_second_daemon_on_the_node_waits_for_its_turn() {
    let lab = Lab::new(0, 8080).unwrap();
    let manifests = tempfile::tempdir().unwrap();
    let first = Daemon::with_manifests(&lab.node, manifests.path(), &[]).unwrap();
    testkit::daemon::eventually("the first answers", || first.ask(&lab.node, "status")).unwrap();
    let second = first.another(&lab.node, &["--manifests", &manifests.path().to_string_lossy()]).unwrap();
    testkit::daemon::eventually("the second says what it waits for", || {
        let said = second.log();
        anyhow::ensure!(said.contains("another kube-ipvs runs on this node"), "{said}");
        Ok(())
    })
    .unwrap();
    assert!(!second.log().contains("kube-ipvs starts"), "{}", second.log());
    first.ask(&lab.node, "status").unwrap();
    first.kill().unwrap();
    testkit::daemon::eventually("the second answers", || second.ask(&lab.node, "status")).unwrap();
}
