//! One proxy to a node, also where each has a /run of its own: what a pod of the manifests sees.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use anyhow::{Result, ensure};
use testkit::{
    daemon::{binary, eventually},
    lab::Lab,
};

/// A read-only /run in which only the directory of the control socket and the host's lock file can be written, and no
/// capability but CAP_NET_ADMIN.
const CONTAINER: &str = r#"
set -e
mount -t tmpfs tmpfs /run
mkdir /run/kube-ipvs
mount -t tmpfs tmpfs /run/kube-ipvs
touch /run/xtables.lock
mount --bind "$1" /run/xtables.lock
mount -o remount,ro /run
shift
exec setpriv --no-new-privs --bounding-set=-all,+net_admin --inh-caps=-all "$@"
"#;

/// A daemon in a container of its own.
struct Pod {
    daemon: Child,
    log: PathBuf,
}

impl Pod {
    fn start(lab: &Lab, files: &Path, name: &str) -> Self {
        let log = files.join(name);
        let log_file = fs::File::create(&log).unwrap();
        let daemon = lab
            .node
            .command("unshare")
            .args(["--mount", "sh", "-c", CONTAINER, "sh"])
            .arg(files.join("xtables.lock"))
            .arg(binary().unwrap())
            .args(["run", "--hostname-override=node", "--manifests"])
            .arg(files.join("manifests"))
            .stdin(Stdio::null())
            .stdout(log_file.try_clone().unwrap())
            .stderr(log_file)
            .spawn()
            .unwrap();
        Self { daemon, log }
    }

    fn says(&self, what: &str) -> Result<()> {
        eventually(what, || {
            let log = fs::read_to_string(&self.log)?;
            ensure!(log.contains(what), "{log}");
            Ok(())
        })
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn daemons_that_share_the_host_s_lock_file_alone_take_turns() {
    let lab = Lab::new(1, 8080).unwrap();
    let files = tempfile::tempdir().unwrap();
    fs::create_dir(files.path().join("manifests")).unwrap();
    fs::write(files.path().join("xtables.lock"), "").unwrap();

    let first = Pod::start(&lab, files.path(), "first");
    first.says("synced trigger=Start").unwrap();
    let second = Pod::start(&lab, files.path(), "second");
    second.says("it holds /run/xtables.lock: waiting until it ends").unwrap();
    drop(first);
    second.says("synced trigger=Start").unwrap();
}
