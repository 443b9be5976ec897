//! All nodes at once, by `kubectl ipvs` of docs/commands.md.

use std::{fs, io::ErrorKind, os::unix::fs::symlink, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use guest::{image_program, platform::Platform};

use crate::{
    kubectl::{self, patiently},
    state::{self, Cluster, named},
};

/// Asks every node through its pod: each is in order and lacks nothing, and a Service is the same on all.
pub(super) fn check(cluster: &Cluster) -> Result<()> {
    let plugins = plugins()?;
    let all = format!("{} nodes", cluster.nodes.len());
    patiently(Duration::from_secs(30), || {
        let expected = [
            (["ipvs", "status"].as_slice(), "in order"),
            (&["ipvs", "diff"], "nothing differs"),
            (&["ipvs", "explain", "kube-system/kube-dns"], ""),
        ];
        for (asked, answer) in expected {
            let printed = kubectl::output_with_plugins(&plugins, asked)?;
            let is_said_of_all = printed.lines().any(|line| line.starts_with(&all) && line.contains(answer));
            ensure!(is_said_of_all, "kubectl {}: {printed}", asked.join(" "));
        }
        Ok(())
    })
}

/// A directory with the program of the image, which was built for the cluster, by its other name.
fn plugins() -> Result<PathBuf> {
    let plugins = state::directory().join("plugins");
    let plugin = plugins.join("kubectl-ipvs");
    fs::create_dir_all(&plugins).with_context(named(&plugins))?;
    match symlink(image_program::built(Platform::HERE), &plugin) {
        // It leads to the same place each time.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made.with_context(named(&plugin)),
    }?;
    Ok(plugins)
}
