//! One sync: read what must be read, compare, carry out.

mod apply;
mod bisect;
mod blocked;
mod converge;
mod deep_verify;
mod diff_key;
#[cfg(test)]
mod faults;
mod outcome;
mod reading;
mod rotation;

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use dummy_interface::Changed;
use ipvs::{Scheduler, SchedulerSupport, probe_scheduler};
use service::{Change, State, Touched};
use tracing::debug_span;
use watcher::{Kernel, Observed, Ownership, Plan, ReadError, Scope, diff};

pub(crate) use self::{converge::SyncResult, diff_key::DiffKey, outcome::PlanOutcome};

use self::{deep_verify::DeepVerify, reading::Reread};
use crate::{
    Trigger,
    follow::{
        draining::Draining, lost_addresses::LostAddresses, repairs::Unrepaired, schedulers,
        stale_flows::Rerouted,
    },
};

/// The desired state, an image of the kernel, and what is known of the difference.
pub(crate) struct Reconciler {
    state: State,
    kernel: Kernel,
    ours: Ownership,
    /// The kernel as last seen; `None` before the first read and after a doubt.
    image: Option<Observed>,
    /// Which virtual servers the next look at everything reads to the last detail.
    sample: DeepVerify,
    /// The keys that changed since the last sync, and those that it left undone.
    touched: Touched,
    /// Where the image may be wrong since the last sync.
    reread: Reread,
    draining: Draining,
    lost_addresses: LostAddresses,
    schedulers: schedulers::SchedulerProbes,
    /// How many virtual servers keep their scheduler for now.
    postponed: usize,
    /// Changes of others that are not undone yet.
    unrepaired: Unrepaired,
    /// What makes UDP flows stale that conntrack was not told of yet.
    rerouted: Rerouted,
    /// For how many more failed syncs a new table goes without its rules, until all is there that serves what
    /// it takes from others. It begins anew when no table goes without.
    patience: u32,
}

/// After this many failed syncs, stop holding back a new table's rules: waiting does not help, and the rest
/// of the family must not go without them.
const PATIENCE: u32 = 2;

/// How long the virtual servers of NodePorts stay at an address that the node has lost. Without its virtual server
/// a connection is reset, but TCP bears a gap: when a network manager sets an interface up anew, or a lease is lost
/// and regained, the address is back within seconds. Meanwhile nothing from outside is led to them; but what this node
/// itself sends there meets them, also where another node has the address by now (`ip_vs_in_hook` in
/// net/netfilter/ipvs/ip_vs_core.c asks in output for the destination only).
const GRACE: Duration = Duration::from_secs(30);

impl Reconciler {
    pub(crate) fn new(state: State, kernel: Kernel, ours: Ownership, draining: Draining) -> Self {
        Self {
            state,
            kernel,
            ours,
            image: None,
            sample: DeepVerify::default(),
            touched: Touched::default(),
            reread: Reread::default(),
            draining,
            lost_addresses: LostAddresses::new(GRACE),
            schedulers: schedulers::SchedulerProbes::default(),
            postponed: 0,
            unrepaired: Unrepaired::default(),
            rerouted: Rerouted::default(),
            patience: PATIENCE,
        }
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    pub(crate) fn ours(&self) -> &Ownership {
        &self.ours
    }

    pub(crate) fn draining(&self) -> &Draining {
        &self.draining
    }

    /// What is to be looked at again by itself, and when.
    pub(crate) fn next_look(&self) -> Option<(Instant, Trigger)> {
        let drain = self.draining.next().map(|due| (due, Trigger::Drain));
        let lost_address = self.lost_addresses.next().map(|due| (due, Trigger::NodeAddresses));
        drain.into_iter().chain(lost_address).min_by_key(|(due, _)| *due)
    }

    /// How many virtual servers wait for their new scheduler.
    pub(crate) fn scheduler_changes(&self) -> usize {
        self.postponed
    }

    /// Whether something waits for the next sync; before the first one, everything does.
    pub(crate) fn is_behind(&self) -> bool {
        self.state.synced() && !self.unrepaired.has_adopted() || !self.touched.is_empty()
    }

    /// Takes in news, and says whether something may have to be different now.
    pub(crate) fn take(&mut self, change: Change) -> bool {
        let touched = self.state.apply(change);
        let any = !touched.is_empty();
        // Before the lists are complete there is no sync, and the first one compares everything.
        if self.state.synced() {
            self.touched.merge(touched);
        }
        any
    }

    /// Takes in what the kernel tells of links and addresses, and returns the reason to sync, if there is
    /// one: something that differs from the image, since the kernel tells of our own changes too. Without an
    /// image everything is about to be read anyway.
    pub(crate) fn hear(&mut self, changed: &Changed) -> Option<Trigger> {
        let image = self.image.as_ref()?;
        let differs = |(vip, bound): (&IpAddr, &bool)| image.dummy_interface.bound.contains(vip) != *bound;
        self.reread.node_addresses |= changed.node_addresses;
        if changed.everything || changed.vips.iter().any(differs) {
            self.reread.whole.dummy_interface = true;
            Some(Trigger::KernelEvent)
        } else {
            changed.node_addresses.then_some(Trigger::NodeAddresses)
        }
    }

    /// Takes in that somebody else has changed our tables, which is a reason to sync.
    pub(crate) fn hear_of_tables(&mut self) -> Option<Trigger> {
        self.image.as_ref()?;
        self.reread.whole.tables = true;
        Some(Trigger::TablesChanged)
    }

    /// Reads everything and returns what differs, without changing anything in the kernel. A sync may undo the
    /// differences in several steps: a few schedulers at a time, a real server that drains first.
    pub(crate) fn compare(&mut self) -> Result<Plan, ReadError> {
        let mut observed = Observed::read(&mut self.kernel)?;
        // The kernel tells of changed addresses as well, and a sync follows.
        let touched = self.hear_node_addresses(&observed);
        self.touched.merge(touched);
        for (of, server) in self.draining.expired(Instant::now()) {
            observed.expire(&of, &server);
        }
        Ok(diff(&self.state, &observed, Scope::All, &self.ours))
    }

    /// Finds out whether the kernel has a scheduler. What an attempt that goes wrong leaves behind, the next period
    /// removes.
    pub(crate) fn probe_scheduler(&mut self, scheduler: Scheduler) -> Result<SchedulerSupport, ipvs::Error> {
        let in_use = self.image.iter().flat_map(schedulers::all_in_use);
        probe_scheduler(&mut *self.kernel.ipvs, scheduler, in_use)
    }

    /// Reads what must be read, compares, and carries out the plan.
    pub(crate) fn sync(&mut self, trigger: Trigger) -> SyncResult {
        let begin = Instant::now();
        let mut touched = std::mem::take(&mut self.touched);
        let reread = std::mem::take(&mut self.reread);
        if trigger == Trigger::Forced {
            // Whoever asks may have loaded a module.
            self.schedulers = schedulers::SchedulerProbes::default();
            touched.merge(self.state.apply(self.schedulers.news()));
        }
        if self.lost_addresses.expire(begin) {
            touched.merge(self.state.apply(self.lost_addresses.news()));
        }
        // Whatever goes wrong from here on, without an image the next sync reads everything.
        let image = self.image.take().filter(|_| !trigger.reads_everything());
        let looked_at: Vec<_> = match &image {
            Some(_) if trigger != Trigger::Period => self.draining.due(begin).collect(),
            _ => self.draining.virtual_servers().collect(),
        };
        touched.virtual_servers.extend(looked_at);
        let read = debug_span!("read").in_scope(|| self.read(image, trigger, reread, &mut touched));
        let mut synced = match read {
            Ok(mut reading) => {
                for (of, server) in self.draining.expired(begin) {
                    reading.image.expire(&of, &server);
                }
                self.converge(reading, trigger, &mut touched)
            }
            Err(error) => {
                self.draining.unseen(Instant::now());
                SyncResult { outcome: PlanOutcome::unread(&error), ..SyncResult::default() }
            }
        };
        let cut_off = synced.outcome.cut_off.iter().map(|(_, connections)| connections).sum();
        synced.stats.failures = std::mem::take(&mut synced.outcome.failure_counts);
        synced.stats.drains = self.draining.stats(cut_off);
        // The keys that could not be compared are still to be compared.
        if synced.outcome.unread.is_some() {
            self.touched.merge(touched);
        }
        synced
    }
}
