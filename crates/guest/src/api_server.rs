//! Gives a guest an API server: inside the guest if that is fast, otherwise on the host.

use std::{
    io::{BufRead as _, BufReader},
    net::{Ipv4Addr, SocketAddrV4},
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::{Forward, Guest, Kernel, files, go::control_plane};

/// Where a QEMU guest finds the host's API server.
const IN_GUEST: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 100), 6443);

/// What `lab control-plane` writes into the directory whose name it prints.
const KUBECONFIGS: [&str; 2] = ["admin.kubeconfig", "proxy.kubeconfig"];

/// What it also writes: a file that allows tests to delete what is in the API server.
const MARK: &str = "started-for-tests";

/// An API server that runs on the host for a guest. It is stopped when dropped.
pub struct ApiServer {
    /// `lab control-plane`, which ends with its stdin.
    process: Child,
    /// The kubeconfigs that lead to it from the guest.
    kubeconfigs: TempDir,
}

/// Lets `testkit`'s `ControlPlane::from_env_or_start` work in the guest.
///
/// The host and User Mode Linux run the servers themselves, at the processor's speed, from the binaries that
/// `KUBEBUILDER_ASSETS` then names. In an emulated guest they would take minutes to start: then the program `lab` starts
/// one on the host's loopback, the guest gets one forwarded port, and `KUBE_IPVS_TEST_API` names its kubeconfigs. The
/// returned value must live as long as the guest.
pub fn equip(guest: &mut Guest, lab: &Path) -> Result<Option<ApiServer>> {
    let assets = control_plane::ensure()?;
    if !matches!(guest.kernel, Kernel::Qemu(_)) {
        guest.env.push(("KUBEBUILDER_ASSETS".into(), assets.into()));
        return Ok(None);
    }
    let mut server = ApiServer::start(lab, &assets)?;
    guest.forward = Some(Forward { guest: IN_GUEST, host_port: server.lead_from_guest()? });
    guest.files.push(server.kubeconfigs.path().to_owned());
    guest.env.push(("KUBE_IPVS_TEST_API".into(), server.kubeconfigs.path().into()));
    Ok(Some(server))
}

impl ApiServer {
    fn start(lab: &Path, assets: &Path) -> Result<Self> {
        eprintln!("xtask: starting an API server on the host's loopback");
        let kubeconfigs = tempfile::tempdir().context("creating a temporary directory")?;
        let process = Command::new(lab)
            .args(["control-plane", "--san", &IN_GUEST.ip().to_string()])
            .env("KUBEBUILDER_ASSETS", assets)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", lab.display()))?;
        Ok(Self { process, kubeconfigs })
    }

    /// Waits until it serves, and writes the kubeconfigs for the guest; the port it listens on here.
    fn lead_from_guest(&mut self) -> Result<u16> {
        let stdout = self.process.stdout.take().context("an API server without stdout")?;
        let mut directory = String::new();
        BufReader::new(stdout).read_line(&mut directory).context("waiting for an API server")?;
        ensure!(!directory.is_empty(), "the API server did not start");
        let mut port = None;
        for name in KUBECONFIGS {
            let kubeconfig = Path::new(directory.trim_end()).join(name);
            let (text, here) = seen_from_guest(&files::read(&kubeconfig)?)
                .with_context(|| kubeconfig.display().to_string())?;
            files::write(&self.kubeconfigs.path().join(name), text)?;
            port = Some(here);
        }
        files::write(&self.kubeconfigs.path().join(MARK), "")?;
        port.context("no kubeconfig")
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // One that cannot be waited for has ended.
        drop(self.process.wait());
    }
}

/// The kubeconfig with the server's address as the guest has it, and the port it listens on here.
fn seen_from_guest(kubeconfig: &str) -> Result<(String, u16)> {
    const HERE: &str = "https://127.0.0.1:";
    let Some((before, after)) = kubeconfig.split_once(HERE) else {
        bail!("its server is not at {HERE}…");
    };
    let end = after.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(after.len());
    let (port, rest) = after.split_at(end);
    let port = port.parse().with_context(|| format!("its server's port is {port:?}"))?;
    Ok((format!("{before}https://{IN_GUEST}{rest}"), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_led_to_the_forwarded_address_and_the_rest_of_the_kubeconfig_stays() {
        let (text, port) = seen_from_guest("{\"server\": \"https://127.0.0.1:34567\", \"x\": 1}").unwrap();
        assert_eq!(text, "{\"server\": \"https://10.0.2.100:6443\", \"x\": 1}");
        assert_eq!(port, 34567);
        assert!(seen_from_guest("{\"server\": \"https://[::1]:1\"}").is_err());
        assert!(seen_from_guest("{\"server\": \"https://127.0.0.1:99999\"}").is_err());
    }
}
