//! The state that the portions of one sync share, and the conclusions at its end.

use std::{
    collections::BTreeSet,
    mem,
    time::{Duration, Instant},
};

use ipvs::{Command, ServiceAddress};
use netfilter::{Operation::InstallTable, conntrack::StaleFlows};
use rustc_hash::FxHashSet;
use service::{Dirty, ObjectName};
use tracing::warn;
use watcher::{Foreign, Observed, Operation, Plan, ReadError, departing_real_servers};

use super::{
    MAX_DEFERRALS, Reconciler,
    outcome::{Failed, PlanOutcome, keys},
    pace::Slice,
    portions::{Group, Portion, rechecks},
};
use crate::{BusyWith, ForeignVirtualServers, Trigger, follow::schedulers, schedule::Failures};

/// A sync that has ended.
#[derive(Debug, Default)]
pub(crate) struct SyncResult {
    /// Whether the whole kernel was checked.
    pub(crate) full: bool,
    pub(crate) outcome: PlanOutcome,
    /// UDP flows that must be deleted from conntrack.
    pub(crate) stale_flows: StaleFlows,
    /// The foreign virtual servers that were removed.
    pub(crate) removed_foreign: ForeignVirtualServers,
    /// Whether there was nothing to write.
    pub(crate) idle: bool,
    /// Whether deferred work can be done now, what was adopted must be verified, or the kernel be read anew.
    pub(crate) unfinished: bool,
    pub(crate) failures: Failures,
    /// The work with which the next sync goes on at once, because this one has taken long enough.
    pub(crate) busy: Option<BusyWith>,
}

/// The state that the portions of one sync share.
pub(super) struct Pass<'a> {
    pub(super) image: Observed,
    /// Whether the kernel was read as a whole just before.
    full: bool,
    pub(super) trigger: Trigger,
    pub(super) slice: &'a Slice<'a>,
    pub(super) failed: Failed,
    pub(super) outcome: PlanOutcome,
    removed_foreign: ForeignVirtualServers,
    /// Virtual servers whose change of scheduler is deferred.
    pub(super) deferred: BTreeSet<ServiceAddress>,
    /// How many more schedulers may be changed.
    pub(super) scheduler_changes_left: usize,
    /// Virtual servers that must be compared once more.
    pub(super) rechecks: BTreeSet<ServiceAddress>,
    /// Whether these are being compared.
    pub(super) is_recheck: bool,
    /// The keys whose desired state has changed meanwhile.
    pub(super) changed: Dirty,
    /// Whether a probe of a scheduler failed, so that its virtual server may still be there.
    probe_failed: bool,
    /// The groups that were carried out, if in part.
    pub(super) begun: Vec<Group>,
    /// The portions that were put off, the costliest last.
    put_off: Vec<Portion>,
}

impl<'a> Pass<'a> {
    pub(super) fn new(
        image: Observed,
        full: bool,
        defers_rules: bool,
        trigger: Trigger,
        slice: &'a Slice<'a>,
    ) -> Self {
        Self {
            image,
            full,
            trigger,
            slice,
            failed: Failed::new(defers_rules),
            outcome: PlanOutcome::default(),
            removed_foreign: ForeignVirtualServers::default(),
            deferred: BTreeSet::new(),
            scheduler_changes_left: schedulers::MAX_CHANGES_PER_SYNC,
            rechecks: BTreeSet::new(),
            is_recheck: false,
            changed: Dirty::default(),
            probe_failed: false,
            begun: Vec::new(),
            put_off: Vec::new(),
        }
    }

    /// Whether the rest must wait: because it has taken long enough, or because what others rest on is not
    /// known.
    pub(super) fn is_over(&self) -> bool {
        let Self { outcome, slice, .. } = self;
        let has_begun =
            outcome.has_done_something() || !outcome.unreached.is_empty() || !self.put_off.is_empty();
        outcome.unread.is_some() || has_begun && slice.is_over()
    }

    /// Leaves a portion to the next sync.
    pub(super) fn put_off(&mut self, portion: Portion) {
        if self.is_recheck {
            self.rechecks.extend(portion.virtual_servers());
        }
        self.put_off.push(portion);
    }

    /// Records what follows from a plan that was carried out, of which the failures follow those before.
    pub(super) fn note(&mut self, plan: &Plan, failures_before: usize) {
        let outcome = &self.outcome;
        // Otherwise the kernel would search for the missing scheduler again in each portion.
        if !outcome.lacking.is_empty() {
            self.scheduler_changes_left = 0;
        }
        let failed = keys(outcome.failures.get(failures_before..).unwrap_or_default());
        let mut undone: BTreeSet<_> = failed.filter_map(|key| key.virtual_server()).collect();
        undone.extend(&outcome.unreached.virtual_servers);
        self.removed_foreign.extend(&(&plan.foreign - &undone).iter().collect());
        // What failed is left out: what was put off must wait for what it depends on. So is what was not
        // reached.
        if !self.is_recheck {
            self.rechecks.extend(&needs_recheck(plan, self.full) - &undone);
        }
    }

    /// Begins to compare virtual servers once more, in portions. The changes of schedulers that belong to
    /// this sync have been made, or refused.
    pub(super) fn begin_rechecks(&mut self, most: usize) -> Vec<Portion> {
        (self.is_recheck, self.scheduler_changes_left) = (true, 0);
        rechecks(mem::take(&mut self.rechecks), &self.image, most)
    }
}

/// How many foreign virtual servers are named before they are removed.
const NAMED: usize = 20;

/// Names the foreign virtual servers that a plan removes.
pub(super) fn warn_of_foreign(plan: &Plan) {
    for address in plan.foreign.iter().take(NAMED) {
        warn!(remedy = Foreign::REMEDY, "removing a virtual server that belongs to no Service: {address}");
    }
    match plan.foreign.len().saturating_sub(NAMED) {
        0 => {}
        more => warn!("removing {more} more virtual servers that belong to no Service"),
    }
}

/// The virtual servers that must be compared once more after a plan. Real servers that just got weight 0 may
/// have no connections. And unless everything was read just before, an edited virtual server may have been
/// missing: then the edit has created it without its real servers.
fn needs_recheck(plan: &Plan, all_read: bool) -> BTreeSet<ServiceAddress> {
    let is_in_doubt = |command: &&Command| match command {
        Command::EditRealServer(_, server) => server.weight == 0,
        Command::EditVirtualServer(_) => !all_read,
        _ => false,
    };
    plan.commands().filter(is_in_doubt).filter_map(Command::address).collect()
}

impl Reconciler {
    /// Reads real servers again: in a recheck those of all these virtual servers, otherwise those of the
    /// virtual servers that one leaves, because only the kernel knows whether it has connections.
    pub(super) fn read_real_servers(
        &mut self,
        of: &BTreeSet<ServiceAddress>,
        pass: &mut Pass<'_>,
    ) -> Result<(), ReadError> {
        for address in of {
            let image = &mut pass.image;
            if pass.is_recheck || departing_real_servers(&self.state, image, address).next().is_some() {
                image.refresh_real_servers(&mut self.kernel, *address)?;
            }
        }
        Ok(())
    }

    /// Probes the schedulers that a plan asks for, and returns whether one is missing. Then the desired state
    /// has changed.
    pub(super) fn probe_schedulers_of(&mut self, plan: &Plan, pass: &mut Pass<'_>) -> bool {
        let probe = self.schedulers.probe_new(plan, &pass.image, &mut *self.kernel.ipvs);
        pass.probe_failed |= probe.doubtful;
        if probe.changed {
            pass.changed.merge(self.state.apply(self.schedulers.to_change()));
        }
        probe.changed
    }

    /// Ends a sync that could not read the kernel.
    pub(super) fn end_unread(&mut self, error: &ReadError, dirty: Dirty) -> SyncResult {
        self.draining.postpone_due(Instant::now());
        // The keys were not compared: the next sync compares them.
        self.dirty.merge(dirty);
        self.dirty.extend(keys(&mem::take(&mut self.failures)));
        let mut outcome = PlanOutcome::default();
        outcome.fail_to_read(error);
        self.with_stats(SyncResult { outcome, failures: Failures::Tried, ..SyncResult::default() })
    }

    /// Ends a sync: the next one compares what is left, and what failed.
    pub(super) fn end(&mut self, pass: Pass<'_>) -> SyncResult {
        let Pass {
            image, full, mut outcome, removed_foreign, deferred, probe_failed, put_off, begun, ..
        } = pass;
        let mut groups = Vec::new();
        outcome.unreached.extend(put_off.into_iter().flat_map(|portion| {
            groups.extend(portion.groups);
            portion.keys
        }));
        if full {
            self.unrepaired.adopted = true;
        }
        self.waiting.update(&groups, &begun);
        self.rechecks = pass.rechecks;
        // Without an image the next sync reads everything.
        self.image = (!outcome.doubtful && !probe_failed).then_some(image);
        self.learn_from(&outcome);
        let idle = outcome.is_idle();
        let failures =
            match (self.failures.is_empty(), outcome.failures.is_empty() && outcome.unread.is_none()) {
                (false, _) => Failures::Waiting,
                (true, false) => Failures::Tried,
                (true, true) => Failures::None,
            };
        outcome.failures.append(&mut self.failures);
        let has_address = |group: &&Group| group.ip().is_some();
        let costliest = groups.iter().rfind(has_address).or(begun.iter().rfind(has_address));
        let busy = self.busy(costliest, &outcome);
        self.dirty.virtual_servers.extend(&deferred);
        // After a failure the retry comes anyway, though later.
        let unfinished = self.can_go_on(&deferred, &outcome)
            || probe_failed && outcome.failures.is_empty()
            || self.image.is_some() && !self.adopted.is_empty();
        // A sync that follows soon does not try again what has just failed.
        if busy.is_some() || unfinished {
            self.failures.clone_from(&outcome.failures);
        } else {
            self.dirty.extend(keys(&outcome.failures));
        }
        self.scheduler_changes = deferred.len();
        if self.image.is_none() {
            self.draining.postpone_due(Instant::now());
        }
        self.rerouted.extend(mem::take(&mut outcome.rerouted));
        let stale_flows = self.rerouted.take_stale_flows(self.image.as_ref());
        self.with_stats(SyncResult {
            full: full && outcome.unread.is_none(),
            outcome,
            stale_flows,
            removed_foreign,
            idle,
            unfinished,
            failures,
            busy,
        })
    }

    /// Adds what is counted after each sync, and leaves the next one what was not reached.
    fn with_stats(&mut self, mut synced: SyncResult) -> SyncResult {
        if !self.unrepaired.is_empty() {
            let failed: Dirty = keys(&self.failures).collect();
            let unreached = &synced.outcome.unreached;
            self.unrepaired
                .retain(|key| self.dirty.contains(key) || failed.contains(key) || unreached.contains(key));
        }
        let PlanOutcome { cut_off, unreached, left, stats, .. } = &mut synced.outcome;
        if let Some(image) = &self.image {
            let is_missing = |at: &ServiceAddress| {
                let is_there =
                    image.virtual_servers.contains_key(at) && !unreached.virtual_servers.contains(at);
                self.state.virtual_server(at).is_some() && !is_there
            };
            self.lost_virtual_servers.retain(synced.full, is_missing);
        }
        stats.lost_virtual_servers = self.lost_virtual_servers.count();
        let cut_off = cut_off.iter().map(|(_, connections)| connections).sum();
        stats.drains = self.draining.take_stats(cut_off);
        stats.programmed = self.image.as_ref().map(Into::into);
        stats.left = self.owners(unreached);
        *left = unreached.len();
        self.dirty.merge(mem::take(unreached));
        synced
    }

    /// The Services of which virtual servers, elements of these, or their VIPs are among some keys.
    fn owners(&self, keys: &Dirty) -> FxHashSet<ObjectName> {
        let of_keys = keys.keys().filter_map(|key| self.state.owner(&key.belongs_to()?));
        let mut owners: FxHashSet<_> = of_keys.cloned().collect();
        let vips: FxHashSet<_> = keys.keys().filter_map(|key| key.vip()).collect();
        if !vips.is_empty() {
            let at_vips = self.state.owners().filter(|(address, _)| vips.contains(&address.ip));
            owners.extend(at_vips.map(|(_, owner)| owner.clone()));
        }
        owners
    }

    /// Records which schedulers the kernel refused, and for how many more syncs new tables wait for their
    /// rules.
    fn learn_from(&mut self, outcome: &PlanOutcome) {
        if self.schedulers.record_refused(&outcome.lacking) {
            // What failed is tried again, then with the default scheduler.
            self.dirty.merge(self.state.apply(self.schedulers.to_change()));
        }
        if self.missing_tunnels.record_refused(&outcome.lacking_tunnels) {
            self.dirty.merge(self.state.apply(self.missing_tunnels.to_change()));
        }
        let lacks_rules =
            |(failed, _): &(Operation, _)| matches!(failed, Operation::Netfilter(InstallTable(_)));
        if outcome.failures.iter().any(lacks_rules) {
            self.deferrals_left = self.deferrals_left.saturating_sub(1);
        } else if outcome.unreached.rules.is_empty() && !self.failures.iter().any(lacks_rules) {
            self.deferrals_left = MAX_DEFERRALS;
        }
    }

    /// Whether a sync that follows soon could change the schedulers of those that were deferred. Where one
    /// change was refused the others would be too, and without an image everything is in doubt.
    fn can_go_on(&self, deferred: &BTreeSet<ServiceAddress>, outcome: &PlanOutcome) -> bool {
        let Some(image) = &self.image else { return false };
        let refused = |operation: &Operation| match operation {
            Operation::Ipvs(command) => schedulers::scheduler_change(command, image).is_some(),
            Operation::Netfilter(_) | Operation::DummyInterface(_) => false,
        };
        !deferred.is_empty() && !outcome.failures.iter().any(|(operation, _)| refused(operation))
    }

    /// The work that is left because it takes long. What could not be read, or is in doubt, or where nothing could be
    /// done, is tried again after a pause.
    fn busy(&self, costliest: Option<&Group>, outcome: &PlanOutcome) -> Option<BusyWith> {
        let is_stuck = outcome.unread.is_some() || outcome.doubtful || !outcome.has_done_something();
        if is_stuck || outcome.unreached.is_empty() {
            return None;
        }
        let of_group = |at: &&ServiceAddress| costliest.is_some_and(|group| group.ip() == Some(at.ip));
        let at = outcome.unreached.virtual_servers.iter().find(of_group);
        let service = at.and_then(|at| self.state.owner(at)).cloned();
        Some(BusyWith { service, left: outcome.unreached.len(), age: Duration::ZERO })
    }
}

#[cfg(test)]
mod tests;
