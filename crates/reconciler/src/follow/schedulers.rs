//! Schedulers: probed before they are used, and changed a few at a time.

use std::collections::{BTreeMap, BTreeSet};

use ipvs::{Command, Ipvs, PROBE_ADDRESS, Scheduler, SchedulerSupport, ServiceAddress, probe_scheduler};
use netlink::Errno;
use service::{Absence, Change, one_line};
use tracing::warn;
use watcher::{Observed, Plan};

/// How many schedulers one sync changes at most, so that other changes wait for less than a second. For each,
/// the kernel waits until no packet can be using the old one (`synchronize_rcu` in `ip_vs_edit_service`,
/// net/netfilter/ipvs/ip_vs_ctl.c): 22 ms on Linux 6.1 with two CPUs. Meanwhile this thread waits, and the
/// virtual server takes no new connections.
pub(crate) const MAX_CHANGES_PER_SYNC: usize = 32;

/// The schedulers that Services ask for by annotation, as far as they were probed.
#[derive(Default)]
pub(crate) struct SchedulerProbes {
    available: BTreeSet<Scheduler>,
    missing: BTreeMap<Scheduler, Absence>,
}

/// The result of probing schedulers.
#[derive(Clone, Copy, Default)]
pub(crate) struct ProbeResult {
    /// Whether a scheduler turned out to be unusable.
    pub(crate) changed: bool,
    /// Whether a probe failed, so that its virtual server may still be there.
    pub(crate) doubtful: bool,
}

impl SchedulerProbes {
    /// The input of the desired state that says which schedulers are unusable.
    pub(crate) fn to_change(&self) -> Change {
        Change::MissingSchedulers(self.missing.clone())
    }

    /// Probes the schedulers that a plan asks for and that were not probed before: a Service must not be
    /// without virtual servers because of a scheduler. The `default` one was probed at the start.
    pub(crate) fn probe_new(
        &mut self,
        plan: &Plan,
        image: &Observed,
        default: Scheduler,
        kernel: &mut dyn Ipvs,
    ) -> ProbeResult {
        let asked: BTreeSet<_> =
            plan.commands().filter_map(assigned_scheduler).filter(|it| *it != default).collect();
        let mut result = ProbeResult::default();
        for scheduler in asked {
            // A module that must not be loaded on demand may have been unloaded.
            let may_load = kernel.may_load(scheduler);
            if self.missing.contains_key(&scheduler) || may_load && self.available.contains(&scheduler) {
                continue;
            }
            let found = probe_scheduler(kernel, scheduler, used_schedulers(image));
            self.record(scheduler, found, default, &mut result);
        }
        result
    }

    fn record(
        &mut self,
        scheduler: Scheduler,
        found: Result<SchedulerSupport, ipvs::Error>,
        default: Scheduler,
        result: &mut ProbeResult,
    ) {
        match found {
            Ok(SchedulerSupport::Supported) => {
                self.available.insert(scheduler);
            }
            Ok(SchedulerSupport::NotLoaded) => {
                warn!(
                    "{scheduler} is not loaded, and loading it on demand can hang IPVS: Services that ask for it get \
                     {default}. Load the module ip_vs_{scheduler} at boot; where it is loaded, kube-ipvs resync tries again"
                );
                result.changed |= self.mark_unusable(scheduler, Absence::NotLoaded);
            }
            Ok(SchedulerSupport::NotProbed) => {
                warn!(
                    "{scheduler} is not tried before it is used: {PROBE_ADDRESS}, where that is done, is taken"
                );
            }
            Ok(SchedulerSupport::Refused(refusal)) if refusal.errno() == Errno::ENOENT as i32 => {
                warn!(
                    "{}: Services that ask for {scheduler} get {default}; kube-ipvs resync tries again",
                    refusal.cause()
                );
                result.changed |= self.mark_unusable(scheduler, Absence::Lacking);
            }
            // If the cause lasts, the virtual servers themselves fail too.
            Ok(SchedulerSupport::Refused(refusal)) => {
                warn!("{scheduler} could not be tried: {}", refusal.cause());
                result.doubtful = true;
            }
            Err(error) => {
                warn!("{scheduler} could not be tried: {}", one_line(&error));
                result.doubtful = true;
            }
        }
    }

    /// Records which schedulers the kernel refused in a plan, and returns whether any of them was thought
    /// usable. It had them before, or they could not be probed.
    pub(crate) fn record_refused(&mut self, refused: &BTreeSet<Scheduler>, default: Scheduler) -> bool {
        let others = refused.iter().filter(|it| **it != default);
        others.fold(false, |changed, it| changed | self.mark_unusable(*it, Absence::Lacking))
    }

    /// Marks a scheduler as unusable, and returns whether it was not marked before.
    fn mark_unusable(&mut self, scheduler: Scheduler, why: Absence) -> bool {
        self.available.remove(&scheduler);
        self.missing.insert(scheduler, why).is_none()
    }
}

/// The scheduler that a command gives to a virtual server.
pub(crate) fn assigned_scheduler(command: &Command) -> Option<Scheduler> {
    match command {
        Command::AddVirtualServer(server) | Command::EditVirtualServer(server) => Some(server.scheduler),
        _ => None,
    }
}

/// Leaves at most `left` changes of schedulers in the plan, subtracts them from `left`, and returns the
/// virtual servers whose change is deferred: they keep their scheduler for now. Nothing else is deferred.
///
/// A scheduler that no virtual server has yet is given to a single one first. The kernel may lack the module,
/// and would request it again for each virtual server.
pub(crate) fn defer_changes(plan: &mut Plan, image: &Observed, left: &mut usize) -> BTreeSet<ServiceAddress> {
    let mut deferred = BTreeSet::new();
    let most = *left;
    let mut left_by_scheduler = BTreeMap::new();
    plan.retain_commands(|command| {
        let Some((address, scheduler)) = scheduler_change(command, image) else { return true };
        let proven = || if is_used(scheduler, image) { most } else { 1 };
        let left_of_it = left_by_scheduler.entry(scheduler).or_insert_with(proven);
        let goes = *left > 0 && *left_of_it > 0;
        if goes {
            *left -= 1;
            *left_of_it -= 1;
        } else {
            deferred.insert(address);
        }
        goes
    });
    deferred
}

/// The virtual server whose scheduler a command changes, and the new scheduler.
pub(crate) fn scheduler_change(command: &Command, image: &Observed) -> Option<(ServiceAddress, Scheduler)> {
    let Command::EditVirtualServer(wanted) = command else { return None };
    let of = command.address()?;
    let now = image.virtual_servers.get(&of)?.config().scheduler;
    (now != wanted.scheduler).then_some((of, wanted.scheduler))
}

fn is_used(scheduler: Scheduler, image: &Observed) -> bool {
    used_schedulers(image).any(|used| used == scheduler)
}

/// The scheduler of each virtual server.
pub(crate) fn used_schedulers(image: &Observed) -> impl Iterator<Item = Scheduler> {
    image.virtual_servers.values().map(|server| server.config().scheduler)
}

#[cfg(test)]
mod tests {
    use ipvs::{Protocol, RealServer, VirtualServer};
    use proptest::{collection::vec, prelude::*, sample::select};
    use watcher::{Operation, RealServerImages, VirtualServerImage};

    use super::*;

    fn server(port: u16, scheduler: Scheduler) -> VirtualServer {
        let at = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 1].into(), port };
        VirtualServer::new(at, scheduler)
    }

    fn any_scheduler() -> impl Strategy<Value = Scheduler> {
        select(vec![Scheduler::RR, Scheduler::WRR, Scheduler::WLC])
    }

    /// Virtual servers of these schedulers, by port.
    fn image(schedulers: &[Scheduler]) -> Observed {
        let servers = (0..).zip(schedulers).map(|(port, scheduler)| server(port, *scheduler));
        let image = |config| VirtualServerImage::new(config, RealServerImages::default());
        let virtual_servers = servers.filter_map(|config| match config.id {
            ipvs::VirtualServerId::Address(at) => Some((at, image(config))),
            ipvs::VirtualServerId::Mark { .. } => None,
        });
        Observed { virtual_servers: virtual_servers.collect(), ..Observed::default() }
    }

    /// An edit of each virtual server, followed by a real server.
    fn edits(schedulers: &[Scheduler]) -> Plan {
        let commands = (0..).zip(schedulers).flat_map(|(port, scheduler)| {
            let edited = server(port, *scheduler);
            let real = RealServer::masquerade([10, 244, 0, 1].into(), 8080);
            let id = edited.id;
            [Command::EditVirtualServer(edited), Command::AddRealServer(id, real)]
        });
        commands.map(Operation::from).collect()
    }

    proptest! {
        #[test]
        fn changes_of_schedulers_are_limited_per_sync_and_nothing_else_is_deferred(
            now_and_wanted in vec((any_scheduler(), any_scheduler()), 0..12),
            most in 0..6usize,
        ) {
            let (now, wanted): (Vec<_>, Vec<_>) = now_and_wanted.into_iter().unzip();
            let (image, whole) = (image(&now), edits(&wanted));
            let mut plan = whole.clone();
            let waiting = defer_changes(&mut plan, &image, &mut most.clone());

            let changed: Vec<_> = plan.commands().filter_map(|command| scheduler_change(command, &image)).collect();
            prop_assert!(changed.len() <= most);
            for new in changed.iter().map(|(_, to)| *to).filter(|to| !now.contains(to)) {
                prop_assert_eq!(changed.iter().filter(|(_, to)| *to == new).count(), 1);
            }
            let is_held_back = |command: &Command| {
                scheduler_change(command, &image).is_some_and(|(of, _)| waiting.contains(&of))
            };
            let rest: Vec<_> = whole.commands().filter(|command| !is_held_back(command)).collect();
            prop_assert_eq!(plan.commands().collect::<Vec<_>>(), rest);
        }
    }
}
