//! The result of one check of this node.
//!
//! Findings are printed by `kube-ipvs preflight` before the start. While the daemon runs they are its advice as long as
//! they hold. Warnings are logged when they begin and end, are in `kube-ipvs status`, and are Events of the Node; notes,
//! which hold on most nodes, are in `kube-ipvs explain`.

use std::fmt;

use serde::{Deserialize, Serialize};
use tracing::{debug, info, warn};

/// What a check says of one part of the node: a setting or program that hurts traffic to Services, or may,
/// with the remedy; before the start also what is as it should be.
///
/// `Display` prints it without its subject, and the remedy on the same line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What kind of thing it is; `None` for findings that only exist before the start.
    pub cause: Option<Cause>,
    /// The part of the node concerned: a chain, a bridge, a kernel parameter.
    pub subject: String,
    /// One sentence for a person, without a full stop.
    pub what: String,
    /// What to do, mostly a command; `None` if there is nothing to do.
    pub remedy: Option<String>,
}

impl Finding {
    pub(crate) fn ok(subject: impl fmt::Display, what: impl Into<String>) -> Self {
        Self::new(Severity::Ok, subject, what)
    }

    pub(crate) fn note(subject: impl fmt::Display, what: impl Into<String>) -> Self {
        Self::new(Severity::Note, subject, what)
    }

    pub(crate) fn warning(subject: impl fmt::Display, what: impl Into<String>) -> Self {
        Self::new(Severity::Warning, subject, what)
    }

    pub(crate) fn problem(subject: impl fmt::Display, what: impl Into<String>) -> Self {
        Self::new(Severity::Problem, subject, what)
    }

    fn new(severity: Severity, subject: impl fmt::Display, what: impl Into<String>) -> Self {
        Self { severity, cause: None, subject: subject.to_string(), what: what.into(), remedy: None }
    }

    /// The finding with what to do.
    #[must_use]
    pub(crate) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// The finding with its cause.
    #[must_use]
    pub(crate) fn cause(self, cause: Cause) -> Self {
        Self { cause: Some(cause), ..self }
    }

    /// Logs that the finding holds from now on.
    pub(crate) fn log_begin(&self) {
        match self.severity {
            Severity::Problem | Severity::Warning => warn!(remedy = self.remedy, "{}", self.what),
            // Most nodes are like this: it would be logged at each start as if it were news.
            Severity::Note | Severity::Ok => debug!(remedy = self.remedy, "{}", self.what),
        }
    }

    /// Logs that the finding no longer holds.
    pub(crate) fn log_end(&self) {
        match self.severity {
            Severity::Problem | Severity::Warning => info!("resolved: {}", self.what),
            Severity::Note | Severity::Ok => debug!("resolved: {}", self.what),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, "; remedy: {remedy}"))
    }
}

/// The first of these texts, and how many more there are.
pub(crate) fn first_few(texts: impl IntoIterator<Item = String>, most: usize) -> String {
    let mut texts = texts.into_iter();
    let first: Vec<_> = texts.by_ref().take(most).collect();
    match texts.count() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// How bad a finding is. What comes later is worse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The part of the node is as it should be.
    #[default]
    Ok,
    /// Worth knowing; nothing fails, and most nodes are like this.
    Note,
    /// Some traffic fails, or will, or another program loses something.
    Warning,
    /// The daemon does not start, or serves nothing.
    Problem,
}

impl Severity {
    /// The severities of findings about a node with a running daemon.
    pub const WHILE_RUNNING: [Self; 2] = [Self::Warning, Self::Note];

    /// The name in metrics and texts, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// What kind of thing a finding about a node with a running daemon is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// A chain of the host's own firewall drops packets of Services.
    HostFirewall,
    /// Another program's flowtable may take flows past IPVS.
    Flowtable,
    /// Netfilter does not see the packets on a bridge of pods.
    Bridge,
    /// NodeLocal DNSCache has an address that IPVS serves.
    NodeLocalDns,
    /// The kernel may use a NodePort for a connection of the node itself.
    NodePorts,
    /// A NodePort overrides a pod's hostPort.
    HostPorts,
    /// IPVS forgets connections that conntrack keeps.
    Timeouts,
    /// A kernel parameter differs from what IPVS mode needs.
    Parameter,
    /// Packets tunnelled to other nodes do not arrive.
    Tunnel,
    /// Strict reverse path filtering drops packets.
    ReversePath,
    /// Most endpoints that this node's clients use do not answer.
    MostSilent,
    /// Conntrack has no room for new connections.
    ConntrackFull,
    /// IPVS' own table of connections takes much memory.
    IpvsTable,
    /// The configuration file has become unusable: the daemon could not start with it.
    ConfigurationFile,
    /// A kube-proxy runs on this node, or has run since our rules were installed.
    AnotherProxy,
    /// Another program repeatedly changes what is programmed.
    Contested,
    /// Another process holds the lock that prevents a second kube-ipvs.
    LockKept,
}

impl Cause {
    /// All variants.
    pub const ALL: [Self; 17] = [
        Self::HostFirewall,
        Self::Flowtable,
        Self::Bridge,
        Self::NodeLocalDns,
        Self::NodePorts,
        Self::HostPorts,
        Self::Timeouts,
        Self::Parameter,
        Self::Tunnel,
        Self::ReversePath,
        Self::MostSilent,
        Self::ConntrackFull,
        Self::IpvsTable,
        Self::ConfigurationFile,
        Self::AnotherProxy,
        Self::Contested,
        Self::LockKept,
    ];

    /// The name in metrics, as in JSON.
    pub fn name(self) -> &'static str {
        self.name_and_reason().0
    }

    /// The reason of an Event, in Kubernetes' spelling.
    pub fn reason(self) -> &'static str {
        self.name_and_reason().1
    }

    fn name_and_reason(self) -> (&'static str, &'static str) {
        match self {
            Self::HostFirewall => ("host-firewall", "HostFirewallDrops"),
            Self::Flowtable => ("flowtable", "FlowtableBypassesIPVS"),
            Self::Bridge => ("bridge", "BridgeBypassesIPVS"),
            Self::NodeLocalDns => ("node-local-dns", "NodeLocalDNSBypassed"),
            Self::NodePorts => ("node-ports", "NodePortsNotReserved"),
            Self::HostPorts => ("host-ports", "NodePortOverridesHostPort"),
            Self::Timeouts => ("timeouts", "TimeoutsDiffer"),
            Self::Parameter => ("parameter", "KernelParameterDiffers"),
            Self::Tunnel => ("tunnel", "TunnelFiltered"),
            Self::ReversePath => ("reverse-path", "ReversePathFilterDrops"),
            Self::MostSilent => ("most-silent", "MostEndpointsSilent"),
            Self::ConntrackFull => ("conntrack-full", "ConntrackTableFull"),
            Self::IpvsTable => ("ipvs-table", "IPVSTableLarge"),
            Self::ConfigurationFile => ("configuration-file", "ConfigurationFileUnusable"),
            Self::AnotherProxy => ("another-proxy", "AnotherProxy"),
            Self::Contested => ("contested", "ForeignChangesGoOn"),
            Self::LockKept => ("lock-kept", "InstanceLockKept"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_and_json_have_the_same_names() {
        let causes = serde_json::to_value(Cause::ALL).unwrap();
        assert_eq!(causes, serde_json::json!(Cause::ALL.map(Cause::name)));
        let all = [Severity::Ok, Severity::Note, Severity::Warning, Severity::Problem];
        let severities = serde_json::to_value(all).unwrap();
        assert_eq!(severities, serde_json::json!(all.map(Severity::name)));
    }
}
