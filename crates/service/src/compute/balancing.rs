//! How the connections of one Service are balanced on this node.

use ipvs::{Scheduler, ServiceFlags};

use crate::input::{Absence, Balancing, CompactSlice, Options, ServiceInputs};

/// The [`Balancing`] of a Service, as far as this node supports it.
#[derive(Debug)]
pub(crate) struct EffectiveBalancing {
    pub(crate) scheduler: Scheduler,
    pub(crate) scheduler_flags: ServiceFlags,
    /// 0: no limit.
    pub(crate) upper_threshold: u32,
    /// 0: the kernel's default.
    pub(crate) lower_threshold: u32,
    /// Settings that are not supported or have no effect.
    pub(crate) problems: Vec<String>,
}

impl EffectiveBalancing {
    /// At addresses of every kind.
    pub(super) fn new(inputs: ServiceInputs<'_>) -> Self {
        Self::with_default(inputs, inputs.options.scheduler)
    }

    /// At addresses that are answered directly, where every node should choose alike.
    pub(super) fn for_direct_return(inputs: ServiceInputs<'_>) -> Self {
        let ServiceInputs { service, node, options, .. } = inputs;
        let lacking = node.lacks(Scheduler::MH);
        let default = if lacking.is_some() { options.scheduler } else { Scheduler::MH };
        let mut balancing = Self::with_default(inputs, default);
        if let Some(why) = lacking.filter(|_| service.scheduler().is_none()) {
            let problem = without(Scheduler::MH, why, default, options);
            balancing.problems.push(format!("{problem}; nodes choose differently"));
        }
        if balancing.is_by_client(inputs) {
            balancing.scheduler_flags -= PORT_COUNTS;
        }
        balancing
    }

    /// Whether the scheduler alone keeps a client at its endpoint, on every node: it hashes the client's address. Asked
    /// of addresses that are answered directly. The kernel's own memory of clients would be each node's for itself.
    pub(super) fn is_by_client(&self, inputs: ServiceInputs<'_>) -> bool {
        let ServiceInputs { service, .. } = inputs;
        self.scheduler == Scheduler::MH && service.session_affinity.is_some() && service.scheduler().is_none()
    }

    fn with_default(inputs: ServiceInputs<'_>, default: Scheduler) -> Self {
        let ServiceInputs { service, slices, node, options, .. } = inputs;
        let mut balancing = Self {
            scheduler: default,
            scheduler_flags: usual_flags(default),
            upper_threshold: 0,
            lower_threshold: 0,
            problems: Vec::new(),
        };
        let Some(asked) = &service.balancing else { return balancing };
        if let Some(scheduler) = asked.scheduler {
            // The default scheduler exists, or the daemon would not have started.
            match node.lacks(scheduler).filter(|_| scheduler != options.scheduler) {
                Some(why) => balancing.problems.push(without(scheduler, why, default, options)),
                None => {
                    let flags = asked.scheduler_flags.map(|flags| flags & ServiceFlags::OF_SCHEDULER);
                    balancing.scheduler = scheduler;
                    balancing.scheduler_flags = flags.unwrap_or_else(|| usual_flags(scheduler));
                }
            }
        }
        balancing.problems.extend(useless_weights(asked, slices, balancing.scheduler));
        let walks = walks_for_long(asked, slices, balancing.scheduler);
        if let Some(most) = asked.max_connections.filter(|_| walks.is_none()) {
            balancing.upper_threshold = most.get();
            // More than the upper one would be refused (ERANGE).
            balancing.lower_threshold = asked.resume_below.map_or(0, |below| below.get().min(most.get()));
        }
        balancing.problems.extend(walks);
        balancing
    }
}

/// The problem of a Service whose scheduler cannot be used on this node. On others it may be.
fn without(
    scheduler: Scheduler,
    why: Absence,
    usual: Scheduler,
    Options { node_name, .. }: &Options,
) -> String {
    match why {
        Absence::Lacking => format!(
            "metadata.annotations: the kernel of node {node_name} lacks the scheduler {scheduler} (module ip_vs_{scheduler}); \
             {usual} is used there. With the module loaded, kube-ipvs resync tries again"
        ),
        Absence::NotLoaded => format!(
            "metadata.annotations: the scheduler {scheduler} is not loaded on node {node_name}, and loading it on demand \
             can hang IPVS; {usual} is used there. Load the module ip_vs_{scheduler} at boot; where it is loaded, kube-ipvs \
             resync tries again"
        ),
    }
}

/// The heaviest endpoint that `wrr` may find full.
const HEAVIEST_IN_WRR: u16 = 256;

/// The problem of a Service with a limit that makes `wrr` slow. Where its heavy endpoints are full, it counts
/// down from the largest weight for each new connection, past all endpoints each time, under a lock
/// (`ip_vs_wrr_schedule` in net/netfilter/ipvs/ip_vs_wrr.c). With a thousand endpoints and a weight of 65535
/// that took 198 ms (Linux 7.2), by which any client could keep a processor of the node busy.
fn walks_for_long(asked: &Balancing, slices: &[CompactSlice], scheduler: Scheduler) -> Option<String> {
    asked.max_connections.filter(|_| scheduler == Scheduler::WRR)?;
    let of_slices = slices.iter().filter_map(|slice| slice.weight);
    let heaviest = asked.node_weights.iter().chain(asked.zone_weights.iter()).chain(of_slices).max()?;
    (heaviest.get() > HEAVIEST_IN_WRR).then(|| {
        format!(
            "metadata.annotations[kube-ipvs.io/max-connections]: ignored: with a weight of {heaviest}, above \
             {HEAVIEST_IN_WRR}, the scheduler wrr would search too long for an endpoint that is not full"
        )
    })
}

/// The problem of a Service with weights that its scheduler never reads, or with a scheduler that makes no
/// sense without them (net/netfilter/ipvs/ip_vs_*.c).
fn useless_weights(asked: &Balancing, slices: &[CompactSlice], scheduler: Scheduler) -> Option<String> {
    let of_places = !asked.node_weights.is_empty() || !asked.zone_weights.is_empty();
    // Before the first slice the weights are unknown.
    let none = !of_places && !slices.is_empty() && slices.iter().all(|slice| slice.weight.is_none());
    match scheduler {
        Scheduler::RR | Scheduler::LC | Scheduler::DH if of_places => {
            Some(format!("metadata.annotations: the scheduler {scheduler} ignores weights"))
        }
        Scheduler::FO if none => Some(
            "metadata.annotations: without weights the scheduler fo does not know the order of endpoints".to_owned(),
        ),
        Scheduler::OVF if none => Some(
            "metadata.annotations: without weights the scheduler ovf gives an endpoint two connections and then refuses \
             clients"
                .to_owned(),
        ),
        _ => None,
    }
}

/// Of sh and mh: the client's port counts beside its address.
const PORT_COUNTS: ServiceFlags = ServiceFlags::SCHEDULER_2;

/// Without the fallback, sh and mh refuse clients that hash to a draining real server; without the port
/// all of a client's connections go to one real server (net/netfilter/ipvs/ip_vs_sh.c, ip_vs_mh.c). For
/// sh that is the purpose.
fn usual_flags(scheduler: Scheduler) -> ServiceFlags {
    match scheduler {
        Scheduler::SH => ServiceFlags::SCHEDULER_1,
        Scheduler::MH => ServiceFlags::SCHEDULER_1 | PORT_COUNTS,
        _ => ServiceFlags::empty(),
    }
}
