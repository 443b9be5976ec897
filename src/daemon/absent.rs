//! The node as a daemon would see it, for questions while none runs. Nothing is changed.

use std::time::Duration;

use anyhow::{Context, anyhow};
use dummy_interface::{KernelLinks, Links};
use netfilter::KernelNetfilter;
use service::{Change, Explanation, ObjectName, State};
use tokio::{
    runtime::Builder,
    select,
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::sleep,
};
use watcher::{Kernel, Observed, Ownership, Plan, Scope, api::Troubles, diff};

use super::{links, node, pod_cidrs::PodCidrs, source::Source};
use crate::{
    config::{LocalMode, Settings},
    preflight,
};

/// How long the lists may take: a daemon waits half of it for its Node, and then lists without.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a daemon with these settings would know.
pub struct Absent {
    state: State,
    kernel: Kernel,
    ours: Ownership,
}

impl Absent {
    /// Lists once what the source has, and opens the kernel.
    pub fn look(settings: &Settings) -> anyhow::Result<Self> {
        let ipvs = preflight::open_ipvs()?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let told = runtime.context("cannot start the runtime")?.block_on(Told::all(settings))?;
        let Told { mut state, pod_cidrs } = told;
        let local_traffic = match &settings.local_mode {
            LocalMode::Fixed(fixed) => fixed.clone(),
            LocalMode::NodeCidr => {
                pod_cidrs.with_context(|| format!("the Node {} has no podCIDRs", settings.node_name))?.into()
            }
        };
        let netfilter = KernelNetfilter::open(&settings.policy(local_traffic))?;
        let mut links = KernelLinks::open(links::vip_binding(settings.vip_binding)?)?;
        state.apply(Change::NodeAddresses(links.observe()?.node_addresses));
        let kernel = Kernel { ipvs: Box::new(ipvs), netfilter: Box::new(netfilter), links: Box::new(links) };
        Ok(Self { state, kernel, ours: settings.ownership(node::families()) })
    }

    /// Reads the kernel, and returns what a daemon would do first.
    pub fn compare(&mut self) -> anyhow::Result<Plan> {
        let observed = Observed::read(&mut self.kernel)?;
        Ok(diff(&self.state, &observed, Scope::All, &self.ours))
    }

    /// Why a Service would be served as it would be.
    pub fn explain(&self, service: &ObjectName) -> Explanation {
        self.state.explain(service)
    }
}

/// What the source has told.
struct Told {
    state: State,
    pod_cidrs: Option<PodCidrs>,
}

impl Told {
    /// Hears the source until both lists have come to their end.
    async fn all(settings: &Settings) -> anyhow::Result<Self> {
        let source = Source::open(settings).await?;
        let troubles = Troubles::default();
        let (send, changes) = unbounded_channel();
        let news = |change| _ = send.send(change);
        select! {
            told = Self::heard(settings, changes) => Ok(told),
            error = source.follow(&settings.node_name, &troubles, news) => Err(error),
            () = sleep(PATIENCE) => Err(anyhow!(
                "the lists did not come within {} s: {}", PATIENCE.as_secs(), troubles.lines().join("; ")
            )),
        }
    }

    async fn heard(settings: &Settings, mut changes: UnboundedReceiver<Change>) -> Self {
        let mut told = Self { state: State::new(settings.options()), pod_cidrs: None };
        while !told.state.synced()
            && let Some(change) = changes.recv().await
        {
            told.pod_cidrs = PodCidrs::told_by(&change).or(told.pod_cidrs);
            told.state.apply(change);
        }
        told
    }
}
