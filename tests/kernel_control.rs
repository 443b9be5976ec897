//! Who is answered at the control socket.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

use std::{
    fs::{self, Permissions},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::Command,
};

use testkit::{
    daemon::{Daemon, binary, eventually},
    lab::Lab,
};

const NOBODY: u32 = 65_534;

fn open_to_everybody(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn who_is_not_root_is_told_nothing_even_where_the_socket_lets_him_in() {
    let lab = Lab::new(0, 8080).unwrap();
    let files = tempfile::tempdir().unwrap();
    let manifests = files.path().join("manifests");
    fs::create_dir(&manifests).unwrap();
    let daemon = Daemon::with_manifests(&lab.node, &manifests, &["--cluster-cidr=10.244.0.0/16"]).unwrap();
    eventually("the daemon answers", || daemon.status(&lab.node)).unwrap();

    // Where others can execute it, whoever may look at the build's directory.
    let program = files.path().join("kube-ipvs");
    fs::copy(binary().unwrap(), &program).unwrap();
    for path in [files.path(), &program, daemon.socket(), daemon.socket().parent().unwrap()] {
        open_to_everybody(path);
    }
    for request in [&["status"][..], &["resync"], &["diff"], &["explain", "default/kubernetes"]] {
        let mut asks = Command::new(&program);
        asks.args(request).arg("--control-socket").arg(daemon.socket());
        let refused = asks.uid(NOBODY).gid(NOBODY).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success());
        assert_eq!(said.trim(), "kube-ipvs: the daemon says: only root may talk to kube-ipvs");
        assert!(refused.stdout.is_empty());
    }
    daemon.status(&lab.node).unwrap();
}
