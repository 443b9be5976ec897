//! A node with the real program on it, fed by a real API server, in a guest: where [`crate::soak`] and
//! [`crate::chaos`] happen.

pub(crate) mod kernel_state;
pub(crate) mod objects;
pub(crate) mod traffic;

use std::{
    ffi::OsString,
    fmt::Display,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use guest::{
    Guest, Kernel, TIMED_OUT, api_server,
    platform::{self, Platform},
    workspace,
};
use kernel_state::KernelState;
use objects::Write;
use serde::Serialize;
use serde_json::Value;
use testkit::{
    control_plane::ControlPlane,
    daemon::{Daemon, eventually_within},
    lab::Lab,
};

use crate::control_plane;

/// Guest memory in MiB: etcd's files are in it, too.
const MEMORY: u32 = 4096;
/// How long the program may take until all is in the kernel.
const PATIENCE: Duration = Duration::from_secs(120);
/// Services that are written at the same time.
const AT_ONCE: usize = 16;
/// The node's name, with which `testkit` starts the program.
const NODE: &str = "node";

/// The programs that are run in the guest.
pub(crate) struct Programs {
    myself: PathBuf,
    kube_ipvs: PathBuf,
    kube_proxy: PathBuf,
}

impl Programs {
    /// kube-ipvs as it is in the container image.
    pub(crate) fn new() -> Result<Self> {
        let kube_ipvs = platform::build_program(Platform::HERE)?;
        let kube_proxy = guest::go::control_plane::kube_proxy()?;
        Ok(Self { myself: workspace::myself()?, kube_ipvs, kube_proxy })
    }

    /// Runs this same program in a guest, with a command that does there what the plan says. It may write to
    /// `directory`, and reaches an API server. Fails if it does.
    pub(crate) fn boot(
        &self,
        kernel: &Kernel,
        command: &str,
        plan: &impl Serialize,
        directory: &Path,
        timeout: Duration,
    ) -> Result<()> {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        let mut guest = Guest {
            files: vec![self.myself.clone(), self.kube_ipvs.clone(), self.kube_proxy.clone()],
            share: Some(directory.to_owned()),
            env: vec![
                ("KUBE_IPVS_BIN".into(), self.kube_ipvs.clone().into()),
                ("KUBE_PROXY_BIN".into(), self.kube_proxy.clone().into()),
            ],
            timeout,
            memory: MEMORY,
            ..Guest::new(kernel.clone())
        };
        let _api_server = api_server::equip(&mut guest, &self.myself)?;
        let plan = serde_json::to_string(plan)?;
        let command: [OsString; 4] =
            [self.myself.clone().into(), command.into(), "--inside".into(), plan.into()];
        let code = guest.run(&command)?;
        ensure!(code != TIMED_OUT, "it took more than {} s", timeout.as_secs());
        ensure!(code == 0, "it ended with code {code}");
        Ok(())
    }
}

/// In the guest: writes the report and prints it; the exit code says whether it is good.
pub(crate) fn conclude(
    report: &(impl Serialize + Display),
    directory: &Path,
    is_good: bool,
) -> Result<ExitCode> {
    let path = directory.join("report.json");
    fs::write(&path, serde_json::to_string_pretty(report)? + "\n")
        .with_context(|| path.display().to_string())?;
    print!("{report}");
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The kernel's version.
pub(crate) fn kernel_release() -> Result<String> {
    Ok(nix::sys::utsname::uname()?.release().to_string_lossy().into_owned())
}

/// In the guest: a node, and its API server.
pub(crate) struct Stage {
    pub(crate) lab: Lab,
    pub(crate) server: ControlPlane,
}

impl Stage {
    /// With so many pods.
    pub(crate) fn new(pods: u8) -> Result<Self> {
        let server = control_plane::inside()?;
        let lab = connected_lab(&server, pods)?;
        let addresses = [lab.node.ipv4.into(), lab.node.ipv6.into()];
        server.create_node(NODE, &addresses, None, &[])?;
        server.apply(&objects::namespace())?;
        Ok(Self { lab, server })
    }

    /// Writes what belongs to some Services: some at a time, what belongs to one in its order.
    pub(crate) fn write(&self, services: impl Iterator<Item = Vec<Write>>) -> Result<()> {
        let client = self.server.admin_client();
        let services = stream::iter(services).map(anyhow::Ok);
        self.server.block_on(services.try_for_each_concurrent(AT_ONCE, async |writes| {
            for write in writes {
                write.send(&client).await?;
            }
            Ok(())
        }))
    }

    /// Starts the program on the node.
    pub(crate) fn daemon(&self, arguments: &[&str]) -> Result<Daemon> {
        start(&self.lab, &self.server, arguments)
    }

    /// Starts the program on a node like this one, of which its kernel knows nothing yet. What comes of it
    /// when all has been programmed.
    pub(crate) fn after_fresh_start(&self, arguments: &[&str]) -> Result<KernelState> {
        let lab = connected_lab(&self.server, u8::try_from(self.lab.pods.len())?)?;
        let daemon = start(&lab, &self.server, arguments)?;
        has_synced(&daemon, &lab)?;
        KernelState::read(&lab.node)
    }
}

/// Where a Service is served.
pub(crate) fn cluster_ip(server: &ControlPlane, service: &str) -> Result<SocketAddr> {
    let service = server.block_on(objects::read_service(&server.admin_client(), service))?;
    let ip =
        service.pointer("/spec/clusterIP").and_then(Value::as_str).context("a Service without address")?;
    Ok(SocketAddr::new(ip.parse()?, objects::PORTS[0]))
}

/// Waits until the program has programmed all that it has received, and nothing drains any more.
pub(crate) fn has_synced(daemon: &Daemon, lab: &Lab) -> Result<()> {
    eventually_within(PATIENCE, "all is in the kernel and nothing drains", || {
        let status = daemon.status(&lab.node)?;
        let synced = status.get("synced").and_then(Value::as_bool) == Some(true);
        let draining = status.get("draining").and_then(Value::as_u64);
        ensure!(synced && draining == Some(0), "{status:#}");
        Ok(())
    })
}

/// Keeps a node from the API server: connections break, new ones are refused.
pub(crate) fn cut_off(lab: &Lab, server: &ControlPlane) -> Result<()> {
    let server = server.address()?;
    let connection = format!("ip saddr {0} ip daddr {0}", server.ip());
    let nft = |command: &str| lab.node.run("nft", &[command]).map(drop);
    nft("add table ip outage")?;
    nft("add chain ip outage out { type filter hook output priority -300; }")?;
    ["sport", "dport"].into_iter().try_for_each(|end| {
        nft(&format!("add rule ip outage out {connection} tcp {end} {} reject with tcp reset", server.port()))
    })
}

/// Ends that.
pub(crate) fn reconnect(lab: &Lab) -> Result<()> {
    lab.node.run("nft", &["delete table ip outage"]).map(drop)
}

/// A node with its pods, from which the API server can be reached.
pub(crate) fn connected_lab(server: &ControlPlane, pods: u8) -> Result<Lab> {
    let lab = Lab::new(pods, objects::POD_PORT)?;
    lab.node.reach(server.address()?)?;
    Ok(lab)
}

/// Starts the program on the node of a lab.
pub(crate) fn start(lab: &Lab, server: &ControlPlane, arguments: &[&str]) -> Result<Daemon> {
    let kubeconfig = server.proxy_kubeconfig();
    let kubeconfig = kubeconfig.to_string_lossy();
    Daemon::start(&lab.node, &[&["--kubeconfig", &*kubeconfig], arguments].concat())
}
