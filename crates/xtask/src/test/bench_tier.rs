//! The tier of the measurements: each must work, and kube-ipvs's own computation must not have become dearer.

use guest::Kernel;
use guest::go::control_plane;

use super::guest_tier::tier;
use super::tally::Report;

/// The program `bench`, with the real kube-proxy.
pub(super) fn all(kernel: &Kernel, names: &[String]) -> Report {
    tier("bench", kernel, names, |guest| {
        let kube_proxy = control_plane::kube_proxy()?;
        guest.files.push(kube_proxy.clone());
        guest.env.push(("KUBE_PROXY_BIN".into(), kube_proxy.into()));
        Ok(())
    })
}
