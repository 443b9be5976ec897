//! Schedulers are tried before they are used, and changed a few at a time.

use std::collections::{BTreeMap, BTreeSet};

use ipvs::{Command, Id, Ipvs, PROBED, Scheduler, ServiceAddress, try_scheduler};
use netlink::Errno;
use service::{Absence, Change};
use tracing::warn;
use watcher::{Observed, Plan, one_line};

/// How many schedulers one sync changes at most. For each, the kernel waits until no packet can be using
/// the old one (`synchronize_rcu` in `ip_vs_edit_service`, net/netfilter/ipvs/ip_vs_ctl.c): 22 ms on Linux 6.1
/// with two CPUs. Meanwhile this thread waits, and the virtual server takes no new connections. So other
/// news waits for less than a second.
pub(crate) const AT_ONCE: usize = 32;

/// What is known of the schedulers that Services ask for themselves.
#[derive(Default)]
pub(crate) struct Known {
    there: BTreeSet<Scheduler>,
    missing: BTreeMap<Scheduler, Absence>,
}

/// What came of looking for schedulers.
#[derive(Clone, Copy, Default)]
pub(crate) struct Look {
    /// One of them cannot be used, of which that was not known.
    pub(crate) news: bool,
    /// An attempt went wrong: its virtual server may be there still.
    pub(crate) doubtful: bool,
}

impl Known {
    /// Which of them cannot be used, as the desired state is told.
    pub(crate) fn news(&self) -> Change {
        Change::MissingSchedulers(self.missing.clone())
    }

    /// Tries those that a plan asks for and of which nothing is known, each once: a Service must not be without virtual
    /// servers because of a scheduler. The `usual` one was tried at the start.
    pub(crate) fn look_for_those_of(
        &mut self,
        plan: &Plan,
        image: &Observed,
        usual: Scheduler,
        kernel: &mut dyn Ipvs,
    ) -> Look {
        let asked: BTreeSet<_> = plan.commands().filter_map(scheduler).filter(|it| *it != usual).collect();
        let mut look = Look::default();
        for scheduler in asked {
            // Somebody may have unloaded what must not be loaded on demand.
            let may_load = kernel.may_load(scheduler);
            if self.missing.contains_key(&scheduler) || may_load && self.there.contains(&scheduler) {
                continue;
            }
            if in_use(scheduler, image) {
                self.there.insert(scheduler);
            } else if !may_load {
                warn!(
                    "{scheduler} is not loaded, and to load it on demand can hang IPVS: Services that ask for it get \
                     {usual}. Load the module ip_vs_{scheduler} at boot; where it is loaded, kube-ipvs resync tries again"
                );
                look.news |= self.cannot_be_used(scheduler, Absence::NotLoaded);
            } else if image.virtual_servers.contains_key(&PROBED) {
                warn!("{scheduler} is not tried before it is used: {PROBED}, where that is done, is taken");
            } else {
                self.try_it(scheduler, usual, kernel, &mut look);
            }
        }
        look
    }

    fn try_it(&mut self, scheduler: Scheduler, usual: Scheduler, kernel: &mut dyn Ipvs, look: &mut Look) {
        match try_scheduler(kernel, scheduler) {
            Ok(None) => {
                self.there.insert(scheduler);
            }
            Ok(Some(refusal)) if refusal.errno == Errno::ENOENT => {
                warn!(
                    "{}: Services that ask for {scheduler} get {usual}; kube-ipvs resync tries again",
                    refusal.cause()
                );
                look.news |= self.cannot_be_used(scheduler, Absence::Lacking);
            }
            // Whatever this is about, the virtual servers themselves will show it.
            Ok(Some(refusal)) => {
                warn!("{scheduler} could not be tried: {}", refusal.cause());
                look.doubtful = true;
            }
            Err(error) => {
                warn!("{scheduler} could not be tried: {}", one_line(&error));
                look.doubtful = true;
            }
        }
    }

    /// Takes in which schedulers the kernel refused in a plan: it had them once, or they could not be tried. Whether
    /// that is news.
    pub(crate) fn refused(&mut self, refused: &BTreeSet<Scheduler>, usual: Scheduler) -> bool {
        let others = refused.iter().filter(|it| **it != usual);
        others.fold(false, |news, it| news | self.cannot_be_used(*it, Absence::Lacking))
    }

    /// Whether that was not known.
    fn cannot_be_used(&mut self, scheduler: Scheduler, why: Absence) -> bool {
        self.there.remove(&scheduler);
        self.missing.insert(scheduler, why).is_none()
    }
}

/// The scheduler that a virtual server gets.
pub(crate) fn scheduler(command: &Command) -> Option<Scheduler> {
    match command {
        Command::AddVirtualServer(server) | Command::EditVirtualServer(server) => Some(server.scheduler),
        _ => None,
    }
}

/// Leaves at most `most` changes of schedulers in the plan, and returns the virtual servers whose change has
/// to wait: they keep their scheduler for now. Nothing else is held back.
///
/// Of a scheduler that no virtual server has yet one change goes first. The kernel may lack the module, and
/// it would ask for it again at every attempt.
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

/// The virtual server whose scheduler a command changes, and to which one.
pub(crate) fn change(command: &Command, image: &Observed) -> Option<(ServiceAddress, Scheduler)> {
    let Command::EditVirtualServer(wanted) = command else { return None };
    let Id::Address(of) = wanted.id else { return None };
    let now = image.virtual_servers.get(&of)?.config.scheduler;
    (now != wanted.scheduler).then_some((of, wanted.scheduler))
}

fn in_use(scheduler: Scheduler, image: &Observed) -> bool {
    image.virtual_servers.values().any(|server| server.config.scheduler == scheduler)
}
