//! The second half of a sync: compare, and carry out the plan.

use std::{collections::BTreeSet, mem, time::Instant};

use ipvs::{Protocol, ServiceAddress, VirtualServerId};
use netfilter::{Operation::InstallTable, conntrack::StaleFlows};
use service::Touched;
use tracing::{debug, trace_span, warn};
use watcher::{Observed, Operation, Plan, Scope, Whole, departing_real_servers, diff};

use super::{
    MAX_DEFERRALS, Reconciler,
    apply::apply,
    blocked::Blocked,
    diff_key::{DiffKey, needs_recheck},
    outcome::PlanOutcome,
    reading::Snapshot,
    rotation::rotate,
};
use crate::{
    ForeignVirtualServers, PLAN_LOG, SyncStats, Trigger,
    follow::schedulers::{self, ProbeResult},
};

/// A sync that has ended.
#[derive(Debug, Default)]
pub(crate) struct SyncResult {
    /// Whether the whole kernel was checked.
    pub(crate) full: bool,
    pub(crate) outcome: PlanOutcome,
    /// UDP flows that must be deleted from conntrack.
    pub(crate) stale_flows: StaleFlows,
    /// The first operations that repaired what another program had changed, in words.
    pub(crate) repairs: Vec<String>,
    /// The foreign virtual servers that were removed.
    pub(crate) removed_foreign: ForeignVirtualServers,
    pub(crate) stats: SyncStats,
    /// Whether deferred work can be done now, what was adopted must be verified, or the kernel be read anew.
    pub(crate) unfinished: bool,
}

/// What a sync will do.
struct Planned {
    plan: Plan,
    /// Virtual servers whose change of scheduler is deferred.
    deferred: BTreeSet<ServiceAddress>,
    /// The result of probing schedulers.
    probe: ProbeResult,
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

/// The foreign virtual servers of a plan but for those that could not be removed.
fn removed_foreign(plan: &Plan, outcome: &PlanOutcome) -> ForeignVirtualServers {
    let failed = outcome.failures.iter().filter_map(|(operation, _)| plan.foreign_deleted_by(operation));
    let failed: BTreeSet<_> = failed.collect();
    plan.foreign.iter().filter(|address| !failed.contains(address)).collect()
}

impl Reconciler {
    /// Lets the image share with the desired state what both have, where that was compared.
    fn share_image(&mut self, compare_all: bool, compared: &BTreeSet<ServiceAddress>) {
        let Some(Observed { virtual_servers, .. }) = &mut self.image else { return };
        if compare_all {
            virtual_servers.share(self.state.virtual_servers());
        } else {
            virtual_servers.share(compared.iter().filter_map(|address| self.state.virtual_server(address)));
        }
    }

    /// Compares the desired state with a fresh image, and carries out the plan.
    pub(super) fn converge(
        &mut self,
        mut reading: Snapshot,
        trigger: Trigger,
        touched: &mut Touched,
    ) -> SyncResult {
        let mut outcome = self.fill(&mut reading.image, touched);
        if outcome.doubtful {
            // Nothing can be said of the rest: the next sync reads everything.
            self.rerouted.extend(mem::take(&mut outcome.rerouted));
            let unfinished = outcome.failures.is_empty();
            return SyncResult { outcome, unfinished, ..SyncResult::default() };
        }
        let Planned { plan, deferred, probe } = self.plan(&reading, touched);
        debug!(target: PLAN_LOG, ?trigger, operations = plan.len(), "plan");
        warn_of_foreign(&plan);
        let compared = reading.compared(touched);
        let Snapshot { image, full, compare_all, .. } = reading;

        outcome.extend(self.carry_out(image, &plan));
        if probe.doubtful {
            self.image = None;
        }
        let removed_foreign = removed_foreign(&plan, &outcome);
        let repairs = self.unrepaired.split_repairs(&plan, touched, &outcome.failures);
        if full {
            self.unrepaired.mark_adopted();
        }
        self.share_image(compare_all, &compared.virtual_servers);
        // Keys with failed operations are left out: what was put off must wait for what it depends on.
        outcome.extend(self.recheck(&(&needs_recheck(&plan, full) - &self.touched.virtual_servers)));
        self.learn_from(&outcome);
        // After a failure the retry comes anyway, though later.
        let unfinished = self.can_go_on(&deferred, &outcome)
            || probe.doubtful && outcome.failures.is_empty()
            || !self.adopted.is_empty();
        self.deferred = deferred.len();
        self.touched.virtual_servers.extend(deferred);
        self.note_draining(compare_all, &compared.virtual_servers);
        self.rerouted.extend(mem::take(&mut outcome.rerouted));
        let stale_flows = self.rerouted.take_stale_flows(self.image.as_ref());
        let stats = SyncStats { repairs: repairs.counts, ..SyncStats::default() };
        SyncResult { full, outcome, stale_flows, repairs: repairs.first, removed_foreign, stats, unfinished }
    }

    /// Plans this sync.
    fn plan(&mut self, reading: &Snapshot, touched: &mut Touched) -> Planned {
        let mut plan = self.differences(reading, touched);
        let probe = self.probe_schedulers_of(&plan, &reading.image, touched);
        if probe.changed {
            plan = self.differences(reading, touched);
        }
        let deferred = schedulers::defer_changes(&mut plan, &reading.image, schedulers::MAX_CHANGES_PER_SYNC);
        self.rotate(&mut plan);
        Planned { plan, deferred, probe }
    }

    /// Probes the schedulers that a plan asks for. If one turns out to be missing, the desired state changes, and the keys
    /// that change are added to `touched`.
    pub(super) fn probe_schedulers_of(
        &mut self,
        plan: &Plan,
        image: &Observed,
        touched: &mut Touched,
    ) -> ProbeResult {
        let default = self.state.options().scheduler;
        let probe = self.schedulers.probe_new(plan, image, default, &mut *self.kernel.ipvs);
        if probe.changed {
            touched.merge(self.state.apply(self.schedulers.to_change()));
        }
        probe
    }

    /// Rotates the real servers that a plan adds, but for those of schedulers that hash.
    pub(super) fn rotate(&self, plan: &mut Plan) {
        rotate(plan, &self.state.options().node_name, |id| self.is_hashing(id));
    }

    /// Whether the scheduler that a virtual server shall have hashes.
    fn is_hashing(&self, id: VirtualServerId) -> bool {
        let VirtualServerId::Address(address) = id else { return false };
        self.state.virtual_server(&address).is_some_and(|server| server.scheduler.is_hashing())
    }

    fn differences(&self, reading: &Snapshot, touched: &Touched) -> Plan {
        let compared = reading.compared(touched);
        let scope =
            if reading.compare_all { Scope::All } else { Scope::Touched(&compared, reading.drift.whole) };
        trace_span!("compare").in_scope(|| diff(&self.state, &reading.image, scope, &self.ownership))
    }

    /// Carries out a plan. The keys of operations that failed are touched, so that the next sync compares
    /// them again.
    fn carry_out(&mut self, mut image: Observed, plan: &Plan) -> PlanOutcome {
        let outcome = apply(plan, &mut self.kernel, &mut image, Blocked::new(self.deferrals_left > 0));
        // Without an image the next sync reads everything.
        self.image = (!outcome.doubtful).then_some(image);
        let failed = outcome.failures.iter().filter_map(|(operation, _)| DiffKey::from_operation(operation));
        failed.for_each(|key| key.add_to(&mut self.touched));
        outcome
    }

    /// Reads the real servers of these virtual servers, and compares again.
    fn recheck(&mut self, at: &BTreeSet<ServiceAddress>) -> PlanOutcome {
        if at.is_empty() {
            return PlanOutcome::default();
        }
        let Some(mut image) = self.image.take() else { return PlanOutcome::default() };
        let _span = trace_span!("look-again", virtual_servers = at.len()).entered();
        for address in at {
            if let Err(error) = image.refresh_real_servers(&mut self.kernel, *address) {
                return PlanOutcome::unread(&error);
            }
        }
        let touched = Touched { virtual_servers: at.clone(), ..Touched::default() };
        let mut plan = diff(&self.state, &image, Scope::Touched(&touched, Whole::NONE), &self.ownership);
        // The changes of schedulers that belong to this sync have been made, or refused.
        schedulers::defer_changes(&mut plan, &image, 0);
        self.carry_out(image, &plan)
    }

    /// Records which schedulers the kernel refused, and for how many more syncs new tables wait for their rules.
    fn learn_from(&mut self, outcome: &PlanOutcome) {
        if self.schedulers.record_refused(&outcome.lacking, self.state.options().scheduler) {
            // What failed is tried again, then with the default scheduler.
            self.touched.merge(self.state.apply(self.schedulers.to_change()));
        }
        if self.missing_tunnels.record_refused(&outcome.lacking_tunnels) {
            self.touched.merge(self.state.apply(self.missing_tunnels.to_change()));
        }
        let lacks_rules = |failed: &Operation| matches!(failed, Operation::Netfilter(InstallTable(_)));
        let waits = outcome.failures.iter().any(|(failed, _)| lacks_rules(failed));
        self.deferrals_left = if waits { self.deferrals_left.saturating_sub(1) } else { MAX_DEFERRALS };
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

    /// Records which real servers drain: of all virtual servers if everything was compared, else of the compared ones.
    fn note_draining(&mut self, compare_all: bool, compared: &BTreeSet<ServiceAddress>) {
        let now = Instant::now();
        let Some(image) = &self.image else { return self.draining.postpone_due(now) };
        let every = || image.virtual_servers.keys().copied().chain(self.draining.virtual_servers());
        let seen: Vec<_> = if compare_all { every().collect() } else { compared.iter().copied().collect() };
        for of in seen {
            // One that still has its weight could not be given weight 0: that is a failure, and no drain.
            let draining = departing_real_servers(&self.state, image, &of)
                .filter(|server| of.protocol == Protocol::Tcp && server.config.weight == 0);
            self.draining.update(of, draining.map(|server| server.config.address), now);
        }
    }
}

#[cfg(test)]
mod tests;
