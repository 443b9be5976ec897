//! The real kube-proxy in its ipvs mode on a lab's node: what kube-ipvs is compared with.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Child, Stdio},
    thread,
};

use anyhow::{Context, Result};

use crate::lab::{CLUSTER_CIDR, Host};

/// What a node's own network namespace cannot set, or does not need.
const LEAVE_CONNTRACK: [&str; 4] = [
    "--conntrack-max-per-core=0",
    "--conntrack-min=0",
    "--conntrack-tcp-timeout-established=0s",
    "--conntrack-tcp-timeout-close-wait=0s",
];

/// A running kube-proxy. It is killed when dropped; what it programmed stays.
///
/// It looks its own Node up when it starts, and only then: create that before.
#[derive(Debug)]
pub struct KubeProxy {
    child: Child,
    files: tempfile::TempDir,
}

impl KubeProxy {
    /// Starts it on `node` with these arguments, beside the mode, the cluster's range, and the name
    /// that [`crate::daemon::Daemon`] has too.
    pub fn start(node: &Host, arguments: &[&str]) -> Result<Self> {
        let binary = binary().context("KUBE_PROXY_BIN is not set")?;
        let files = tempfile::tempdir()?;
        let log = File::create(files.path().join("log"))?;
        let child = node
            .command(&binary.to_string_lossy())
            .args(["--proxy-mode=ipvs", "--cluster-cidr", CLUSTER_CIDR, "--hostname-override=node"])
            .args(LEAVE_CONNTRACK)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        Ok(Self { child, files })
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.files.path().join("log")).unwrap_or_default()
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for KubeProxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- kube-proxy said:\n{}---", self.log());
        }
    }
}

/// The binary, which `KUBE_PROXY_BIN` names.
pub fn binary() -> Option<PathBuf> {
    std::env::var_os("KUBE_PROXY_BIN").map(PathBuf::from)
}
