//! A node with the real program on it, fed by a real API server, in a guest: where [`crate::soak`] and
//! [`crate::chaos`] happen.

pub(crate) mod kernel_state;
pub(crate) mod objects;
pub(crate) mod traffic;

use std::{fmt::Display, fs, net::SocketAddr, path::Path, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use kernel_state::KernelState;
use kube::Api;
use objects::Write;
use serde::Serialize;
use serde_json::Value;
use testkit::{
    control_plane::ControlPlane,
    daemon::{Daemon, eventually_within},
    lab::Lab,
};

use crate::control_plane;

/// How long the program may take until all is in the kernel.
const PATIENCE: Duration = Duration::from_secs(120);
/// The node's name, with which `testkit` starts the program.
const NODE: &str = "node";

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

    /// Where a Service is served.
    pub(crate) fn cluster_ip(&self, service: &str) -> Result<SocketAddr> {
        let services: Api<Service> = Api::namespaced(self.server.admin_client(), objects::NAMESPACE);
        let spec = self.server.block_on(services.get(service))?.spec;
        let ip = spec.and_then(|spec| spec.cluster_ip).context("a Service without address")?;
        Ok(SocketAddr::new(ip.parse()?, objects::PORTS[0]))
    }

    /// Writes what belongs to some Services.
    pub(crate) fn write(&self, services: impl Iterator<Item = Vec<Write>>) -> Result<()> {
        self.server.block_on(objects::write_all(&self.server.admin_client(), services))
    }

    /// Starts the program on the node.
    pub(crate) fn daemon(&self, arguments: &[&str]) -> Result<Daemon> {
        start(&self.lab, &self.server, arguments)
    }

    /// Waits until the program has programmed all that it has received, and nothing drains any more.
    pub(crate) fn has_synced(&self, daemon: &Daemon) -> Result<()> {
        has_synced(daemon, &self.lab)
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

fn has_synced(daemon: &Daemon, lab: &Lab) -> Result<()> {
    eventually_within(PATIENCE, "all is in the kernel and nothing drains", || {
        let status = daemon.status(&lab.node)?;
        let synced = status.get("synced").and_then(Value::as_bool) == Some(true);
        let draining = status.get("draining").and_then(Value::as_u64);
        ensure!(synced && draining == Some(0), "{status:#}");
        Ok(())
    })
}

/// A node with its pods, from which the API server can be reached.
fn connected_lab(server: &ControlPlane, pods: u8) -> Result<Lab> {
    let lab = Lab::new(pods, objects::POD_PORT)?;
    lab.node.reach(server.address()?)?;
    Ok(lab)
}

/// Starts the program on the node of a lab.
fn start(lab: &Lab, server: &ControlPlane, arguments: &[&str]) -> Result<Daemon> {
    Daemon::with_kubeconfig(&lab.node, &server.proxy_kubeconfig(), arguments)
}
