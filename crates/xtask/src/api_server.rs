//! Gives a guest an API server: inside the guest if that is fast, otherwise on the host.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

use anyhow::{Context as _, bail};
use tempfile::TempDir;
use testkit::control_plane::{ControlPlane, Options};

use guest::go::control_plane;
use guest::{Forward, Guest, Kernel};

/// Where a QEMU guest finds the host's API server.
const IN_GUEST: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 100), 6443);

/// An API server that runs on the host for a guest. It is stopped when dropped.
pub(crate) struct ApiServer {
    _control_plane: ControlPlane,
    /// The kubeconfigs that lead to it from the guest.
    _kubeconfigs: TempDir,
}

/// Lets `testkit`'s `ControlPlane::from_env_or_start` work in the guest.
///
/// The host and User Mode Linux run the servers themselves, at the processor's speed, from the binaries that
/// `KUBEBUILDER_ASSETS` then names. In an emulated guest they would take minutes to start: then the API
/// server runs on the host's loopback, the guest gets one forwarded port, and `KUBE_IPVS_TEST_API` names its
/// kubeconfigs. The returned value must live as long as the guest.
pub(crate) fn equip(guest: &mut Guest) -> anyhow::Result<Option<ApiServer>> {
    let assets = control_plane::ensure()?;
    if !matches!(guest.kernel, Kernel::Qemu(_)) {
        guest.env.push(("KUBEBUILDER_ASSETS".into(), assets.into()));
        return Ok(None);
    }
    eprintln!("xtask: starting an API server on the host's loopback");
    let options = Options { extra_sans: vec![IN_GUEST.ip().to_string()], ..Options::new(assets) };
    let control_plane = ControlPlane::start(&options).context("starting an API server")?;
    let kubeconfigs = tempfile::tempdir().context("creating a temporary directory")?;
    let mut host_port = None;
    for kubeconfig in [control_plane.admin_kubeconfig(), control_plane.proxy_kubeconfig()] {
        let text = fs::read_to_string(&kubeconfig).with_context(|| kubeconfig.display().to_string())?;
        let (text, port) = seen_from_guest(&text).with_context(|| kubeconfig.display().to_string())?;
        let name = kubeconfig.file_name().context("a kubeconfig without a name")?;
        fs::write(kubeconfigs.path().join(name), text).context("writing a kubeconfig for the guest")?;
        host_port = Some(port);
    }
    guest.forward = host_port.map(|host_port| Forward { guest: IN_GUEST, host_port });
    share(guest, kubeconfigs.path());
    Ok(Some(ApiServer { _control_plane: control_plane, _kubeconfigs: kubeconfigs }))
}

/// In the guest: the API server that [`equip`] has provided, or a new one.
pub(crate) fn inside() -> anyhow::Result<ControlPlane> {
    ControlPlane::from_env_or_start()?.context("neither KUBE_IPVS_TEST_API nor KUBEBUILDER_ASSETS is set")
}

fn share(guest: &mut Guest, kubeconfigs: &Path) {
    guest.files.push(kubeconfigs.to_owned());
    guest.env.push(("KUBE_IPVS_TEST_API".into(), kubeconfigs.into()));
}

/// The kubeconfig with the server's address as the guest has it, and the port it listens on here.
fn seen_from_guest(kubeconfig: &str) -> anyhow::Result<(String, u16)> {
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
