//! Schedulers are changed a few at a time.

use std::collections::{BTreeMap, BTreeSet};

use ipvs::{Command, Id, Scheduler, ServiceAddress};
use watcher::{Observed, Plan};

/// How many schedulers one sync changes at most. For each, the kernel waits until no packet can be using
/// the old one (`synchronize_rcu` in `ip_vs_edit_service`, net/netfilter/ipvs/ip_vs_ctl.c): 22 ms on Linux 6.1
/// with two CPUs. Meanwhile this thread waits, and the virtual server takes no new connections. So other
/// news waits for less than a second.
pub(crate) const AT_ONCE: usize = 32;

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
