//! Answers `diff`, `explain` and `preflight` without a daemon, from the source and the kernel. Changes nothing.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, anyhow};
use dummy_interface::{DummyInterface, KernelDummyInterface, VipBinding};
use ipvs::Ipvs;
use kubernetes::api::Watches;
use netfilter::{KernelNetfilter, Policy};
use service::{Change, Explanation, ObjectName, State};
use tokio::{
    runtime::Builder,
    select,
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::sleep,
};
use watcher::{Kernel, Observed, Ownership, Plan, Scope, diff};

use super::{control_socket::put_first, pod_cidrs::PodCidrs};
use crate::{
    config::{self, LocalMode, Settings},
    node::{families, limits, requirements, vip_binding::vip_binding},
    source::{Source, known_node::no_node},
};

/// The timeout of the lists: a daemon waits half of it for its Node, and then lists without.
const PATIENCE: Duration = Duration::from_secs(60);

/// The state of a daemon with these settings.
pub struct WithoutDaemon<'a> {
    settings: &'a Settings,
    source_state: SourceState,
    ours: Ownership,
}

impl<'a> WithoutDaemon<'a> {
    /// Lists the source once, and reads the node's addresses.
    pub fn look(settings: &'a Settings) -> anyhow::Result<Self> {
        // One for names of hosts, which are looked up by a thread.
        let runtime =
            limits::try_threads(1).and_then(|()| Builder::new_current_thread().enable_all().build());
        let runtime = runtime.context("cannot start the threads of the runtime")?;
        let mut source_state = runtime.block_on(SourceState::all(settings))?;
        let here = KernelDummyInterface::open(VipBinding::Address)?.observe()?.node_addresses;
        source_state.state.apply(Change::NodeAddresses { here, lost: BTreeSet::new() });
        Ok(Self { settings, source_state, ours: settings.ownership(families::families()) })
    }

    /// Reads the kernel, and returns the plan of a daemon.
    pub fn compare(&self) -> anyhow::Result<Plan> {
        let policy = self.policy()?;
        let mut kernel = Kernel {
            ipvs: Box::new(requirements::open_ipvs()?),
            netfilter: Box::new(KernelNetfilter::open(&policy)?),
            dummy_interface: Box::new(KernelDummyInterface::open(self.vip_binding()?)?),
        };
        Ok(self.compare_with(&Observed::read(&mut kernel)?))
    }

    /// The plan of a daemon for a kernel that was read.
    pub(crate) fn compare_with(&self, observed: &Observed) -> Plan {
        diff(&self.source_state.state, observed, Scope::All, &self.ours)
    }

    /// The desired state.
    pub(crate) fn state(&self) -> &State {
        &self.source_state.state
    }

    /// The part of the kernel that is ours.
    pub(crate) fn ours(&self) -> &Ownership {
        &self.ours
    }

    /// Explains how a Service would be served.
    pub fn explain(&self, service: &ObjectName) -> Explanation {
        let mut explanation = self.ours.explain(&self.source_state.state, service);
        let untried = self.untried(&explanation);
        put_first(self.doubts().into_iter().chain(untried), &mut explanation.problems);
        explanation
    }

    /// Warns of a scheduler that was not tried: only a daemon tries whether the kernel has it. A scheduler in use
    /// exists.
    fn untried(&self, explanation: &Explanation) -> Option<String> {
        let scheduler = explanation.balancing.as_ref()?.scheduler;
        let usual = self.source_state.state.options().scheduler;
        let in_use = || {
            let all = requirements::open_ipvs().ok()?.virtual_servers().ok()?;
            Some(all.iter().any(|server| server.config.scheduler == scheduler))
        };
        (scheduler != usual && in_use() != Some(true)).then(|| {
            format!(
                "whether the kernel has the scheduler {scheduler} was not tried: without it, {usual} is used"
            )
        })
    }

    /// Why the answer may be wrong.
    pub fn doubts(&self) -> Option<String> {
        // Manifests need no Node.
        let has_none = !self.source_state.node && matches!(self.settings.source, config::Source::Api { .. });
        has_none.then(|| no_node(&self.settings.node_name))
    }

    /// The policy of our tables. Where pods are recognised by the Node's podCIDRs, they must be known.
    pub(crate) fn policy(&self) -> anyhow::Result<Policy> {
        let local_traffic = match &self.settings.local_mode {
            LocalMode::Fixed(fixed) => fixed.clone(),
            LocalMode::NodeCidr => self
                .source_state
                .pod_cidrs
                .with_context(|| format!("the Node {} has no podCIDRs", self.settings.node_name))?
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
}

impl SourceState {
    /// Follows the source until both lists are complete.
    async fn all(settings: &Settings) -> anyhow::Result<Self> {
        let source = Source::open(settings).await?;
        let watches = Watches::default();
        let (send, changes) = unbounded_channel();
        let on_change = |change| _ = send.send(change);
        select! {
            source_state = Self::follow(settings, changes) => Ok(source_state),
            error = source.follow(&settings.node_name, &watches, on_change) => Err(error),
            () = sleep(PATIENCE) => Err(anyhow!(
                "the lists did not come within {} s: {}", PATIENCE.as_secs(), watches.troubles().join("; ")
            )),
        }
    }

    async fn follow(settings: &Settings, mut changes: UnboundedReceiver<Change>) -> Self {
        let mut source_state = Self { state: State::new(settings.options()), node: false, pod_cidrs: None };
        while !source_state.state.synced()
            && let Some(change) = changes.recv().await
        {
            source_state.node |= matches!(change, Change::ApplyNode(_));
            source_state.pod_cidrs = PodCidrs::from_change(&change).or(source_state.pod_cidrs);
            source_state.state.apply(change);
        }
        source_state
    }
}
