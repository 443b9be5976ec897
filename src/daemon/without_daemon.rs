//! Answers `diff`, `explain` and `preflight` without a daemon, from the source and the kernel. Changes nothing.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use anyhow::{Context, anyhow};
use dummy_interface::{DummyInterface, KernelDummyInterface, VipBinding};
use kubernetes::api::Watches;
use netfilter::{KernelNetfilter, Policy};
use service::{AddressExplanation, AddressQuery, Change, Client, Explanation, ObjectName, State};
use tokio::{
    runtime::Builder,
    select,
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::sleep,
};
use tracing::debug;
use watcher::{Kernel, Observed, Ownership, Plan, VirtualServerImages, diff_everything};

use super::{control_handler::put_first, pod_cidrs::PodCidrs};
use crate::{
    config::{self, LocalMode, Settings},
    node::{
        families::{self, vip_binding},
        requirements,
    },
    process,
    source::{Source, nodes::no_node},
};

/// The timeout of the lists: a daemon waits half of it for its Node, and then lists without.
const PATIENCE: Duration = Duration::from_secs(60);

/// The timeout of the list of the other Nodes, without which a daemon masquerades.
const PEERS_PATIENCE: Duration = Duration::from_secs(10);

/// The state of a daemon with these settings.
pub struct WithoutDaemon<'a> {
    settings: &'a Settings,
    source_state: SourceState,
    ours: Ownership,
}

impl<'a> WithoutDaemon<'a> {
    /// Lists the source once, and reads the node's addresses.
    pub fn read(settings: &'a Settings) -> anyhow::Result<Self> {
        // One for names of hosts, which are looked up by a thread.
        let runtime =
            process::try_threads(1).and_then(|()| Builder::new_current_thread().enable_all().build());
        let runtime = runtime.context("cannot start the threads of the runtime")?;
        let links = KernelDummyInterface::open(VipBinding::Address)?.observe()?;
        let source_state = runtime.block_on(SourceState::all(settings, links))?;
        Ok(Self { settings, source_state, ours: settings.ownership(families::families()) })
    }

    /// Reads the kernel, and returns the plan of a daemon.
    pub fn compare(&mut self) -> anyhow::Result<Plan> {
        let policy = self.policy()?;
        let mut kernel = Kernel {
            ipvs: Box::new(requirements::open_ipvs()?),
            netfilter: Box::new(KernelNetfilter::open(&policy)?),
            dummy_interface: Box::new(KernelDummyInterface::open(self.vip_binding()?)?.with_gue(policy.gue)),
        };
        let observed = Observed::read(&mut kernel)?;
        self.adopt_tunnels(&observed.virtual_servers);
        Ok(self.compare_with(&observed))
    }

    /// Takes the tunnels over that the kernel has, as a daemon does until the other nodes have answered it.
    pub(crate) fn adopt_tunnels(&mut self, virtual_servers: &VirtualServerImages) {
        self.source_state.state.apply(Change::TunnelledBefore(virtual_servers.tunnels()));
    }

    /// The plan of a daemon for a kernel that was read.
    pub(crate) fn compare_with(&self, observed: &Observed) -> Plan {
        diff_everything(&self.source_state.state, observed, &self.ours)
    }

    /// The desired state.
    pub(crate) fn state(&self) -> &State {
        &self.source_state.state
    }

    /// The part of the kernel that is ours.
    pub(crate) fn ours(&self) -> &Ownership {
        &self.ours
    }

    /// Explains how a Service would be served, and what would become of a client there.
    pub fn explain(&mut self, service: &ObjectName, client: Option<IpAddr>) -> anyhow::Result<Explanation> {
        let client = client.map(|ip| self.client(ip)).transpose()?;
        let read = || anyhow::Ok(Observed::virtual_servers(&mut requirements::open_ipvs()?)?);
        let found =
            read().inspect_err(|error| debug!("the tunnels of the kernel are not known: {error:#}")).ok();
        if let Some(found) = &found {
            self.adopt_tunnels(found);
        }
        let mut explanation = self.ours.explain(self.state(), service, client.as_ref());
        let untried = self.untried(&explanation, found.as_ref());
        put_first(self.doubts().into_iter().chain(untried), &mut explanation.problems);
        Ok(explanation)
    }

    /// Explains whose an address or port would be, and what would become of a client there.
    pub fn explain_address(
        &self,
        query: &AddressQuery,
        client: Option<IpAddr>,
    ) -> anyhow::Result<AddressExplanation> {
        let client = client.map(|ip| self.client(ip)).transpose()?;
        Ok(self.ours.explain_address(self.state(), query, client.as_ref()))
    }

    /// A client, as the rules of a daemon would recognise it.
    fn client(&self, ip: IpAddr) -> anyhow::Result<Client> {
        Ok(Client { ip, policy: self.policy()? })
    }

    /// Warns of a scheduler that was not tried: only a daemon tries whether the kernel has it. A scheduler in use
    /// exists.
    fn untried(&self, explanation: &Explanation, found: Option<&VirtualServerImages>) -> Option<String> {
        let scheduler = explanation.balancing.as_ref()?.scheduler;
        let usual = self.source_state.state.options().scheduler;
        let in_use = found.is_some_and(|all| all.values().any(|it| it.config().scheduler == scheduler));
        (scheduler != usual && !in_use).then(|| {
            format!("unknown whether the kernel has the scheduler {scheduler}: if not, {usual} is used")
        })
    }

    /// Why the answer may be wrong.
    pub fn doubts(&self) -> Vec<String> {
        self.source_state.doubts(self.settings)
    }

    /// The policy of our tables. Where pods are recognised by the Node's podCIDRs, they must be known.
    pub(crate) fn policy(&self) -> anyhow::Result<Policy> {
        let local_traffic = match &self.settings.local_mode {
            LocalMode::Fixed(fixed) => fixed.clone(),
            LocalMode::NodeCidr => self
                .source_state
                .pod_cidrs
                .with_context(|| format!("the Node {} has no podCIDRs", self.settings.services.node_name))?
                .into(),
        };
        Ok(self.settings.policy(local_traffic))
    }

    /// How VIPs are bound.
    pub(crate) fn vip_binding(&self) -> anyhow::Result<VipBinding> {
        vip_binding(self.settings.vip_binding)
    }
}

/// What the source has sent.
struct SourceState {
    state: State,
    /// Whether there is a Node of this name.
    node: bool,
    pod_cidrs: Option<PodCidrs>,
    /// Whether the other Nodes were listed, if they were asked for.
    knows_peers: bool,
}

impl SourceState {
    /// Follows the source until all lists are complete. The other nodes are listed only if a Service depends on them.
    async fn all(settings: &Settings, links: dummy_interface::Observed) -> anyhow::Result<Self> {
        let source = Source::open(settings).await?;
        let watches = Watches::default();
        let (send, mut changes) = unbounded_channel();
        let on_change = |change| _ = send.send(change);
        let lists = async {
            let mut source_state = Self::at(links, settings);
            source_state.state.apply(Change::ApiServer(source.api_server_addresses().await));
            source_state.follow(&mut changes, |state, _| state.listed()).await;
            if source_state.state.needs_nodes() && matches!(source, Source::Api(_)) {
                select! {
                    () = source_state.follow(&mut changes, |_, peers_are_listed| peers_are_listed) => {}
                    never = source.follow_peers(&settings.services.node_name, &watches, on_change) => match never {},
                    () = sleep(PEERS_PATIENCE) => {
                        source_state.knows_peers = false;
                        source_state.state.apply(Change::PeersUnavailable);
                    }
                }
            }
            source_state
        };
        select! {
            source_state = lists => Ok(source_state),
            error = source.follow(&settings.services.node_name, &watches, on_change) => Err(error),
            () = sleep(PATIENCE) => Err(anyhow!(
                "the lists were not complete within {} s: {}", PATIENCE.as_secs(), watches.troubles().join("; ")
            )),
        }
    }

    /// Why the desired state may be wrong.
    fn doubts(&self, settings: &Settings) -> Vec<String> {
        // Manifests need no Node.
        let has_none = !self.node && matches!(settings.source, config::Source::Api { .. });
        let no_node = has_none.then(|| no_node(&settings.services.node_name));
        let no_peers = (!self.knows_peers).then(|| {
            "cannot list the other Nodes: their addresses, and what direct return needs of them, are unknown".to_owned()
        });
        no_node.into_iter().chain(no_peers).collect()
    }

    /// An empty state, on a node with these links.
    fn at(links: dummy_interface::Observed, settings: &Settings) -> Self {
        let mut state = State::new(settings.services.clone());
        state.apply(Change::NodeAddresses { here: links.node_addresses, lost: BTreeSet::new() });
        if let Some(mtu) = links.link_mtu {
            state.apply(Change::LinkMtu(mtu));
        }
        state.apply(Change::Gateways(links.gateways));
        Self { state, node: false, pod_cidrs: None, knows_peers: true }
    }

    /// Takes changes in until that is enough: asked with the state, and whether all other nodes are listed.
    async fn follow(
        &mut self,
        changes: &mut UnboundedReceiver<Change>,
        is_enough: impl Fn(&State, bool) -> bool,
    ) {
        while let Some(change) = changes.recv().await {
            self.node |= matches!(change, Change::Node(Some(_)));
            self.pod_cidrs = PodCidrs::from_change(&change).or(self.pod_cidrs);
            let ends_peers = matches!(&change, Change::Peers(event) if event.completes_the_list());
            self.state.apply(change);
            if is_enough(&self.state, ends_peers) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::settings;

    #[test]
    fn every_doubt_is_printed() {
        let api = settings(&["--kubeconfig=/nonexistent/kubeconfig"]);
        let links = dummy_interface::Observed::default();
        let mut source_state = SourceState::at(links, &api);
        source_state.knows_peers = false;
        let no_node = no_node(&api.services.node_name);
        let no_peers =
            "cannot list the other Nodes: their addresses, and what direct return needs of them, are unknown";
        assert_eq!(source_state.doubts(&api), [no_node.as_str(), no_peers]);
        assert_eq!(source_state.doubts(&settings(&["--manifests=/nonexistent"])), [no_peers]);
        source_state.knows_peers = true;
        assert_eq!(source_state.doubts(&api), [no_node]);
        source_state.node = true;
        assert_eq!(source_state.doubts(&api), [""; 0]);
    }
}
