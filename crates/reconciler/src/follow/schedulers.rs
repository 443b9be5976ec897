//! Schedulers: probed before they are used, changed a few at a time, and given real servers in an order of each node's
//! own, unless they hash.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write},
};

use ipvs::{
    Command, Ipvs, PROBE_ADDRESS, Scheduler, SchedulerSupport, ServiceAddress, VirtualServerId,
    probe_scheduler,
};
use netlink::Errno;
use service::{Absence, Change, one_line};
use tracing::warn;
use watcher::{Batch, Observed, Plan};

/// How many schedulers one sync changes at most, so that other changes wait for less than a second. For each,
/// the kernel waits until no packet can be using the old one (`synchronize_rcu` in `ip_vs_edit_service`,
/// net/netfilter/ipvs/ip_vs_ctl.c): 22 ms on Linux 6.1 with two CPUs. Meanwhile this thread waits, and the
/// virtual server takes no new connections.
pub(crate) const MAX_CHANGES_PER_SYNC: usize = 32;

/// The schedulers that Services ask for by annotation, as far as they were probed.
pub(crate) struct SchedulerProbes {
    /// Every Service without an annotation has it. It was probed at the start.
    default: Scheduler,
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
    /// Before the first probe: only the default scheduler is known.
    pub(crate) fn new(default: Scheduler) -> Self {
        Self { default, available: BTreeSet::new(), missing: BTreeMap::new() }
    }

    /// The input of the desired state that says which schedulers are unusable.
    pub(crate) fn to_change(&self) -> Change {
        Change::MissingSchedulers(self.missing.clone())
    }

    /// Probes the schedulers that a plan asks for and that were not probed before: a Service must not be
    /// without virtual servers because of a scheduler.
    pub(crate) fn probe_new(&mut self, plan: &Plan, image: &Observed, kernel: &mut dyn Ipvs) -> ProbeResult {
        let asked: BTreeSet<_> =
            plan.commands().filter_map(assigned_scheduler).filter(|it| *it != self.default).collect();
        let mut result = ProbeResult::default();
        for scheduler in asked {
            // A module that must not be loaded on demand may have been unloaded.
            let may_load = kernel.may_load(scheduler);
            if self.missing.contains_key(&scheduler) || may_load && self.available.contains(&scheduler) {
                continue;
            }
            let found = probe_scheduler(kernel, scheduler, used_schedulers(image));
            self.record(scheduler, found, &mut result);
        }
        result
    }

    fn record(
        &mut self,
        scheduler: Scheduler,
        found: Result<SchedulerSupport, ipvs::Error>,
        result: &mut ProbeResult,
    ) {
        let default = self.default;
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
                    "{scheduler} is not probed before it is used: the address for that, {PROBE_ADDRESS}, is taken"
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
                warn!("cannot probe {scheduler}: {}", refusal.cause());
                result.doubtful = true;
            }
            Err(error) => {
                warn!("cannot probe {scheduler}: {}", one_line(&error));
                result.doubtful = true;
            }
        }
    }

    /// Records which schedulers the kernel refused in a plan, and returns whether any of them was thought
    /// usable. It had them before, or they could not be probed.
    pub(crate) fn record_refused(&mut self, refused: &BTreeSet<Scheduler>) -> bool {
        refused.iter().fold(false, |changed, it| {
            changed | (*it != self.default && self.mark_unusable(*it, Absence::Lacking))
        })
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

/// Rotates the real servers that a plan adds to each virtual server, by the name of this node and the virtual
/// server.
///
/// Round robin, and whatever has to choose among equals, begins with the first real server in the kernel's
/// list. With the same order on all nodes, the first connections of all of them would go to one endpoint.
/// A Service usually exists before its endpoints, so all real servers that are added together are rotated; existing
/// ones keep their order.
///
/// With a scheduler that hashes, the order decides where each client's connections go, and is the same on all
/// nodes: the plan's, by address.
pub(crate) fn rotate(plan: &mut Plan, node_name: &str, is_hashing: impl Fn(&ServiceAddress) -> bool) {
    let commands = plan.batches.iter_mut().filter_map(|batch| match batch {
        Batch::Ipvs(commands) => Some(commands),
        Batch::Netfilter(_) | Batch::DummyInterface(_) => None,
    });
    for run in commands.flat_map(|commands| commands.chunk_by_mut(same_virtual_server)) {
        if let [Command::AddRealServer(id, _), _, ..] = run
            && !matches!(id, VirtualServerId::Address(at) if is_hashing(at))
        {
            let turn = turn(node_name, *id).checked_rem(run.len() as u64).unwrap_or_default();
            run.rotate_left(usize::try_from(turn).unwrap_or_default());
        }
    }
}

/// Whether both add a real server to one virtual server.
fn same_virtual_server(before: &Command, command: &Command) -> bool {
    match (before, command) {
        (Command::AddRealServer(one, _), Command::AddRealServer(other, _)) => one == other,
        _ => false,
    }
}

/// How far a node rotates the real servers of a virtual server. It is the same in every release, so that a
/// node that is upgraded goes on as before.
fn turn(node_name: &str, id: VirtualServerId) -> u64 {
    let mut hash = Fnv::default();
    // The hash takes all that is written to it.
    let _ = write!(hash, "{node_name} {id}");
    hash.0
}

/// FNV-1a of 64 bits. What the standard library hashes with may be another function in its next release.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
