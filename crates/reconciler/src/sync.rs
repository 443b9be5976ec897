//! One sync: read what must be read, compare, carry out.

mod apply;
mod outcome;
mod pace;
mod pass;
mod portions;
mod read;
mod service_operations;
#[cfg(test)]
mod tests;
mod transactions;

use std::{
    collections::BTreeSet,
    mem,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use dummy_interface::Changed;
use ipvs::{Command, Scheduler, SchedulerSupport, ServiceAddress, probe_scheduler};
use service::{Change, Dirty, State};
use tracing::{debug, trace_span};
use watcher::{
    Draining, Drift, Kernel, Observed, Operation, Ownership, Plan, ReadError, SummaryError, Verification,
    departing_real_servers, diff, differing,
};

pub(crate) use self::{
    outcome::PlanOutcome,
    pace::Slice,
    pass::SyncResult,
    service_operations::{
        Done, RealServerOperation, ServiceOperations, VirtualServerOperation, VirtualServerOperations,
    },
};

use self::{
    outcome::keys,
    pace::Pace,
    pass::Pass,
    portions::{PORTION, Portion, Waiting, portions},
    read::{DeepVerify, Reading},
};
use crate::{
    ForeignVirtualServers, KernelDifference, PLAN_LOG, Trigger,
    follow::{
        LostAddresses, LostVirtualServers, MissingTunnels, TunnelsInUse, Unrepaired,
        schedulers::{self, SchedulerProbes},
        stale_flows::Rerouted,
    },
};

/// What a look for a virtual server has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It is there, or there is none to look for.
    Nothing,
    /// The kernel does not have it any more.
    Lost,
    /// The kernel does not say whether it is there.
    Unread,
}

/// The desired state, an image of the kernel, and what is known about the difference.
pub(crate) struct Reconciler {
    pub(crate) state: State,
    kernel: Kernel,
    pub(crate) ownership: Ownership,
    /// The kernel as last seen; `None` before the first read and after a doubt.
    image: Option<Observed>,
    /// The position in the image of the virtual server that is looked for next.
    next_look: usize,
    lost_virtual_servers: LostVirtualServers,
    /// Which virtual servers the next periodic sync verifies in every detail.
    deep_verify: DeepVerify,
    /// The comparison for the next periodic sync, as far as it has come.
    verification: Option<Result<Verification, SummaryError>>,
    /// The virtual servers that the start has adopted from a summary and no sync has verified since. An earlier
    /// daemon, or an operator meanwhile, may have left in them what a summary does not show.
    adopted: Vec<ServiceAddress>,
    /// The keys that the next sync compares: those that have changed since the last one, and those that
    /// failed or were left in it.
    dirty: Dirty,
    /// Operations that failed while there was more to do: they wait for their retry.
    failures: Vec<(Operation, Arc<str>)>,
    /// Virtual servers whose recheck has been put off.
    rechecks: BTreeSet<ServiceAddress>,
    /// For how long keys have been put off behind others.
    waiting: Waiting,
    /// How fast the kernel is.
    pace: Pace,
    /// How many operations a portion has.
    portion: usize,
    /// The parts of the kernel of which a change was reported since the last sync.
    reported: Drift,
    /// Whether virtual servers may be lost, so that the next sync, whatever its trigger, compares everything.
    may_lack_virtual_servers: bool,
    pub(crate) draining: Draining,
    lost_addresses: LostAddresses,
    schedulers: SchedulerProbes,
    missing_tunnels: MissingTunnels,
    tunnels_in_use: TunnelsInUse,
    /// Whether the desired state knows what the kernel had tunnelled before.
    has_adopted_tunnels: bool,
    /// How many virtual servers wait for their new scheduler.
    pub(crate) scheduler_changes: usize,
    /// Changes of other programs that are not repaired yet.
    unrepaired: Unrepaired,
    /// Changes whose stale UDP flows are not handed on yet.
    rerouted: Rerouted,
    /// For how many more failed syncs the rules of a new table are deferred, because what serves the flows
    /// that they take from other programs is not complete. Reset when no table waits.
    deferrals_left: u32,
}

/// How many failed syncs defer the rules of a new table. After that, waiting does not help, and the rest of
/// the family needs them.
const MAX_DEFERRALS: u32 = 2;

/// How long the virtual servers of NodePorts stay at an address that the node has lost. Without its virtual
/// server a connection is reset, but TCP bears a gap: when a network manager sets an interface up anew, or a
/// lease is lost and regained, the address is back within seconds. Meanwhile no packet from outside reaches
/// them; but packets that this node itself sends there do, also if another node has the address by now
/// (`ip_vs_in_hook` in net/netfilter/ipvs/ip_vs_core.c checks only the destination in output).
const LOST_ADDRESS_GRACE: Duration = Duration::from_secs(30);

impl Reconciler {
    pub(crate) fn new(
        state: State,
        kernel: Kernel,
        ownership: Ownership,
        draining: Draining,
        tunnels_in_use: TunnelsInUse,
    ) -> Self {
        let schedulers = SchedulerProbes::new(state.options().scheduler);
        Self {
            state,
            kernel,
            ownership,
            image: None,
            next_look: 0,
            lost_virtual_servers: LostVirtualServers::default(),
            deep_verify: DeepVerify::default(),
            verification: None,
            adopted: Vec::new(),
            dirty: Dirty::default(),
            failures: Vec::new(),
            rechecks: BTreeSet::new(),
            waiting: Waiting::default(),
            pace: Pace::default(),
            portion: PORTION,
            reported: Drift::default(),
            may_lack_virtual_servers: false,
            draining,
            lost_addresses: LostAddresses::new(LOST_ADDRESS_GRACE),
            schedulers,
            missing_tunnels: MissingTunnels::default(),
            tunnels_in_use,
            has_adopted_tunnels: false,
            scheduler_changes: 0,
            unrepaired: Unrepaired::default(),
            rerouted: Rerouted::default(),
            deferrals_left: MAX_DEFERRALS,
        }
    }

    /// When draining real servers or lost addresses must be checked, and for which of the two.
    pub(crate) fn next_check(&self) -> Option<(Instant, Trigger)> {
        let drain = self.draining.next_check().map(|due| (due, Trigger::Drain));
        let lost_address = self.lost_addresses.next_expiry().map(|due| (due, Trigger::NodeAddresses));
        drain.into_iter().chain(lost_address).min_by_key(|(due, _)| *due)
    }

    /// The foreign virtual servers that are left alone; none while nothing is known of the kernel.
    pub(crate) fn kept_foreign(&self) -> ForeignVirtualServers {
        let image = self.image.iter();
        image.flat_map(|image| self.ownership.kept(&self.state, image)).collect()
    }

    /// Whether something waits for the next sync; before the first one, everything does.
    pub(crate) fn is_behind(&self) -> bool {
        self.state.synced() && !self.unrepaired.adopted || !self.dirty.is_empty() || !self.failures.is_empty()
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

    /// Handles a notification of the kernel about links and addresses, and returns the reason to sync, if
    /// there is one. The kernel reports our own changes too: only what differs from the image is a reason.
    /// Without an image everything will be read anyway.
    pub(crate) fn on_link_event(&mut self, changed: &Changed) -> Option<Trigger> {
        let image = self.image.as_ref()?;
        let differs = |(vip, bound): (&IpAddr, &bool)| image.dummy_interface.bound.contains(vip) != *bound;
        let trigger = if changed.everything || changed.vips.iter().any(differs) {
            Some(Trigger::KernelEvent)
        } else {
            changed.node_addresses.then_some(Trigger::NodeAddresses)
        };
        self.reported.links |= trigger.is_some();
        trigger
    }

    /// Handles a notification that another program has changed our tables, and returns the reason to sync.
    pub(crate) fn on_table_event(&mut self) -> Option<Trigger> {
        self.image.as_ref()?;
        self.reported.tables = true;
        Some(Trigger::TablesChanged)
    }

    /// Asks the kernel for one virtual server that it should have, each time for the next one. IPVS sends no
    /// notifications, so this is how an emptied table, or an unloaded ip_vs, is noticed long before the next comparison.
    /// An address that is not ours to repair does not count.
    pub(crate) fn look_for_virtual_server(&mut self) -> Look {
        let Some(image) = &self.image else { return Look::Nothing };
        let servers = &image.virtual_servers;
        let Some(turn) = self.next_look.checked_rem(servers.len()) else { return Look::Nothing };
        self.next_look = turn + 1;
        let is_wanted = |at: &&ServiceAddress| self.state.virtual_server(at).is_some();
        let Some(address) = servers.keys().nth(turn).filter(is_wanted) else { return Look::Nothing };
        let look = match self.kernel.ipvs.virtual_server((*address).into()) {
            Ok(Some(_)) => return Look::Nothing,
            Ok(None) | Err(ipvs::Error::NoIpvs | ipvs::Error::Reloaded) => {
                self.lost_virtual_servers.suspect(servers.keys().filter(is_wanted).copied());
                Look::Lost
            }
            Err(_) => Look::Unread,
        };
        self.may_lack_virtual_servers = true;
        // Virtual servers that were compared already may be gone.
        self.verification = None;
        look
    }

    /// Reads everything and returns what differs, without changing the kernel. A sync may need several steps
    /// to remove the differences: a few schedulers at a time, a real server that drains first.
    pub(crate) fn compare(&mut self) -> Result<Plan, ReadError> {
        // The kernel reports changed addresses as well, and a sync follows.
        let mut dirty = Dirty::default();
        let read = self.read_anew(false, &mut dirty);
        self.dirty.merge(dirty);
        let observed = read?;
        self.draining.expire(Instant::now());
        Ok(self.diff(&observed, &differing(&self.state, &observed, &self.ownership)))
    }

    /// Reads everything and returns how it differs, without what is under way and without changing the kernel.
    pub(crate) fn difference(&mut self) -> Result<KernelDifference, ReadError> {
        let plan = self.compare()?;
        let mut under_way: Dirty = keys(&self.failures).collect();
        under_way.virtual_servers.extend(self.rechecks.iter().chain(&self.adopted));
        let draining: BTreeSet<_> = self.draining.virtual_servers().collect();
        let is_under_way = |operation: &Operation| {
            let is_drain = matches!(operation, Operation::Ipvs(command @ Command::DeleteRealServer(..))
                if command.address().is_some_and(|of| draining.contains(&of)));
            is_drain
                || operation.key().is_some_and(|key| self.dirty.contains(&key) || under_way.contains(&key))
        };
        let differing = plan.operations().filter(|operation| !is_under_way(operation));
        Ok(KernelDifference::from_operations(differing, &self.state))
    }

    /// Finds out whether the kernel has a scheduler. What a failed probe leaves behind, the next periodic
    /// sync removes.
    pub(crate) fn probe_scheduler(&mut self, scheduler: Scheduler) -> Result<SchedulerSupport, ipvs::Error> {
        let in_use = self.image.iter().flat_map(schedulers::used_schedulers);
        probe_scheduler(&mut *self.kernel.ipvs, scheduler, in_use)
    }

    /// Reads what must be read, and carries out what differs portion by portion, until the slice is over.
    pub(crate) fn sync(&mut self, trigger: Trigger, slice: &Slice<'_>) -> SyncResult {
        // Another sync can come before the one that a loss asks for.
        let lacks_some = mem::take(&mut self.may_lack_virtual_servers) && !trigger.is_full();
        let trigger = if lacks_some { Trigger::VirtualServerLost } else { trigger };
        let mut dirty = self.take_dirty(trigger);
        let read = trace_span!("read").in_scope(|| self.read(trigger, &mut dirty));
        let Reading { image, full, drift } = match read {
            Ok(reading) => reading,
            Err(error) => return self.end_unread(&error, dirty),
        };
        // What is in the kernel of Services that are gone has yet to be removed.
        self.state.retain_former_owners(|address| image.virtual_servers.contains_key(address));
        if !drift.is_empty() {
            let failed: Dirty = keys(&self.failures).collect();
            self.unrepaired.add(&drift, |key| dirty.contains(key) || failed.contains(key));
            dirty.merge(drift);
        }
        // Those that failed are compared again now.
        self.failures.retain(|(failed, _)| failed.key().is_none_or(|key| !dirty.contains(&key)));

        let most = self.portion.min(self.pace.portion());
        let portions = portions(dirty, &self.state, &image, &self.waiting, most);
        let mut pass = Pass::new(image, full, self.deferrals_left > 0, trigger, slice);
        pass.rechecks = mem::take(&mut self.rechecks);
        self.failures.iter().for_each(|(failed, _)| pass.failed.add(failed, &pass.image));
        slice.begin();
        for portion in portions {
            self.carry_out(portion, &mut pass);
        }
        // Keys that need a scheduler that has turned out to be missing: their elements are there by now.
        let changed = Portion::from(&mem::take(&mut pass.changed));
        self.carry_out(changed, &mut pass);
        // What nothing needs any more goes only when all that is needed is there: a removed real server stays
        // in the kernel for two minutes, and each one that is added meanwhile is compared with all of those
        // (`ip_vs_trash_get_dest` in net/netfilter/ipvs/ip_vs_ctl.c).
        for portion in pass.begin_rechecks(self.portion) {
            trace_span!("recheck").in_scope(|| self.carry_out(portion, &mut pass));
        }
        self.end(pass)
    }

    /// Syncs without an interruption by arriving inputs.
    #[cfg(test)]
    pub(crate) fn sync_whole(&mut self, trigger: Trigger) -> SyncResult {
        self.sync(trigger, &Slice::new(&|| false))
    }

    /// Compares a portion with the image, and carries out the plan. After the end of the slice it is put off.
    fn carry_out(&mut self, portion: Portion, pass: &mut Pass<'_>) {
        if portion.is_empty() {
            return;
        }
        if pass.is_over() {
            return pass.put_off(portion);
        }
        let dirty: Dirty = portion.keys().collect();
        if let Err(error) = self.read_real_servers(&dirty.virtual_servers, pass) {
            pass.outcome.fail_to_read(&error);
            return pass.put_off(portion);
        }
        pass.begun.extend(portion.groups);
        let mut plan = self.diff(&pass.image, &dirty);
        if !pass.is_recheck && self.probe_schedulers_of(&plan, pass) {
            plan = self.diff(&pass.image, &dirty);
        }
        let scheduler_changes = &mut pass.scheduler_changes_left;
        pass.deferred.extend(schedulers::defer_changes(&mut plan, &pass.image, scheduler_changes));
        schedulers::rotate(&mut plan, &self.state.options().node_name, |at| {
            self.state.virtual_server(at).is_some_and(|server| server.scheduler.is_hashing())
        });
        if !pass.is_recheck {
            debug!(target: PLAN_LOG, trigger = ?pass.trigger, operations = plan.len(), "plan");
        }
        pass::warn_of_foreign(&plan);

        self.apply(&plan, pass);
        let Pass { rechecks, outcome, .. } = &*pass;
        let is_done = |of: &&_| !rechecks.contains(*of) && !outcome.unreached.virtual_servers.contains(*of);
        let now = Instant::now();
        for of in dirty.virtual_servers.iter().filter(is_done) {
            self.draining.update(*of, departing_real_servers(&self.state, &pass.image, of), now);
        }
        let wanted = dirty.virtual_servers.iter().filter_map(|address| self.state.virtual_server(address));
        pass.image.virtual_servers.share(wanted);
    }

    fn diff(&self, image: &Observed, dirty: &Dirty) -> Plan {
        let compare = || diff(&self.state, image, dirty, &self.ownership, &self.draining);
        trace_span!("compare").in_scope(compare)
    }

    /// Takes what is dirty, and adds what is because it is time: failures, what an operator asks to try
    /// again, lost addresses, drains.
    fn take_dirty(&mut self, trigger: Trigger) -> Dirty {
        let (mut dirty, now) = (mem::take(&mut self.dirty), Instant::now());
        if trigger.retries() {
            dirty.extend(keys(&mem::take(&mut self.failures)));
        }
        if trigger == Trigger::Forced {
            // The operator may have loaded a module.
            self.schedulers = SchedulerProbes::new(self.state.options().scheduler);
            dirty.merge(self.state.apply(self.schedulers.to_change()));
            self.missing_tunnels = MissingTunnels::default();
            dirty.merge(self.state.apply(self.missing_tunnels.to_change()));
        }
        if self.lost_addresses.expire(now) {
            dirty.merge(self.state.apply(self.lost_addresses.to_change()));
        }
        self.draining.expire(now);
        if self.image.is_none() || trigger.is_full() {
            dirty.virtual_servers.extend(self.draining.virtual_servers());
        } else {
            dirty.virtual_servers.extend(self.draining.due(now));
        }
        dirty
    }
}
