//! Finds settings of this node that hurt traffic to Services, and reports each once with its remedy.
//!
//! Each check is a function of plain values and has a file of its own. Advice is in the log, in `kube-ipvs status` as
//! long as it holds, and, if it is a warning, in an Event of the Node. A check never keeps the daemon from its work
//! and never changes the node. What `--host-firewall` asks for is done before the check of the chains
//! (`host_firewall`).

mod bridges;
mod check_loop;
mod checker;
mod dedup;
mod filtered_tunnels;
mod ipvs_table;
mod node_local_dns;
mod node_ports;
mod parameters;
mod proc_sys;
mod repair_loop;
mod settings;
mod timeouts;

use std::fmt;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::{info, warn};

pub use check_loop::{CheckLoop, Recheck};
pub use checker::{FoundElsewhere, NodeChecker, WantedParameters};
pub use filtered_tunnels::FilteredTunnels;
pub(crate) use settings::NodeSettings;

/// A setting or program of this node that hurts traffic to Services, or may, with the remedy.
///
/// `Display` prints problem and remedy on one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// How bad it is.
    pub severity: Severity,
    /// What kind of thing it is.
    pub cause: Cause,
    /// The chain, bridge or kernel parameter concerned.
    pub subject: String,
    /// One sentence for a person, without a full stop.
    pub what: String,
    /// What to do, mostly a command.
    pub remedy: String,
}

impl Advice {
    /// Logs that it holds from now on.
    pub(crate) fn log_begin(&self) {
        match self.severity {
            Severity::Warning => warn!(remedy = self.remedy, "{}", self.what),
            Severity::Note => info!(remedy = self.remedy, "{}", self.what),
        }
    }

    /// Logs that it no longer holds.
    pub(crate) fn log_end(&self) {
        info!("no longer so: {}", self.what);
    }
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Some traffic fails, or will.
    Warning,
    /// Worth knowing; most nodes are like this.
    Note,
}

impl Severity {
    /// All variants.
    pub const ALL: [Self; 2] = [Self::Warning, Self::Note];

    /// The name in metrics, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// What kind of thing it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// A chain of the host's own firewall drops packets of Services.
    HostFirewall,
    /// Netfilter does not see the packets on a bridge of pods.
    Bridge,
    /// NodeLocal DNSCache has an address that IPVS serves.
    NodeLocalDns,
    /// The kernel may use a NodePort for a connection of the node itself.
    NodePorts,
    /// IPVS forgets connections that conntrack keeps.
    Timeouts,
    /// A kernel parameter is not as IPVS mode needs it.
    Parameter,
    /// Nothing arrives that is tunnelled to other nodes.
    Tunnel,
    /// Conntrack has no room for new connections.
    ConntrackFull,
    /// IPVS' own table of connections takes much memory.
    IpvsTable,
    /// The configuration file has become unusable: the daemon could not start with it.
    ConfigurationFile,
    /// A kube-proxy runs beside us, or has.
    AnotherProxy,
    /// Something changes what is programmed again and again.
    Contested,
    /// The lock that keeps a second kube-ipvs out is kept from us.
    LockKept,
}

impl Cause {
    /// All variants.
    pub const ALL: [Self; 13] = [
        Self::HostFirewall,
        Self::Bridge,
        Self::NodeLocalDns,
        Self::NodePorts,
        Self::Timeouts,
        Self::Parameter,
        Self::Tunnel,
        Self::ConntrackFull,
        Self::IpvsTable,
        Self::ConfigurationFile,
        Self::AnotherProxy,
        Self::Contested,
        Self::LockKept,
    ];

    /// The name in metrics, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::HostFirewall => "host-firewall",
            Self::Bridge => "bridge",
            Self::NodeLocalDns => "node-local-dns",
            Self::NodePorts => "node-ports",
            Self::Timeouts => "timeouts",
            Self::Parameter => "parameter",
            Self::Tunnel => "tunnel",
            Self::ConntrackFull => "conntrack-full",
            Self::IpvsTable => "ipvs-table",
            Self::ConfigurationFile => "configuration-file",
            Self::AnotherProxy => "another-proxy",
            Self::Contested => "contested",
            Self::LockKept => "lock-kept",
        }
    }

    /// The reason of an Event, in Kubernetes' spelling.
    pub fn reason(self) -> &'static str {
        match self {
            Self::HostFirewall => "HostFirewallDrops",
            Self::Bridge => "BridgeBypassesIPVS",
            Self::NodeLocalDns => "NodeLocalDNSBypassed",
            Self::NodePorts => "NodePortsNotReserved",
            Self::Timeouts => "TimeoutsDiffer",
            Self::Parameter => "KernelParameterDiffers",
            Self::Tunnel => "TunnelFiltered",
            Self::ConntrackFull => "ConntrackTableFull",
            Self::IpvsTable => "IPVSTableLarge",
            Self::ConfigurationFile => "ConfigurationFileUnusable",
            Self::AnotherProxy => "AnotherProxy",
            Self::Contested => "ForeignChangesGoOn",
            Self::LockKept => "InstanceLockKept",
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; remedy: {}", self.what, self.remedy)
    }
}

/// The advice that holds now, for `kube-ipvs status`. Empty before the first check. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct CurrentAdvice(watch::Sender<Vec<Advice>>);

impl CurrentAdvice {
    /// All advice, as of the last check.
    pub fn advice(&self) -> Vec<Advice> {
        self.0.borrow().clone()
    }

    fn set(&self, advice: Vec<Advice>) {
        self.0.send_replace(advice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_and_json_have_the_same_names() {
        let causes = serde_json::to_value(Cause::ALL).unwrap();
        assert_eq!(causes, serde_json::json!(Cause::ALL.map(Cause::name)));
        let severities = serde_json::to_value(Severity::ALL).unwrap();
        assert_eq!(severities, serde_json::json!(Severity::ALL.map(Severity::name)));
    }
}
