//! The control socket answers permitted users only, and may come late.

use std::{
    fs::{self, Permissions},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::Command,
};

use anyhow::ensure;
use testkit::{
    daemon::{Daemon, binary, eventually, ipvsadm_shows},
    lab::Lab,
};

/// A file system with room for so many files, its own root included. It goes with this.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    fn mount(at: &'a Path, files: u32) -> Self {
        run("mount", &["-t", "tmpfs", "-o", &format!("nr_inodes={files}"), "tmpfs"], at);
        Self(at)
    }

    fn grow(&self, files: u32) {
        run("mount", &["-o", &format!("remount,nr_inodes={files}")], self.0);
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        run("umount", &["--lazy"], self.0);
    }
}

fn run(program: &str, arguments: &[&str], path: &Path) {
    assert!(
        Command::new(program).args(arguments).arg(path).status().unwrap().success(),
        "{program} {arguments:?}"
    );
}

const UNPRIVILEGED: u32 = 65_534;

fn open_to_everybody(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn only_root_is_answered_even_if_the_socket_lets_other_users_in() {
    let lab = Lab::new(0, 8080).unwrap();
    let files = tempfile::tempdir().unwrap();
    let manifests = files.path().join("manifests");
    fs::create_dir(&manifests).unwrap();
    let daemon = Daemon::with_manifests(&lab.node, &manifests, &["--cluster-cidr=10.244.0.0/16"]).unwrap();
    eventually("the daemon answers", || daemon.status(&lab.node)).unwrap();

    // A copy that others can execute, even where they cannot enter the build's directory.
    let program = files.path().join("kube-ipvs");
    fs::copy(binary().unwrap(), &program).unwrap();
    for path in [files.path(), &program, daemon.socket(), daemon.socket().parent().unwrap()] {
        open_to_everybody(path);
    }
    for request in [&["status"][..], &["resync"], &["diff"], &["explain", "default/kubernetes"]] {
        let mut asks = Command::new(&program);
        asks.args(request).arg("--control-socket").arg(daemon.socket());
        let refused = asks.uid(UNPRIVILEGED).gid(UNPRIVILEGED).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success());
        assert_eq!(said.trim(), "kube-ipvs: the daemon says: only root may talk to kube-ipvs");
        assert!(refused.stdout.is_empty());
    }
    daemon.status(&lab.node).unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_daemon_answers_with_its_version() {
    let lab = Lab::new(0, 8080).unwrap();
    let manifests = tempfile::tempdir().unwrap();
    let daemon = Daemon::with_manifests(&lab.node, manifests.path(), &[]).unwrap();
    let version = concat!("daemon:    ", env!("CARGO_PKG_VERSION"), ", linux/");
    eventually("the daemon answers", || {
        let said = daemon.ask(&lab.node, "version")?;
        ensure!(said.contains(version), "{said}");
        Ok(())
    })
    .unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_full_file_system_delays_the_control_socket_and_not_the_services() {
    let lab = Lab::new(0, 8080).unwrap();
    let files = tempfile::tempdir().unwrap();
    let (run, manifests) = (files.path().join("run"), files.path().join("manifests"));
    fs::create_dir(&run).unwrap();
    fs::create_dir(&manifests).unwrap();
    // The root, the lock, and nothing for the socket.
    let small = Small::mount(&run, 2);
    let service = "{kind: Service, apiVersion: v1, metadata: {name: web, namespace: default}, \
                   spec: {clusterIPs: [10.96.0.10], clusterIP: 10.96.0.10, ports: [{port: 80}]}}";
    fs::write(manifests.join("web.yaml"), service).unwrap();
    let manifests = manifests.to_string_lossy();
    let daemon =
        Daemon::with_socket(&lab.node, &["--manifests", &manifests], &run.join("control.sock")).unwrap();
    ipvsadm_shows(&lab.node, "the Service", |table| table.contains("10.96.0.10:80")).unwrap();
    let said = daemon.log();
    assert!(said.contains("control.sock: cannot listen: No space left on device"), "{said}");
    daemon.status(&lab.node).unwrap_err();
    small.grow(10);
    eventually("the daemon answers", || daemon.status(&lab.node)).unwrap();
}
