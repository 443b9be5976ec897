//! The answer to `status`.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use ipvs::{Family, Scheduler};
use kubernetes::api::Watch;
use serde::{Deserialize, Serialize};
use service::seconds;

use crate::{config::VipBinding, finding::Finding};

/// The status of the daemon, of what is programmed, and of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// The daemon itself.
    pub daemon: DaemonInfo,
    /// What is programmed.
    #[serde(flatten)]
    pub programmed: reconciler::SyncStatus,
    /// What hurts traffic on this node. It keeps nothing from being programmed.
    pub advice: Vec<Finding>,
}

/// The daemon: its version, its source and its kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonInfo {
    /// Its version.
    pub version: String,
    /// The name of its node.
    pub node: String,
    /// For how long it has been the node's proxy; in JSON, seconds.
    #[serde(with = "seconds")]
    pub uptime: Duration,
    /// Where Services come from.
    pub source: SourceInfo,
    /// The kernel, once it has been prepared.
    pub kernel: Option<KernelInfo>,
}

/// Where Services come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum SourceInfo {
    /// An API server.
    ApiServer {
        /// Its host and port.
        address: String,
        /// How each resource is watched, sorted by resource.
        watches: Vec<Watch>,
    },
    /// A directory.
    Manifests {
        /// Its path.
        directory: PathBuf,
    },
}

/// The kernel, as it was found at the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelInfo {
    /// Its release, as `uname -r` has it.
    pub release: String,
    /// The version of IPVS, as `ipvsadm -Ln` has it.
    pub ipvs: String,
    /// The families that are served.
    pub families: BTreeSet<Family>,
    /// How VIPs are made local.
    pub vip_binding: VipBinding,
    /// The configured scheduler, which the kernel has.
    pub scheduler: Scheduler,
    /// The optional nf_tables features that the kernel lacks, in words.
    pub lacks: Vec<String>,
}
