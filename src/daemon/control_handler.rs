//! Answers the requests of the control socket, and collects the problems that it reports.

use std::{error::Error, net::IpAddr, sync::Arc, time::Instant};

use kubernetes::{api::Watches, directory};
use netfilter::Policy;
use reconciler::{Handle, JournalPage, SyncStatus, VirtualServerOwner};
use service::{AddressExplanation, AddressQuery, Client, Explanation, ObjectName, one_line};

use super::reload::UnusableFile;
use crate::{
    checks::CurrentFindings,
    finding::Finding,
    logging::{Level, LogLevelHandle},
    process::{Build, VERSION},
    serve::{
        control::{self, BugReport, Control, DaemonStatus, Difference, Resynced},
        http::endpoint::UnboundEndpoints,
        liveness::EndpointAnswers,
        metrics::MetricsPages,
        packets::Packets,
    },
    source::{Source, nodes::KnownNode},
};

/// Answers requests for the daemon.
pub(super) struct ControlHandler {
    pub(super) identity: Identity,
    /// The writer thread, and the policy of our tables; before it has started, what it waits for.
    pub(super) writer: Result<(Handle, Policy), String>,
    pub(super) problems: Problems,
    pub(super) packets: Packets,
    pub(super) advice: HeldAdvice,
    pub(super) answers: EndpointAnswers,
    pub(super) log_level: LogLevelHandle,
    pub(super) pages: Arc<MetricsPages>,
}

impl ControlHandler {
    /// The writer thread, or in one line why it cannot answer.
    fn writer(&self) -> Result<&Handle, String> {
        self.programming().map(|(writer, _)| writer)
    }

    /// A client, as the rules in place recognise it.
    fn client(&self, ip: IpAddr) -> Result<Client, String> {
        let (_, policy) = self.programming()?;
        Ok(Client { ip, policy: policy.clone() })
    }

    fn programming(&self) -> Result<&(Handle, Policy), String> {
        self.writer.as_ref().map_err(|waits| self.waiting(waits).join("; "))
    }

    /// All problems, after what the daemon waits for.
    fn waiting(&self, waits: &str) -> Vec<String> {
        [waits.to_owned()].into_iter().chain(self.problems.all()).collect()
    }
}

impl ControlHandler {
    /// The status, with what the writer thread says of itself.
    fn status_by(
        &self,
        ask: impl FnOnce(&Handle) -> Result<SyncStatus, String>,
    ) -> Result<DaemonStatus, String> {
        let daemon = self.identity.now();
        let programmed = match &self.writer {
            Ok((writer, _)) => {
                let mut programmed = ask(writer)?;
                put_first(self.problems.all(), &mut programmed.problems);
                programmed
            }
            Err(waits) => SyncStatus {
                sync_state_age: daemon.uptime,
                problems: self.waiting(waits),
                ..SyncStatus::default()
            },
        };
        Ok(DaemonStatus {
            daemon,
            programmed,
            packets: self.packets.recent(),
            advice: self.advice.all(),
            endpoints: self.answers.summary(),
        })
    }
}

impl Control for ControlHandler {
    type Error = String;

    fn bug_report(&self) -> Result<BugReport, String> {
        Ok(BugReport::new(&self.pages))
    }

    fn diff(&self) -> Result<Difference, String> {
        let plan = self.writer()?.compare().map_err(reason)?;
        Ok(Difference { plan, troubles: self.problems.about_source() })
    }

    fn explain(&self, service: &ObjectName, client: Option<IpAddr>) -> Result<Explanation, String> {
        let client = client.map(|ip| self.client(ip)).transpose()?;
        let mut explanation = self.writer()?.explain(service.clone(), client).map_err(reason)?;
        put_first(self.problems.about_source(), &mut explanation.problems);
        self.answers.add_to(&mut explanation);
        Ok(explanation)
    }

    fn explain_address(
        &self,
        query: &AddressQuery,
        client: Option<IpAddr>,
    ) -> Result<AddressExplanation, String> {
        let client = client.map(|ip| self.client(ip)).transpose()?;
        let mut explanation = self.writer()?.explain_address(*query, client).map_err(reason)?;
        explanation.served.iter_mut().for_each(|served| self.answers.add_to(served));
        Ok(explanation)
    }

    fn history(&self, of: Option<&ObjectName>, after: u64) -> Result<JournalPage, String> {
        self.writer()?.journal(of.cloned(), after).map_err(reason)
    }

    fn log_level(&self, set: Option<Level>) -> Result<String, String> {
        set.map_or(Ok(()), |level| self.log_level.set(&level)).map_err(reason)?;
        self.log_level.directives().map_err(reason)
    }

    fn owners(&self) -> Result<Vec<VirtualServerOwner>, String> {
        self.writer()?.virtual_server_owners().map_err(reason)
    }

    fn resync(&self) -> Result<Resynced, String> {
        let report = self.writer()?.resync().map_err(reason)?;
        Ok(Resynced { report, troubles: self.problems.about_source() })
    }

    fn status(&self) -> Result<DaemonStatus, String> {
        self.status_by(|writer| writer.status().map_err(reason))
    }

    fn checked_status(&self) -> Result<DaemonStatus, String> {
        self.status_by(|writer| writer.checked_status().map_err(reason))
    }

    fn version(&self) -> Result<Build, String> {
        Ok(Build::this())
    }
}

/// The daemon's description of itself, for `kube-ipvs status`.
#[derive(Clone)]
pub(super) struct Identity {
    node: String,
    begin: Instant,
    source: control::SourceInfo,
    /// The state of an API server as the source.
    watches: Watches,
    kernel: Option<control::KernelInfo>,
}

impl Identity {
    /// Describes a daemon that has been the node's proxy since `begin`. The state of its source is in `watches`.
    pub(super) fn new(node: &str, begin: Instant, source: &Source, watches: &Watches) -> Self {
        let source = match source {
            Source::Api(server) => {
                control::SourceInfo::ApiServer { address: server.address.clone(), watches: Vec::new() }
            }
            Source::Directory { path, .. } => control::SourceInfo::Manifests { directory: path.clone() },
        };
        Self { node: node.to_owned(), begin, source, watches: watches.clone(), kernel: None }
    }

    /// This description with the kernel that the daemon writes to, once it has been prepared.
    pub(super) fn with(self, kernel: Option<control::KernelInfo>) -> Self {
        Self { kernel, ..self }
    }

    /// The description as of now.
    fn now(&self) -> control::DaemonInfo {
        let mut source = self.source.clone();
        if let control::SourceInfo::ApiServer { watches, .. } = &mut source {
            *watches = self.watches.all();
        }
        control::DaemonInfo {
            version: VERSION.to_owned(),
            node: self.node.clone(),
            uptime: self.begin.elapsed(),
            source,
            kernel: self.kernel.clone(),
        }
    }
}

/// Why there is no answer, on one line.
#[allow(clippy::needless_pass_by_value, reason = "map_err passes it")]
fn reason(error: impl Error + 'static) -> String {
    one_line(&error)
}

/// Puts problems of the source before the objects' own, and truncates the list.
pub(super) fn put_first(first: impl IntoIterator<Item = String>, problems: &mut Vec<String>) {
    problems.splice(0..0, first);
    problems.truncate(SyncStatus::MOST_PROBLEMS);
}

/// The problems outside the writer thread: the source cannot be watched or has bad files, the Node is missing, an
/// address cannot be bound. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Problems {
    pub(super) watches: Watches,
    pub(super) manifests: directory::Problems,
    pub(super) node: KnownNode,
    pub(super) unbound: UnboundEndpoints,
}

impl Problems {
    /// Why the desired state may be out of date or wrong, one line each.
    pub(super) fn about_source(&self) -> Vec<String> {
        self.watches.troubles().into_iter().chain(self.manifests.all()).chain(self.node.trouble()).collect()
    }

    /// All problems, one line each.
    pub(super) fn all(&self) -> Vec<String> {
        let mut all = self.about_source();
        all.extend(self.unbound.troubles());
        all
    }
}

/// The advice that holds now, by what finds it. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldAdvice {
    pub(super) config_file: UnusableFile,
    pub(super) checks: CurrentFindings,
}

impl HeldAdvice {
    /// All advice, that about the configuration file first.
    pub(super) fn all(&self) -> Vec<Finding> {
        self.config_file.finding().into_iter().chain(self.checks.all()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_so_many_problems_at_most_those_of_the_watches_first() {
        let mut problems: Vec<_> =
            (0..SyncStatus::MOST_PROBLEMS).map(|number| format!("object {number}")).collect();
        put_first(["a watch".to_owned(), "another".to_owned()], &mut problems);
        assert_eq!(problems.len(), SyncStatus::MOST_PROBLEMS);
        assert_eq!(problems[..3], ["a watch", "another", "object 0"]);
    }
}
