//! The answers of the daemon that no other part of the program has a type for.

use std::{collections::BTreeSet, fs, path::PathBuf, time::Duration};

use ipvs::{Family, Scheduler};
use kubernetes::api::Watch;
use reconciler::SyncReport;
use serde::{Deserialize, Serialize};
use service::{one_line, seconds};
use watcher::Plan;

use crate::{
    config::VipBinding, finding::Finding, serve::liveness::AnswersSummary, serve::metrics::MetricsPages,
};

/// The difference between the kernel and the desired state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The plan that would remove it.
    pub plan: Plan,
    /// Why the desired state may be out of date: what cannot be watched.
    pub troubles: Vec<String>,
}

/// The result of a requested sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resynced {
    /// What the sync did.
    #[serde(flatten)]
    pub report: SyncReport,
    /// Why the desired state may have been out of date: what cannot be watched.
    pub troubles: Vec<String>,
}

/// What belongs to a bug report and only the daemon has. It contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BugReport {
    /// The configuration in use, as JSON. It has the paths of credentials, but not the credentials.
    pub configuration: String,
    /// The page of metrics, without the traffic of Services.
    pub metrics: String,
    /// The process's limits, or why they are not known.
    pub limits: String,
}

impl BugReport {
    /// Collects the report from these pages and from this process.
    pub(crate) fn new(pages: &MetricsPages) -> Self {
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_else(|error| one_line(&error));
        Self { configuration: pages.configuration().to_owned(), metrics: pages.metrics(), limits }
    }
}

/// The status of the daemon, of what is programmed, and of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// The daemon itself.
    pub daemon: DaemonInfo,
    /// What is programmed.
    #[serde(flatten)]
    pub programmed: reconciler::SyncStatus,
    /// What our nf_tables rules did to packets recently.
    #[serde(default)]
    pub packets: RecentPackets,
    /// What hurts traffic on this node. It keeps nothing from being programmed.
    pub advice: Vec<Finding>,
    /// Whether endpoints answer.
    // A daemon of an earlier release may be asked.
    #[serde(default)]
    pub endpoints: AnswersSummary,
}

/// How many packets our nf_tables rules dropped, rejected or masqueraded recently.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentPackets {
    /// The time in which they were counted: five minutes and a few seconds, or since the start; in JSON, seconds.
    #[serde(with = "seconds")]
    pub window: Duration,
    /// By what became of them and why, those that were lost first. Of a kind that is missing there was none.
    pub counted: Vec<CountedPackets>,
}

/// How many packets of one kind were counted, of both families.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedPackets {
    /// What became of them: `drop`, `reject` or `masquerade`.
    pub verdict: String,
    /// Why: a short fixed name, as in the metric.
    pub reason: String,
    /// How many. Of masqueraded flows each first packet is counted.
    pub packets: u64,
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
    /// The source of Services.
    pub source: SourceInfo,
    /// The kernel, once it has been prepared.
    pub kernel: Option<KernelInfo>,
}

/// The source of Services.
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
    /// The optional nf_tables features that the kernel lacks, as text.
    pub lacks: Vec<String>,
}
