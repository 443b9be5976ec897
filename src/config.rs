//! The configuration of the daemon: flags and configuration file, checked, as one value.
//!
//! As with kube-proxy the flags fill in the same structure as the file, and with `--config` the file alone counts,
//! except for the few flags that override it.

mod checks;
pub mod convert;
mod excluded;
mod feature_gates;
pub(crate) mod file;
pub(crate) mod flags;
mod from_flags;
mod kernel;
mod names;
mod settings;
mod v1alpha1;
mod values;

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::ValueEnum;
use ipnet::IpNet;
use ipvs::{Family, Scheduler, Timeouts, Tunnel, TunnelKind};
use netfilter::{HostFirewall, LocalTraffic, Policy, tunnel::GUE_PORT};
use reconciler::Timing;
use serde::{Deserialize, Serialize};
use service::{ExternalForwarding, ExternalIps, NodePortAddresses, Options};
use watcher::{Foreign, Ownership};

pub use checks::Problem;
pub use excluded::Excluded;
pub use feature_gates::{FeatureGates, InvalidGates};
pub use file::v1alpha1::KubeProxyConfiguration;
pub use kernel::ConntrackSettings;
use settings::Origin;
pub use values::duration::{GoDuration, InvalidDuration};
pub(crate) use values::{switch::switch, vmodule::VModules};

use crate::logging;

/// All settings of the daemon. Every value has been checked.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct Settings {
    /// This node's name: lower case, without spaces around it, not empty.
    pub node_name: String,
    /// Where Services and EndpointSlices come from.
    pub source: Source,
    /// The scheduler of every virtual server. Whether the kernel has it is not known yet.
    pub scheduler: Scheduler,
    /// At the latest after this time everything is compared and repaired; more than zero.
    pub sync_period: Duration,
    /// The least time from the end of one sync to the beginning of the next; at most `sync_period`.
    pub min_sync_period: Duration,
    /// Virtual servers whose address is in one of these are somebody else's.
    pub exclude_cidrs: Vec<IpNet>,
    /// What becomes of virtual servers elsewhere that no Service made.
    pub foreign: Foreign,
    /// Whether every flow to a ClusterIP is masqueraded.
    pub masquerade_all: bool,
    /// The packet mark that asks for masquerading.
    pub mark: u32,
    /// How pods of this node, whose flows to a ClusterIP are not masqueraded otherwise, are recognised.
    pub local_mode: LocalMode,
    /// The ranges of the pods of all nodes, as far as they are configured.
    pub pod_ranges: Vec<IpNet>,
    /// What becomes of our traffic in the host's own firewall.
    pub host_firewall: HostFirewall,
    /// At which of this node's addresses NodePorts are served.
    pub node_port_addresses: NodePortAddresses,
    /// The address that counts before the node IP of its family.
    pub bind_address: Option<IpAddr>,
    /// Which of `spec.externalIPs` are served.
    pub external_ips: ExternalIps,
    /// How long a TCP real server may drain; `None` is for ever.
    pub drain_timeout: Option<Duration>,
    /// How VIPs are made local.
    pub vip_binding: VipBinding,
    /// How what comes in at external addresses reaches endpoints, where a Service says nothing about it.
    pub external_forwarding_method: ExternalForwarding,
    /// How packets are put into others for that.
    pub tunnel: TunnelKind,
    /// Whether ARP is answered only on the interface that has the address.
    pub strict_arp: bool,
    /// Limits and timeouts of connection tracking.
    pub conntrack: ConntrackSettings,
    /// When IPVS forgets connections; 0 leaves the kernel's timeout.
    pub ipvs_timeouts: Timeouts,
    /// How readily the kernel ends this process when memory is short; from -1000 to 1000.
    pub oom_score_adj: i32,
    /// Where health is served, if it is.
    pub healthz_bind_address: Option<SocketAddr>,
    /// Where metrics are served, if they are.
    pub metrics_bind_address: Option<SocketAddr>,
    /// Of what the metrics show the traffic.
    pub service_metrics: ServiceMetrics,
    /// Whether the daemon ends when one of these addresses cannot be bound.
    pub bind_address_hard_fail: bool,
    /// What is logged, and how.
    pub log: logging::Options,
    /// Where the control socket is.
    pub control_socket: PathBuf,
    /// The configuration file, if there is one.
    pub config_file: Option<PathBuf>,
    /// What a configuration file would have to say for all this to come of it.
    pub effective: KubeProxyConfiguration,
    /// Warnings to log once logging has started, one line each.
    pub warnings: Vec<String>,
}

/// Where Services and EndpointSlices come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The API server. With neither, the pod's service account says where.
    Api {
        /// A kubeconfig file.
        kubeconfig: Option<PathBuf>,
        /// The API server's URL or host, before that of the kubeconfig.
        master: Option<String>,
    },
    /// The YAML and JSON files of a directory.
    Directory(PathBuf),
}

/// How pods of this node are recognised (`detectLocalMode`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalMode {
    /// In this way.
    Fixed(LocalTraffic),
    /// By the Node's podCIDRs, which only its source knows.
    NodeCidr,
}

/// How VIPs are made local.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VipBinding {
    /// Each is an address on kube-ipvs0.
    #[default]
    Address,
    /// Each is a local route.
    Route,
}

/// Of what traffic is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ServiceMetrics {
    /// Of nothing: each Service would be ten series.
    #[default]
    Off,
    /// Of each virtual server.
    Service,
    /// Of each virtual server, and of each real server.
    Endpoint,
}

/// Why there are no settings.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value cannot be used: the operator's mistake.
    #[error("{option}: {problem}")]
    Invalid {
        /// The flag, or the file and the field's path in it.
        option: String,
        /// What is wrong.
        problem: Problem,
    },
    /// The configuration file cannot be read.
    #[error("{path}: the configuration file cannot be read", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The configuration file is no YAML, or a field has the wrong type. Names file, line and column.
    #[error("{0}")]
    Malformed(String),
    /// The file is something else's, or another version's.
    #[error(
        "{path}: apiVersion {api_version:?} with kind {kind:?} is not supported: \
         expected kubeproxy.config.k8s.io/v1alpha1 with KubeProxyConfiguration",
        path = path.display()
    )]
    Kind {
        /// The file.
        path: PathBuf,
        /// What it says.
        api_version: String,
        /// What it says.
        kind: String,
    },
    /// A configuration that no file can say.
    #[error("{0}: that nothing listens can only be said by a flag: empty in a file means the default")]
    OnlyByFlag(&'static str),
    /// The configuration cannot be put into words.
    #[error("the configuration cannot be written as YAML")]
    Encode(#[source] serde_saphyr::SerializeError),
    /// The configuration file cannot be written.
    #[error("{path}: the configuration file cannot be written", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The kernel does not tell its host name, and no flag or field overrides it.
    #[error("cannot read the host name")]
    HostName(#[source] io::Error),
}

impl Error {
    /// Whether the command line, or the configuration file that it names, cannot be used: not the machine's fault.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Invalid { .. }
            | Self::Read { .. }
            | Self::Malformed(_)
            | Self::Kind { .. }
            | Self::OnlyByFlag(_) => true,
            Self::Encode(_) | Self::Write { .. } | Self::HostName(_) => false,
        }
    }
}

impl Settings {
    /// The policy where pods of this node are recognised like this.
    pub fn policy(&self, local_traffic: LocalTraffic) -> Policy {
        Policy {
            masquerade_all: self.masquerade_all,
            mark: self.mark,
            local_traffic,
            host_firewall: self.host_firewall,
            gue: self.tunnel == TunnelKind::Gue,
        }
    }

    /// What Services are served by, where pods of this node are recognised in these families.
    pub fn options(&self, knows_pods: BTreeSet<Family>) -> Options {
        Options {
            node_name: self.node_name.as_str().into(),
            scheduler: self.scheduler,
            node_port_addresses: self.node_port_addresses.clone(),
            bind_address: self.bind_address,
            external_ips: self.external_ips.clone(),
            external_forwarding: self.external_forwarding_method,
            tunnel: self.tunnel(),
            knows_pods,
            answers_peers: self.port_for_peers().is_some(),
            pod_ranges: self.pod_ranges.clone(),
            watches_nodes: true,
        }
    }

    /// The port at which other nodes can ask this one about its health, and with the same configuration it can ask them.
    pub(crate) fn port_for_peers(&self) -> Option<u16> {
        self.healthz_bind_address.filter(|address| !address.ip().is_loopback()).map(|address| address.port())
    }

    /// How packets are put into others.
    fn tunnel(&self) -> Tunnel {
        match self.tunnel {
            TunnelKind::Gue => Tunnel::new(TunnelKind::Gue).port(GUE_PORT),
            other => Tunnel::new(other),
        }
    }

    /// The families in which pods of this node are recognised. By the Node's podCIDRs they are in each that it has, and
    /// it is not known yet which those are.
    pub(crate) fn knows_pods(&self) -> BTreeSet<Family> {
        let is_known = |family: &Family| match &self.local_mode {
            LocalMode::Fixed(local_traffic) => local_traffic.is_known(*family),
            LocalMode::NodeCidr => true,
        };
        Family::BOTH.into_iter().filter(is_known).collect()
    }

    /// When to sync, where IPVS forgets an idle TCP connection after so long.
    pub(crate) fn timing(&self, tcp_timeout: Duration) -> Timing {
        Timing {
            sync_period: self.sync_period,
            min_sync_period: self.min_sync_period,
            drain_timeout: self.drain_timeout,
            tcp_timeout,
        }
    }

    /// The part of the kernel that is ours, where these families are served.
    pub fn ownership(&self, families: BTreeSet<Family>) -> Ownership {
        Ownership { families, exclude: self.exclude_cidrs.clone(), foreign: self.foreign }
    }
}

#[cfg(test)]
pub(crate) mod tests;
