//! The second half of a sync: compare, and carry out the plan.

use std::{collections::BTreeSet, mem, time::Instant};

use ipvs::{Command, Protocol, ServiceAddress, VirtualServerId};
use netfilter::{Operation::InstallTable, conntrack::StaleFlows};
use service::Dirty;
use tracing::{debug, trace_span, warn};
use watcher::{Observed, Operation, Plan, ReadError, departing_real_servers, diff};

use super::{
    MAX_DEFERRALS, Reconciler,
    apply::apply,
    outcome::{Blocked, PlanOutcome},
    pace::Slice,
    portions::{Group, portions},
    read::Reading,
    rotation::rotate,
};
use crate::{
    ForeignVirtualServers, PLAN_LOG, SyncStats, Trigger,
    follow::{
        Unrepaired,
        schedulers::{self, ProbeResult},
    },
    report::sync_log::Busy,
};

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
    pub(crate) stats: SyncStats,
    /// Whether deferred work can be done now, what was adopted must be verified, or the kernel be read anew.
    pub(crate) unfinished: bool,
    /// What the next sync goes on with at once, because this one has taken long enough.
    pub(crate) busy: Option<Busy>,
}

/// What the portions of one sync share.
struct Pass<'a> {
    image: Observed,
    /// Whether the kernel was read as a whole just before.
    full: bool,
    slice: &'a Slice<'a>,
    blocked: Blocked,
    outcome: PlanOutcome,
    removed_foreign: ForeignVirtualServers,
    /// Virtual servers whose change of scheduler is deferred.
    deferred: BTreeSet<ServiceAddress>,
    /// How many more schedulers may be changed.
    scheduler_changes_left: usize,
    /// Virtual servers that must be looked at again.
    again: BTreeSet<ServiceAddress>,
    /// What has changed in the desired state meanwhile.
    changed: Dirty,
    /// Whether a probe of a scheduler failed, so that its virtual server may still be there.
    probe_failed: bool,
}

impl Pass<'_> {
    /// Whether the rest must wait: because it has taken long enough, or because what others rest on is not known.
    fn is_over(&self) -> bool {
        let Self { outcome, slice, .. } = self;
        outcome.unread.is_some()
            || (outcome.has_done_something() || !outcome.left.is_empty()) && slice.is_over()
    }
}

/// How many virtual servers of others are named before they are removed.
const NAMED: usize = 20;

/// Names what no Service made before it is removed.
fn warn_of_foreign(plan: &Plan) {
    for address in plan.foreign.iter().take(NAMED) {
        warn!(
            remedy = "ipvs.excludeCIDRs keeps those of a range, --foreign-virtual-servers=keep all of others",
            "a virtual server that no Service made is removed: {address}"
        );
    }
    match plan.foreign.len().saturating_sub(NAMED) {
        0 => {}
        more => warn!("{more} more virtual servers that no Service made are removed"),
    }
}

/// The virtual servers that must be compared again after a plan. Real servers that just got weight 0 may have no
/// connections. And unless everything was read just before, an edited virtual server may have been missing: then the edit
/// has created it without its real servers.
fn needs_recheck(plan: &Plan, all_read: bool) -> BTreeSet<ServiceAddress> {
    let is_in_doubt = |command: &&Command| match command {
        Command::EditRealServer(_, server) => server.weight == 0,
        Command::EditVirtualServer(_) => !all_read,
        _ => false,
    };
    plan.commands().filter(is_in_doubt).filter_map(Command::address).collect()
}

impl Reconciler {
    /// Compares what is dirty with a fresh image, portion by portion, and carries out their plans until the slice is over.
    pub(super) fn converge(
        &mut self,
        reading: Reading,
        dirty: &Dirty,
        trigger: Trigger,
        slice: &Slice<'_>,
    ) -> SyncResult {
        let Reading { mut image, full, everything, .. } = reading;
        if everything {
            image.virtual_servers.share(self.state.virtual_servers());
        }
        let most = self.portion.min(self.pace.portion());
        let portions = portions(dirty, &self.state, &image, &self.waiting, most);
        let mut pass = Pass {
            image,
            full,
            slice,
            blocked: Blocked::new(self.deferrals_left > 0),
            outcome: PlanOutcome::default(),
            removed_foreign: ForeignVirtualServers::default(),
            deferred: BTreeSet::new(),
            scheduler_changes_left: schedulers::MAX_CHANGES_PER_SYNC,
            again: mem::take(&mut self.again),
            changed: Dirty::default(),
            probe_failed: false,
        };
        slice.begin();
        let (mut carried_out, mut put_off) = (Vec::new(), Vec::new());
        for portion in portions {
            if pass.is_over() {
                put_off.extend(portion.groups);
                pass.outcome.left.extend(portion.keys);
            } else {
                carried_out.extend(portion.groups.iter().copied());
                self.carry_out(portion.keys.into_iter().collect(), trigger, &mut pass);
            }
        }
        // What needs a scheduler that has turned out to be missing: its elements are there by now.
        let changed = mem::take(&mut pass.changed);
        if pass.is_over() {
            pass.outcome.left.merge(changed);
        } else if !changed.is_empty() {
            self.carry_out(changed, trigger, &mut pass);
        }
        self.carry_out_again(&mut pass);
        self.waiting.update(&put_off, &carried_out);
        if full {
            self.unrepaired.mark_adopted();
        }
        let costliest = put_off.last().or(carried_out.last()).copied();
        SyncResult { busy: self.busy(costliest, &pass.outcome), ..self.end(pass) }
    }

    /// Ends a sync: what is left and what failed is dirty for the next one.
    fn end(&mut self, pass: Pass<'_>) -> SyncResult {
        let Pass { image, full, mut outcome, removed_foreign, deferred, probe_failed, .. } = pass;
        self.dirty.merge(outcome.dirty());
        self.dirty.virtual_servers.extend(&deferred);
        // Without an image the next sync reads everything.
        self.image = (!outcome.doubtful && !probe_failed).then_some(image);
        self.learn_from(&outcome);
        // After a failure the retry comes anyway, though later.
        let unfinished = self.can_go_on(&deferred, &outcome)
            || probe_failed && outcome.failures.is_empty()
            || !self.adopted.is_empty();
        self.deferred = deferred.len();
        if self.image.is_none() {
            self.draining.postpone_due(Instant::now());
        }
        self.rerouted.extend(mem::take(&mut outcome.rerouted));
        let stale_flows = self.rerouted.take_stale_flows(self.image.as_ref());
        let repairs = mem::take(&mut outcome.repairs.counts);
        let stats = SyncStats { repairs, ..SyncStats::default() };
        SyncResult { full, outcome, stale_flows, removed_foreign, stats, unfinished, busy: None }
    }

    /// Reads, compares and carries out one portion.
    fn carry_out(&mut self, dirty: Dirty, trigger: Trigger, pass: &mut Pass<'_>) {
        if let Err(error) = self.count_connections(&dirty.virtual_servers, &mut pass.image) {
            pass.outcome.extend(PlanOutcome { left: dirty, ..PlanOutcome::unread(&error) });
            return;
        }
        let mut plan = self.compare_with(&pass.image, &dirty);
        let probe = self.probe_schedulers_of(&plan, &pass.image, &mut pass.changed);
        pass.probe_failed |= probe.doubtful;
        if probe.changed {
            plan = self.compare_with(&pass.image, &dirty);
        }
        let deferred = schedulers::defer_changes(&mut plan, &pass.image, &mut pass.scheduler_changes_left);
        pass.deferred.extend(deferred);
        self.rotate(&mut plan);
        debug!(target: PLAN_LOG, ?trigger, operations = plan.len(), "plan");
        warn_of_foreign(&plan);
        let outcome = self.apply(&plan, pass, false);
        // The kernel would look for a scheduler that it lacks once more in each portion.
        if !outcome.lacking.is_empty() {
            pass.scheduler_changes_left = 0;
        }
        pass.removed_foreign.extend(&removed_foreign(&plan, &outcome));
        // What failed is left out: what was put off must wait for what it depends on. So is what was not reached.
        pass.again.extend(&needs_recheck(&plan, pass.full) - &outcome.dirty().virtual_servers);
        pass.outcome.extend(outcome);
        self.note_draining(dirty.virtual_servers.difference(&pass.again), &pass.image);
        pass.image
            .virtual_servers
            .share(dirty.virtual_servers.iter().filter_map(|address| self.state.virtual_server(address)));
    }

    /// Looks again at the virtual servers that need it, after everything else: what nothing needs any more goes only when all
    /// that is needed is there. A real server that is removed lingers in the kernel for two minutes, and whatever is added
    /// meanwhile is compared with each such one (`ip_vs_trash_get_dest` in net/netfilter/ipvs/ip_vs_ctl.c).
    fn carry_out_again(&mut self, pass: &mut Pass<'_>) {
        let mut again: Vec<_> = mem::take(&mut pass.again).into_iter().collect();
        while !again.is_empty() {
            let some = again.split_off(again.len() - self.first_few(&again, &pass.image));
            let dirty = Dirty { virtual_servers: some.into_iter().collect(), ..Dirty::default() };
            if pass.is_over() {
                self.again.extend(&dirty.virtual_servers);
                pass.outcome.left.merge(dirty);
                continue;
            }
            let _span = trace_span!("again", virtual_servers = dirty.virtual_servers.len()).entered();
            if let Err(error) = self.read_real_servers(&dirty.virtual_servers, &mut pass.image) {
                pass.outcome.extend(PlanOutcome { left: dirty, ..PlanOutcome::unread(&error) });
                continue;
            }
            let mut plan = self.compare_with(&pass.image, &dirty);
            // The changes of schedulers that belong to this sync have been made, or refused.
            schedulers::defer_changes(&mut plan, &pass.image, &mut 0);
            let outcome = self.apply(&plan, pass, true);
            pass.outcome.extend(outcome);
            self.note_draining(dirty.virtual_servers.iter(), &pass.image);
        }
    }

    /// How many of these virtual servers have about as many real servers as a portion.
    fn first_few(&self, virtual_servers: &[ServiceAddress], image: &Observed) -> usize {
        let real_servers =
            |of: &ServiceAddress| image.virtual_servers.get(of).map_or(0, |image| image.real_servers().len());
        let sum = |sum: &mut usize, of: &ServiceAddress| {
            *sum += real_servers(of);
            Some(*sum)
        };
        let few = virtual_servers.iter().rev().scan(0, sum).take_while(|sum| *sum <= self.portion).count();
        few.max(1)
    }

    fn compare_with(&self, image: &Observed, dirty: &Dirty) -> Plan {
        trace_span!("compare").in_scope(|| diff(&self.state, image, dirty, &self.ownership))
    }

    /// Carries out a plan.
    fn apply(&mut self, plan: &Plan, pass: &mut Pass<'_>, again: bool) -> PlanOutcome {
        let nothing = Unrepaired::default();
        // What a repair brings with it is not counted once more.
        let unrepaired = if again { &nothing } else { &self.unrepaired };
        let control = (&mut pass.blocked, &mut self.pace);
        apply(plan, &mut self.kernel, &mut pass.image, control, unrepaired, pass.slice)
    }

    /// Reads the real servers of those virtual servers again of which one leaves: only the kernel knows whether it has
    /// connections.
    fn count_connections(
        &mut self,
        of: &BTreeSet<ServiceAddress>,
        image: &mut Observed,
    ) -> Result<(), ReadError> {
        let leaves = |of: &&ServiceAddress| departing_real_servers(&self.state, image, of).next().is_some();
        let of: Vec<_> = of.iter().filter(leaves).copied().collect();
        self.read_real_servers(&of, image)
    }

    /// Reads the real servers of virtual servers again, and marks those that have been draining for too long.
    fn read_real_servers<'a>(
        &mut self,
        of: impl IntoIterator<Item = &'a ServiceAddress>,
        image: &mut Observed,
    ) -> Result<(), ReadError> {
        let now = Instant::now();
        for address in of {
            image.refresh_real_servers(&mut self.kernel, *address)?;
            for server in self.draining.expired(address, now) {
                image.expire(address, &server);
            }
        }
        Ok(())
    }

    /// Probes the schedulers that a plan asks for. If one turns out to be missing, the desired state changes, and the keys
    /// that change are added to `changed`.
    fn probe_schedulers_of(&mut self, plan: &Plan, image: &Observed, changed: &mut Dirty) -> ProbeResult {
        let default = self.state.options().scheduler;
        let probe = self.schedulers.probe_new(plan, image, default, &mut *self.kernel.ipvs);
        if probe.changed {
            changed.merge(self.state.apply(self.schedulers.to_change()));
        }
        probe
    }

    /// Rotates the real servers that a plan adds, but for those of schedulers that hash.
    fn rotate(&self, plan: &mut Plan) {
        rotate(plan, &self.state.options().node_name, |id| self.is_hashing(id));
    }

    /// Whether the scheduler that a virtual server shall have hashes.
    fn is_hashing(&self, id: VirtualServerId) -> bool {
        let VirtualServerId::Address(address) = id else { return false };
        self.state.virtual_server(&address).is_some_and(|server| server.scheduler.is_hashing())
    }

    /// Records which schedulers the kernel refused, and for how many more syncs new tables wait for their rules.
    fn learn_from(&mut self, outcome: &PlanOutcome) {
        if self.schedulers.record_refused(&outcome.lacking, self.state.options().scheduler) {
            // What failed is tried again, then with the default scheduler.
            self.dirty.merge(self.state.apply(self.schedulers.to_change()));
        }
        if self.missing_tunnels.record_refused(&outcome.lacking_tunnels) {
            self.dirty.merge(self.state.apply(self.missing_tunnels.to_change()));
        }
        let lacks_rules = |failed: &Operation| matches!(failed, Operation::Netfilter(InstallTable(_)));
        let waits = outcome.failures.iter().any(|(failed, _)| lacks_rules(failed));
        if waits {
            self.deferrals_left = self.deferrals_left.saturating_sub(1);
        } else if outcome.left.rules.is_empty() {
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

    /// Records which real servers of these virtual servers drain.
    fn note_draining<'a>(&mut self, compared: impl Iterator<Item = &'a ServiceAddress>, image: &Observed) {
        let now = Instant::now();
        for of in compared {
            // One that still has its weight could not be given weight 0: that is a failure, and no drain.
            let draining = departing_real_servers(&self.state, image, of)
                .filter(|server| of.protocol == Protocol::Tcp && server.config.weight == 0);
            self.draining.update(*of, draining.map(|server| server.config.address), now);
        }
    }

    /// What is left because it takes long. What could not be read, or is in doubt, or where nothing could be done, is tried
    /// again after a pause.
    fn busy(&self, costliest: Option<Group>, outcome: &PlanOutcome) -> Option<Busy> {
        let is_stuck = outcome.unread.is_some() || outcome.doubtful || !outcome.has_done_something();
        if is_stuck || outcome.left.is_empty() {
            return None;
        }
        let of_group = |at: &&ServiceAddress| costliest.is_some_and(|group| group.ip() == at.ip);
        let at = outcome.left.virtual_servers.iter().find(of_group);
        Some(Busy { service: at.and_then(|at| self.state.owner(at)).cloned(), left: outcome.left.len() })
    }
}

/// The foreign virtual servers of a plan but for those that were not removed.
fn removed_foreign(plan: &Plan, outcome: &PlanOutcome) -> ForeignVirtualServers {
    let failed = outcome.failures.iter().filter_map(|(operation, _)| plan.foreign_deleted_by(operation));
    let failed: BTreeSet<_> = failed.collect();
    let is_left = |address: &ServiceAddress| outcome.left.virtual_servers.contains(address);
    plan.foreign.iter().filter(|address| !failed.contains(address) && !is_left(address)).collect()
}

#[cfg(test)]
mod tests;
