//! The tier of the long runs: a short part of each must succeed.

use guest::go::control_plane;
use guest::{Kernel, api_server, workspace};

use super::guest_tier::tier;
use super::tally::Report;

/// The program `faults`, with an API server and the real kube-proxy.
pub(super) fn small(kernel: &Kernel, names: &[String]) -> Report {
    tier("faults", kernel, names, |guest| {
        let kube_proxy = control_plane::kube_proxy()?;
        guest.files.push(kube_proxy.clone());
        guest.env.push(("KUBE_PROXY_BIN".into(), kube_proxy.into()));
        api_server::equip(guest, &workspace::lab()?)
    })
}
