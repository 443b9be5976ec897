//! One sync: read what must be read, compare, carry out.

mod apply;
mod converge;
mod outcome;
mod pace;
mod portions;
mod read;
mod rotation;
#[cfg(test)]
mod tests;
mod transactions;

use std::{
    collections::BTreeSet,
    net::IpAddr,
    time::{Duration, Instant},
};

use dummy_interface::Changed;
use ipvs::{Scheduler, SchedulerSupport, ServiceAddress, probe_scheduler};
use service::{Change, Dirty, State};
use tracing::trace_span;
use watcher::{Kernel, Observed, Ownership, Plan, ReadError, diff_everything};

pub(crate) use self::{converge::SyncResult, outcome::PlanOutcome, pace::Slice};

use self::{
    pace::Pace,
    portions::{PORTION, Waiting},
    read::{Adopted, DeepVerify, Reread},
};
use crate::{
    ForeignVirtualServers, Trigger,
    follow::{
        Unrepaired,
        draining::Draining,
        lost_addresses::LostAddresses,
        schedulers,
        stale_flows::Rerouted,
        tunnels::{MissingTunnels, TunnelsInUse},
    },
};

/// The desired state, an image of the kernel, and what is known about the difference.
pub(crate) struct Reconciler {
    state: State,
    kernel: Kernel,
    ownership: Ownership,
    /// The kernel as last seen; `None` before the first read and after a doubt.
    image: Option<Observed>,
    /// Which virtual servers the next periodic sync verifies in every detail.
    deep_verify: DeepVerify,
    /// Which virtual servers the syncs after the start verify in every detail.
    adopted: Adopted,
    /// What the next sync must look at: what has changed since the last one, and what failed or was left in it.
    dirty: Dirty,
    /// Virtual servers whose second look has been put off.
    again: BTreeSet<ServiceAddress>,
    /// What others wait for behind costlier Services.
    waiting: Waiting,
    /// How fast the kernel is.
    pace: Pace,
    /// How many operations a portion has.
    portion: usize,
    /// Where the image may be wrong since the last sync.
    reread: Reread,
    draining: Draining,
    lost_addresses: LostAddresses,
    schedulers: schedulers::SchedulerProbes,
    missing_tunnels: MissingTunnels,
    tunnels_in_use: TunnelsInUse,
    /// Whether the desired state knows what the kernel had tunnelled before.
    has_adopted_tunnels: bool,
    /// How many virtual servers wait for their new scheduler.
    deferred: usize,
    /// Changes of other programs that are not repaired yet.
    unrepaired: Unrepaired,
    /// Changes whose stale UDP flows are not handed on yet.
    rerouted: Rerouted,
    /// For how many more failed syncs the rules of a new table are deferred, because what serves the flows that they
    /// take from other programs is not complete. Reset when no table waits.
    deferrals_left: u32,
}

/// How many failed syncs defer the rules of a new table. After that, waiting does not help, and the rest of the family
/// needs them.
const MAX_DEFERRALS: u32 = 2;

/// How long the virtual servers of NodePorts stay at an address that the node has lost. Without its virtual server
/// a connection is reset, but TCP bears a gap: when a network manager sets an interface up anew, or a lease is lost
/// and regained, the address is back within seconds. Meanwhile nothing from outside is led to them; but what this node
/// itself sends there meets them, also where another node has the address by now (`ip_vs_in_hook` in
/// net/netfilter/ipvs/ip_vs_core.c asks in output for the destination only).
const LOST_ADDRESS_GRACE: Duration = Duration::from_secs(30);

impl Reconciler {
    pub(crate) fn new(
        state: State,
        kernel: Kernel,
        ownership: Ownership,
        draining: Draining,
        tunnels_in_use: TunnelsInUse,
    ) -> Self {
        Self {
            state,
            kernel,
            ownership,
            image: None,
            deep_verify: DeepVerify::default(),
            adopted: Adopted::default(),
            dirty: Dirty::default(),
            again: BTreeSet::new(),
            waiting: Waiting::default(),
            pace: Pace::default(),
            portion: PORTION,
            reread: Reread::default(),
            draining,
            lost_addresses: LostAddresses::new(LOST_ADDRESS_GRACE),
            schedulers: schedulers::SchedulerProbes::default(),
            missing_tunnels: MissingTunnels::default(),
            tunnels_in_use,
            has_adopted_tunnels: false,
            deferred: 0,
            unrepaired: Unrepaired::default(),
            rerouted: Rerouted::default(),
            deferrals_left: MAX_DEFERRALS,
        }
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    pub(crate) fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    pub(crate) fn draining(&self) -> &Draining {
        &self.draining
    }

    /// When draining real servers or lost addresses must be checked, and for which of the two.
    pub(crate) fn next_check(&self) -> Option<(Instant, Trigger)> {
        let drain = self.draining.next_check().map(|due| (due, Trigger::Drain));
        let lost_address = self.lost_addresses.next_expiry().map(|due| (due, Trigger::NodeAddresses));
        drain.into_iter().chain(lost_address).min_by_key(|(due, _)| *due)
    }

    /// How many virtual servers wait for their new scheduler.
    pub(crate) fn scheduler_changes(&self) -> usize {
        self.deferred
    }

    /// The foreign virtual servers that are left alone; none while nothing is known of the kernel.
    pub(crate) fn kept_foreign(&self) -> ForeignVirtualServers {
        let image = self.image.iter();
        image.flat_map(|image| self.ownership.kept(&self.state, image)).collect()
    }

    /// Whether something waits for the next sync; before the first one, everything does.
    pub(crate) fn is_behind(&self) -> bool {
        self.state.synced() && !self.unrepaired.has_adopted() || !self.dirty.is_empty()
    }

    /// Applies a change to the desired state, and returns whether it affects anything.
    pub(crate) fn apply_change(&mut self, change: Change) -> bool {
        let dirty = self.state.apply(change);
        let any = !dirty.is_empty();
        // Before the lists are complete there is no sync, and the first one compares everything.
        if self.state.synced() {
            self.dirty.merge(dirty);
        }
        any
    }

    /// Handles a notification of the kernel about links and addresses, and returns the reason to sync, if there is
    /// one. The kernel reports our own changes too: only what differs from the image is a reason. Without an image
    /// everything will be read anyway.
    pub(crate) fn on_link_event(&mut self, changed: &Changed) -> Option<Trigger> {
        let image = self.image.as_ref()?;
        let differs = |(vip, bound): (&IpAddr, &bool)| image.dummy_interface.bound.contains(vip) != *bound;
        self.reread.node_addresses |= changed.node_addresses;
        if changed.everything || changed.vips.iter().any(differs) {
            self.reread.links = true;
            Some(Trigger::KernelEvent)
        } else {
            changed.node_addresses.then_some(Trigger::NodeAddresses)
        }
    }

    /// Handles a notification that another program has changed our tables, and returns the reason to sync.
    pub(crate) fn on_table_event(&mut self) -> Option<Trigger> {
        self.image.as_ref()?;
        self.reread.tables = true;
        Some(Trigger::TablesChanged)
    }

    /// Reads everything and returns what differs, without changing the kernel. A sync may need several steps to remove
    /// the differences: a few schedulers at a time, a real server that drains first.
    pub(crate) fn compare(&mut self) -> Result<Plan, ReadError> {
        // The kernel reports changed addresses as well, and a sync follows.
        let mut dirty = Dirty::default();
        let read = self.read_anew(false, &mut dirty);
        self.dirty.merge(dirty);
        let (mut observed, now) = (read?, Instant::now());
        for of in self.draining.virtual_servers() {
            self.draining.expired(&of, now).for_each(|server| observed.expire(&of, &server));
        }
        Ok(diff_everything(&self.state, &observed, &self.ownership))
    }

    /// Finds out whether the kernel has a scheduler. What a failed probe leaves behind, the next periodic sync removes.
    pub(crate) fn probe_scheduler(&mut self, scheduler: Scheduler) -> Result<SchedulerSupport, ipvs::Error> {
        let in_use = self.image.iter().flat_map(schedulers::used_schedulers);
        probe_scheduler(&mut *self.kernel.ipvs, scheduler, in_use)
    }

    /// Reads what must be read, compares, and carries out the plan until the slice is over.
    pub(crate) fn sync(&mut self, trigger: Trigger, slice: &Slice<'_>) -> SyncResult {
        let mut dirty = std::mem::take(&mut self.dirty);
        let reread = std::mem::take(&mut self.reread);
        // The image is put back at the end: if anything fails before, the next sync reads everything.
        let image = self.image.take().filter(|_| !trigger.reads_everything());
        self.add_due(trigger, image.is_some(), &mut dirty);
        let read = trace_span!("read").in_scope(|| self.read(image, trigger, reread, &mut dirty));
        let mut synced = match read {
            Ok(mut reading) => {
                let drift = std::mem::take(&mut reading.drift);
                self.unrepaired.add(&drift, &dirty);
                dirty.merge(drift);
                self.converge(reading, &dirty, trigger, slice)
            }
            Err(error) => {
                self.draining.postpone_due(Instant::now());
                // The keys were not compared: the next sync compares them.
                self.dirty.merge(dirty);
                SyncResult { outcome: PlanOutcome::unread(&error), ..SyncResult::default() }
            }
        };
        self.unrepaired.retain(&self.dirty);
        let cut_off = synced.outcome.cut_off.iter().map(|(_, connections)| connections).sum();
        synced.stats.failures = std::mem::take(&mut synced.outcome.failure_counts);
        synced.stats.drains = self.draining.take_stats(cut_off);
        synced.stats.programmed = self.image.as_ref().map(Into::into);
        synced
    }

    /// Syncs without an interruption by arriving inputs.
    #[cfg(test)]
    pub(crate) fn sync_whole(&mut self, trigger: Trigger) -> SyncResult {
        self.sync(trigger, &Slice::new(&|| false))
    }

    /// Adds what is dirty because it is time: what an operator asks to try again, lost addresses, drains.
    fn add_due(&mut self, trigger: Trigger, has_image: bool, dirty: &mut Dirty) {
        let now = Instant::now();
        if trigger == Trigger::Forced {
            // The operator may have loaded a module.
            self.schedulers = schedulers::SchedulerProbes::default();
            dirty.merge(self.state.apply(self.schedulers.to_change()));
            self.missing_tunnels = MissingTunnels::default();
            dirty.merge(self.state.apply(self.missing_tunnels.to_change()));
        }
        if self.lost_addresses.expire(now) {
            dirty.merge(self.state.apply(self.lost_addresses.to_change()));
        }
        if has_image && trigger != Trigger::Period {
            dirty.virtual_servers.extend(self.draining.due(now));
        } else {
            dirty.virtual_servers.extend(self.draining.virtual_servers());
        }
    }
}
