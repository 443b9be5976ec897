//! The cluster that is up: what is kept of it in `target/cluster`, from one command to the next.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, bail};
use guest::{files, workspace};
use serde::{Deserialize, Serialize};

use crate::{network::pods::PodNetwork, node::Node, proxy::Proxy};

/// A cluster that was started. There is one at a time.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Cluster {
    /// The control plane, then the workers.
    pub(crate) nodes: Vec<Node>,
    /// Its Service proxy.
    pub(crate) proxy: Proxy,
    /// What connects its pods.
    pub(crate) pod_network: PodNetwork,
}

impl Cluster {
    /// The one that is up.
    pub(crate) fn open() -> Result<Self> {
        let path = file();
        let Ok(text) = fs::read(&path) else {
            bail!("there is no cluster: start one with cargo xtask cluster up")
        };
        serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))
    }

    /// Writes down what is known of it.
    pub(crate) fn save(&self) -> Result<()> {
        files::write(&file(), serde_json::to_vec_pretty(self)?)
    }

    /// The node of this name.
    pub(crate) fn node(&self, name: &str) -> Result<&Node> {
        let names = || self.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = self.nodes.iter().find(|node| node.name == name);
        found.with_context(|| format!("there is no node {name}; there are {}", names()))
    }

    /// The node with the API server.
    pub(crate) fn control_plane(&self) -> Result<&Node> {
        self.nodes.first().context("a cluster without nodes")
    }

    /// The worker that clients are on, and faults.
    pub(crate) fn first_worker(&self) -> Result<&Node> {
        self.workers().first().context("a cluster without workers")
    }

    /// The other nodes.
    pub(crate) fn workers(&self) -> &[Node] {
        self.nodes.get(1..).unwrap_or_default()
    }
}

/// Where the nodes' disks and consoles are, and the administrator's kubeconfig.
pub(crate) fn directory() -> PathBuf {
    workspace::root().join("target/cluster")
}

/// The administrator's kubeconfig.
pub(crate) fn kubeconfig() -> PathBuf {
    directory().join("admin.conf")
}

/// A link to the directory with the disk that all nodes' disks begin as, and the key that opens them.
pub(crate) fn base() -> PathBuf {
    directory().join("base")
}

fn file() -> PathBuf {
    directory().join("cluster.json")
}
