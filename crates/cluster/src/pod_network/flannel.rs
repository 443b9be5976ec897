//! Flannel, with VXLAN, by its own manifest.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use guest::go::cluster::{FLANNEL, FLANNEL_NAME};

use crate::{
    kubectl,
    state::{self, named},
};

/// What is different from the manifest: both families, and the newest version of CNI that its plugin of before 1.0
/// knows.
const CHANGES: [(&str, &str); 2] = [
    (
        r#""Network": "10.244.0.0/16","#,
        r#""Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:10:244::/56","#,
    ),
    (r#""cniVersion": "1.0.0""#, r#""cniVersion": "0.4.0""#),
];

/// Starts it on every node. A node that joins later gets it too.
pub(super) fn connect() -> Result<()> {
    let mut text = manifest()?;
    for (from, to) in CHANGES {
        ensure!(text.contains(from), "Flannel's manifest has no {from}");
        text = text.replace(from, to);
    }
    let path = state::directory().join("kube-flannel.yml");
    fs::write(&path, text).with_context(named(&path))?;
    kubectl::output(&["apply", "--filename", &path.to_string_lossy()])?;
    let wait =
        ["--namespace=kube-flannel", "rollout", "status", "daemonset/kube-flannel-ds", "--timeout=180s"];
    kubectl::output(&wait).map(drop)
}

/// As its users get it.
pub(crate) fn manifest() -> Result<String> {
    let path = FLANNEL.sources_of(FLANNEL_NAME)?.join("Documentation/kube-flannel.yml");
    fs::read_to_string(&path).with_context(named(&path))
}
