//! Schedulers are tried before they are used, and changed a few at a time.

use std::collections::{BTreeMap, BTreeSet};

use ipvs::{Command, Ipvs, PROBE_ADDRESS, Scheduler, SchedulerSupport, ServiceAddress, probe_scheduler};
use netlink::Errno;
use service::{Absence, Change, one_line};
use tracing::warn;
use watcher::{Observed, Plan};

/// How many schedulers one sync changes at most, so that other news waits for less than a second. For each,
/// the kernel waits until no packet can be using the old one (`synchronize_rcu` in `ip_vs_edit_service`,
/// net/netfilter/ipvs/ip_vs_ctl.c): 22 ms on Linux 6.1 with two CPUs. Meanwhile this thread waits, and the
/// virtual server takes no new connections.
pub(crate) const AT_ONCE: usize = 32;

/// The schedulers that Services ask for themselves, as far as they were tried.
#[derive(Default)]
pub(crate) struct SchedulerProbes {
    there: BTreeSet<Scheduler>,
    missing: BTreeMap<Scheduler, Absence>,
}

/// The result of looking for schedulers.
#[derive(Clone, Copy, Default)]
pub(crate) struct ProbeResult {
    /// Whether one of them cannot be used and that was not known before.
    pub(crate) news: bool,
    /// Whether an attempt went wrong, so that its virtual server may still be there.
    pub(crate) doubtful: bool,
}

impl SchedulerProbes {
    /// The change that tells the desired state which schedulers cannot be used.
    pub(crate) fn news(&self) -> Change {
        Change::MissingSchedulers(self.missing.clone())
    }

    /// Tries the schedulers that a plan asks for and of which nothing is known, each once: a Service must not
    /// be without virtual servers because of a scheduler. The `usual` one was tried at the start.
    pub(crate) fn look_for_those_of(
        &mut self,
        plan: &Plan,
        image: &Observed,
        usual: Scheduler,
        kernel: &mut dyn Ipvs,
    ) -> ProbeResult {
        let asked: BTreeSet<_> = plan.commands().filter_map(scheduler).filter(|it| *it != usual).collect();
        let mut look = ProbeResult::default();
        for scheduler in asked {
            // Somebody may have unloaded what must not be loaded on demand.
            let may_load = kernel.may_load(scheduler);
            if self.missing.contains_key(&scheduler) || may_load && self.there.contains(&scheduler) {
                continue;
            }
            let found = probe_scheduler(kernel, scheduler, all_in_use(image));
            self.take(scheduler, found, usual, &mut look);
        }
        look
    }

    fn take(
        &mut self,
        scheduler: Scheduler,
        found: Result<SchedulerSupport, ipvs::Error>,
        usual: Scheduler,
        look: &mut ProbeResult,
    ) {
        match found {
            Ok(SchedulerSupport::Supported) => {
                self.there.insert(scheduler);
            }
            Ok(SchedulerSupport::NotLoaded) => {
                warn!(
                    "{scheduler} is not loaded, and to load it on demand can hang IPVS: Services that ask for it get \
                     {usual}. Load the module ip_vs_{scheduler} at boot; where it is loaded, kube-ipvs resync tries again"
                );
                look.news |= self.cannot_be_used(scheduler, Absence::NotLoaded);
            }
            Ok(SchedulerSupport::NotProbed) => {
                warn!(
                    "{scheduler} is not tried before it is used: {PROBE_ADDRESS}, where that is done, is taken"
                );
            }
            Ok(SchedulerSupport::Refused(refusal)) if refusal.errno() == Errno::ENOENT as i32 => {
                warn!(
                    "{}: Services that ask for {scheduler} get {usual}; kube-ipvs resync tries again",
                    refusal.cause()
                );
                look.news |= self.cannot_be_used(scheduler, Absence::Lacking);
            }
            // Whatever the cause is, the virtual servers themselves will show it.
            Ok(SchedulerSupport::Refused(refusal)) => {
                warn!("{scheduler} could not be tried: {}", refusal.cause());
                look.doubtful = true;
            }
            Err(error) => {
                warn!("{scheduler} could not be tried: {}", one_line(&error));
                look.doubtful = true;
            }
        }
    }

    /// Takes in which schedulers the kernel refused in a plan, and says whether that is news. It had them
    /// once, or they could not be tried.
    pub(crate) fn refused(&mut self, refused: &BTreeSet<Scheduler>, usual: Scheduler) -> bool {
        let others = refused.iter().filter(|it| **it != usual);
        others.fold(false, |news, it| news | self.cannot_be_used(*it, Absence::Lacking))
    }

    /// Notes that a scheduler cannot be used, and says whether that is news.
    fn cannot_be_used(&mut self, scheduler: Scheduler, why: Absence) -> bool {
        self.there.remove(&scheduler);
        self.missing.insert(scheduler, why).is_none()
    }
}

/// The scheduler that a command gives to a virtual server.
pub(crate) fn scheduler(command: &Command) -> Option<Scheduler> {
    match command {
        Command::AddVirtualServer(server) | Command::EditVirtualServer(server) => Some(server.scheduler),
        _ => None,
    }
}

/// Leaves at most `most` changes of schedulers in the plan, and returns the virtual servers whose change has
/// to wait: they keep their scheduler for now. Nothing else is held back.
///
/// A scheduler that no virtual server has yet is given to one of them first. The kernel may lack the module,
/// and would ask for it again at every attempt.
pub(crate) fn put_off(plan: &mut Plan, image: &Observed, most: usize) -> BTreeSet<ServiceAddress> {
    let mut waiting = BTreeSet::new();
    let mut left = most;
    let mut left_of = BTreeMap::new();
    plan.retain_commands(|command| {
        let Some((of, scheduler)) = change(command, image) else { return true };
        let proven = || if in_use(scheduler, image) { most } else { 1 };
        let left_of_it = left_of.entry(scheduler).or_insert_with(proven);
        let goes = left > 0 && *left_of_it > 0;
        if goes {
            left -= 1;
            *left_of_it -= 1;
        } else {
            waiting.insert(of);
        }
        goes
    });
    waiting
}

/// The virtual server whose scheduler a command changes, and the new scheduler.
pub(crate) fn change(command: &Command, image: &Observed) -> Option<(ServiceAddress, Scheduler)> {
    let Command::EditVirtualServer(wanted) = command else { return None };
    let of = command.address()?;
    let now = image.virtual_servers.get(&of)?.config.scheduler;
    (now != wanted.scheduler).then_some((of, wanted.scheduler))
}

fn in_use(scheduler: Scheduler, image: &Observed) -> bool {
    all_in_use(image).any(|used| used == scheduler)
}

/// The scheduler of each virtual server.
pub(crate) fn all_in_use(image: &Observed) -> impl Iterator<Item = Scheduler> {
    image.virtual_servers.values().map(|server| server.config.scheduler)
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
        let image = |config| VirtualServerImage { config, real_servers: RealServerImages::default() };
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
        fn at_most_so_many_schedulers_change_one_of_a_new_one_and_nothing_else_is_held_back(
            now_and_wanted in vec((any_scheduler(), any_scheduler()), 0..12),
            most in 0..6usize,
        ) {
            let (now, wanted): (Vec<_>, Vec<_>) = now_and_wanted.into_iter().unzip();
            let (image, whole) = (image(&now), edits(&wanted));
            let mut plan = whole.clone();
            let waiting = put_off(&mut plan, &image, most);

            let changed: Vec<_> = plan.commands().filter_map(|command| change(command, &image)).collect();
            prop_assert!(changed.len() <= most);
            for new in changed.iter().map(|(_, to)| *to).filter(|to| !now.contains(to)) {
                prop_assert_eq!(changed.iter().filter(|(_, to)| *to == new).count(), 1);
            }
            let is_held_back = |command: &Command| {
                change(command, &image).is_some_and(|(of, _)| waiting.contains(&of))
            };
            let rest: Vec<_> = whole.commands().filter(|command| !is_held_back(command)).collect();
            prop_assert_eq!(plan.commands().collect::<Vec<_>>(), rest);
        }
    }
}
