//! `cargo xtask cluster down`.

use std::fs;

use anyhow::{Context as _, Result};

use crate::network;
use crate::state::{self, Cluster};

/// Stops what runs and removes what is there.
pub(crate) fn run() -> Result<()> {
    if let Ok(cluster) = Cluster::open() {
        for node in &cluster.nodes {
            node.cut_power()?;
        }
    }
    network::delete()?;
    let directory = state::directory();
    match directory.exists() {
        true => fs::remove_dir_all(&directory).with_context(|| directory.display().to_string()),
        false => Ok(()),
    }
}
