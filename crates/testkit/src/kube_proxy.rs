//! The real kube-proxy on a lab's node: kube-ipvs is compared with it, and takes over from it.

use std::{
    env,
    ffi::OsString,
    fmt,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::Command,
    thread,
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::{
    control_plane::ControlPlane,
    lab::{CLUSTER_CIDR, Host},
    process::Process,
};

/// Flags for what a node's network namespace cannot set, or does not need.
const LEAVE_CONNTRACK: [&str; 4] = [
    "--conntrack-max-per-core=0",
    "--conntrack-min=0",
    "--conntrack-tcp-timeout-established=0s",
    "--conntrack-tcp-timeout-close-wait=0s",
];

/// The programs that it starts for its packet filter.
const FILTER_PROGRAMS: [&str; 5] =
    ["ipset", "iptables", "iptables-restore", "ip6tables", "ip6tables-restore"];

/// It asks for their versions. BusyBox is linked statically and starts in a fifth of the time.
const STAND_IN: &str = "#!/bin/busybox sh\n[ \"$1\" != --version ] || echo v7.17\n";

/// Its proxy mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// IPVS, ipsets, and iptables.
    Ipvs,
    /// iptables alone.
    Iptables,
    /// nf_tables alone, in its own tables.
    Nftables,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ipvs, Self::Nftables, Self::Iptables];
}

/// As `--proxy-mode` takes it.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipvs => "ipvs",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        })
    }
}

/// A running kube-proxy. It is killed when dropped; what it programmed stays.
///
/// It only looks up its own Node when it starts: create that before.
#[derive(Debug)]
pub struct KubeProxy {
    process: Process,
    _files: tempfile::TempDir,
}

impl KubeProxy {
    /// Starts it on `node` in ipvs mode with these arguments, plus the same cluster range and name as
    /// [`crate::daemon::Daemon`].
    pub fn start(node: &Host, arguments: &[&str]) -> Result<Self> {
        Self::start_in_mode(Mode::Ipvs, node, arguments)
    }

    /// Starts it in any mode.
    pub fn start_in_mode(mode: Mode, node: &Host, arguments: &[&str]) -> Result<Self> {
        Self::start_in(tempfile::tempdir()?, mode, node, arguments, &[])
    }

    /// Starts it with stand-ins for ipset and iptables that do nothing and succeed.
    ///
    /// IPVS and kube-ipvs0 look the same: it programs them by netlink. But it starts some 50 programs for
    /// each family in each sync, which takes 5 s in software emulation.
    pub fn start_without_filter(node: &Host, arguments: &[&str]) -> Result<Self> {
        let files = tempfile::tempdir()?;
        for name in FILTER_PROGRAMS {
            let path = files.path().join(name);
            fs::write(&path, STAND_IN)?;
            fs::set_permissions(&path, Permissions::from_mode(0o755))?;
        }
        let mut path = vec![files.path().to_owned()];
        path.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        Self::start_in(files, Mode::Ipvs, node, arguments, &[("PATH", env::join_paths(path)?)])
    }

    fn start_in(
        files: tempfile::TempDir,
        mode: Mode,
        node: &Host,
        arguments: &[&str],
        environment: &[(&str, OsString)],
    ) -> Result<Self> {
        let binary = binary().context("KUBE_PROXY_BIN is not set")?;
        let mut command = node.command(&binary.to_string_lossy());
        command
            .args([
                "--proxy-mode",
                &mode.to_string(),
                "--cluster-cidr",
                CLUSTER_CIDR,
                "--hostname-override=node",
            ])
            .args(LEAVE_CONNTRACK)
            .args(arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)));
        let process = Process::start(command, files.path().join("log"))?;
        Ok(Self { process, _files: files })
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Kills it with SIGKILL and waits until it has ended. SIGTERM would be the same: kube-proxy handles
    /// neither.
    pub fn kill(mut self) -> Result<()> {
        self.process.kill()
    }
}

impl Drop for KubeProxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        if thread::panicking() {
            eprintln!("--- kube-proxy said:\n{}---", self.log());
        }
    }
}

/// The binary, which `KUBE_PROXY_BIN` names.
pub fn binary() -> Option<PathBuf> {
    env::var_os("KUBE_PROXY_BIN").map(PathBuf::from)
}

/// Its version, major and minor.
pub fn version() -> Result<(u32, u32)> {
    let binary = binary().context("KUBE_PROXY_BIN is not set")?;
    let output = Command::new(binary).arg("--version").output().context("starting kube-proxy")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let numbers = said.trim().trim_start_matches("Kubernetes v").split_once('.');
    let (major, rest) = numbers.with_context(|| format!("its version is {said:?}"))?;
    let minor = rest.split('.').next().unwrap_or_default();
    Ok((major.parse()?, minor.parse()?))
}

/// The API server for a test beside kube-proxy. `None`, printed as a skip, if either of them is missing.
pub fn control_plane() -> Result<Option<ControlPlane>> {
    if binary().is_none() {
        println!("SKIP: no kube-proxy: KUBE_PROXY_BIN is not set");
        return Ok(None);
    }
    ControlPlane::from_env_or_skip()
}
