//! What of this node hurts traffic to Services: looked at now and then, and told once, with the remedy.
//!
//! Each check is a function of plain values and has a file of its own. They are told in the log, in
//! `kube-ipvs status` as long as they hold, and those that are warnings in an Event of the Node. Nothing here
//! keeps the daemon from its work, and nothing here changes the node: what `--host-firewall=accept` asks for is done
//! before the check of the chains (`host_firewall`).

mod bridges;
mod check_loop;
mod checker;
mod dedup;
mod node_ports;
mod parameters;
mod proc_sys;
mod repair_loop;
mod timeouts;

use std::fmt;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::{info, warn};

pub use check_loop::{CheckLoop, Recheck};
pub use checker::{NodeChecker, WantedParameters};

/// Something of this node that hurts traffic to Services, or may, and what can be done about it.
///
/// Its `Display` has what and remedy in one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// How bad it is.
    pub severity: Severity,
    /// What kind of thing it is.
    pub cause: Cause,
    /// What it is about: a chain, a bridge, a kernel parameter.
    pub subject: String,
    /// One sentence for a person, without a full stop.
    pub what: String,
    /// What to do, mostly a command.
    pub remedy: String,
}

impl Advice {
    /// Says in the log that it holds from now on.
    pub(crate) fn log_begin(&self) {
        match self.severity {
            Severity::Warning => warn!(remedy = self.remedy, "{}", self.what),
            Severity::Note => info!(remedy = self.remedy, "{}", self.what),
        }
    }

    /// Says in the log that it does not hold any more.
    pub(crate) fn log_end(&self) {
        info!("no longer so: {}", self.what);
    }
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Some traffic does not work, or will not some day.
    Warning,
    /// It is worth knowing, and most nodes are like this.
    Note,
}

/// What kind of thing it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// A chain of the host's own firewall drops what it does not know.
    HostFirewall,
    /// Netfilter does not see what goes over a bridge of pods.
    Bridge,
    /// The kernel may give a NodePort to a connection of the node itself.
    NodePorts,
    /// IPVS forgets connections that conntrack keeps.
    Timeouts,
    /// A kernel parameter is not as IPVS mode needs it.
    Parameter,
    /// Conntrack has no room for new connections.
    ConntrackFull,
    /// The configuration file cannot be used: it could not be, if the daemon were started now.
    ConfigurationFile,
    /// A kube-proxy is at work beside us, or was.
    AnotherProxy,
    /// Something changes what is programmed again and again.
    Contested,
}

impl Cause {
    /// The reason of an Event, in Kubernetes' spelling.
    pub fn reason(self) -> &'static str {
        match self {
            Self::HostFirewall => "HostFirewallDrops",
            Self::Bridge => "BridgeBypassesIPVS",
            Self::NodePorts => "NodePortsNotReserved",
            Self::Timeouts => "TimeoutsDiffer",
            Self::Parameter => "KernelParameterDiffers",
            Self::ConntrackFull => "ConntrackTableFull",
            Self::ConfigurationFile => "ConfigurationFileUnusable",
            Self::AnotherProxy => "AnotherProxy",
            Self::Contested => "ForeignChangesGoOn",
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; remedy: {}", self.what, self.remedy)
    }
}

/// What holds now, for whoever asks how things stand; nothing is known before the first look. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct CurrentAdvice(watch::Sender<Vec<Advice>>);

impl CurrentAdvice {
    /// All advice, as of the last look at the node.
    pub fn advice(&self) -> Vec<Advice> {
        self.0.borrow().clone()
    }

    fn set(&self, advice: Vec<Advice>) {
        self.0.send_replace(advice);
    }
}
