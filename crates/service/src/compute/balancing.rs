//! How the connections of one Service are balanced on this node.

use ipvs::{Scheduler, ServiceFlags};

use crate::input::{
    Absence, Balancing, CompactSlice, DistanceWeights, Options, ServiceInputs, Share, Weight,
};

/// The [`Balancing`] of a Service, as far as this node supports it.
#[derive(Debug)]
pub(crate) struct EffectiveBalancing {
    pub(crate) scheduler: Scheduler,
    pub(crate) scheduler_flags: ServiceFlags,
    /// 0: no limit.
    pub(crate) upper_threshold: u32,
    /// 0: the kernel's default.
    pub(crate) lower_threshold: u32,
    /// The factors by distance, if weights depend on it.
    pub(crate) distance: Option<DistanceWeights>,
    /// The factor of all weights, which gives shares room; 1 where no weight changes with time.
    pub(crate) scale: u16,
    /// Settings that are not supported or have no effect.
    pub(crate) problems: Vec<String>,
}

impl EffectiveBalancing {
    /// At addresses of every kind.
    pub(super) fn new(inputs: ServiceInputs<'_>) -> Self {
        Self::with_default(inputs, inputs.options.scheduler, None, has_shares(inputs))
    }

    /// Where the weights depend on distance. `sed` sends a connection where the fewest are for the weight, so that near
    /// endpoints get all until they are busy.
    pub(super) fn by_distance(inputs: ServiceInputs<'_>, weights: DistanceWeights) -> Self {
        let ServiceInputs { node, options, .. } = inputs;
        let lacking = node.lacks(Scheduler::SED);
        let default = if lacking.is_some() { Scheduler::WLC } else { Scheduler::SED };
        let mut balancing = Self::with_default(inputs, default, Some(weights), has_shares(inputs));
        if let Some(why) = lacking.filter(|_| inputs.service.scheduler().is_none()) {
            balancing.problems.push(without(Scheduler::SED, why, default, options));
        }
        balancing
    }

    /// At addresses that are answered directly, where every node should choose alike.
    pub(super) fn for_direct_return(inputs: ServiceInputs<'_>) -> Self {
        let ServiceInputs { service, node, options, .. } = inputs;
        let lacking = node.lacks(Scheduler::MH);
        let default = if lacking.is_some() { options.scheduler } else { Scheduler::MH };
        let mut balancing = Self::with_default(inputs, default, None, false);
        if let Some(why) = lacking.filter(|_| service.scheduler().is_none()) {
            let problem = without(Scheduler::MH, why, default, options);
            balancing.problems.push(format!("{problem}; nodes choose differently"));
        }
        if balancing.is_by_client(inputs) {
            balancing.scheduler_flags -= PORT_COUNTS;
        }
        if service.balancing.as_ref().is_some_and(|it| it.slow_start.is_some() || it.ejection.is_some()) {
            balancing.problems.push(
                "metadata.annotations: no endpoint is ejected or starts slowly where clients are answered directly: \
                 their answers do not pass here, and all nodes must choose alike"
                    .to_owned(),
            );
        }
        balancing
    }

    /// Whether the scheduler alone keeps a client at its endpoint, on every node: it hashes the client's address. Asked
    /// of addresses that are answered directly. The kernel's own memory of clients would be each node's for itself.
    pub(super) fn is_by_client(&self, inputs: ServiceInputs<'_>) -> bool {
        let ServiceInputs { service, .. } = inputs;
        self.scheduler == Scheduler::MH && service.session_affinity.is_some() && service.scheduler().is_none()
    }

    fn with_default(
        inputs: ServiceInputs<'_>,
        default: Scheduler,
        distance: Option<DistanceWeights>,
        has_shares: bool,
    ) -> Self {
        let ServiceInputs { service, slices, node, options, .. } = inputs;
        let mut balancing = Self {
            scheduler: default,
            scheduler_flags: usual_flags(default),
            upper_threshold: 0,
            lower_threshold: 0,
            distance,
            scale: 1,
            problems: Vec::new(),
        };
        let nothing = Balancing::default();
        let asked = service.balancing.as_deref().unwrap_or(&nothing);
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
        if has_shares {
            balancing.make_room(inputs, heaviest(asked, slices, distance));
        }
        if asked.ejection.is_some_and(|it| !it.is_empty()) && !balancing.can_eject() {
            balancing.problems.push(format!(
                "metadata.annotations[kube-ipvs.io/eject]: ignored: the scheduler {}, with these flags, would refuse the \
                 clients of an endpoint with weight 0",
                balancing.scheduler
            ));
        }
        let useless = |asked: &Box<_>| useless_weights(asked, slices, balancing.scheduler);
        balancing.problems.extend(service.balancing.as_ref().and_then(useless));
        if distance.is_some() && ignores_weights(balancing.scheduler) {
            let problem = format!(
                "metadata.annotations: weights by distance: the scheduler {} ignores weights",
                balancing.scheduler
            );
            balancing.problems.push(problem);
        }
        let walks =
            asked.max_connections.and_then(|_| balancing.walks_for_long(heaviest(asked, slices, distance)));
        if let Some(most) = asked.max_connections.filter(|_| walks.is_none()) {
            balancing.upper_threshold = most.get();
            // More than the upper one would be refused (ERANGE).
            balancing.lower_threshold = asked.resume_below.map_or(0, |below| below.get().min(most.get()));
        }
        balancing.problems.extend(walks);
        balancing
    }

    /// Makes room for shares of the heaviest endpoint's weight: a scheduler that shares connections by weight, and larger
    /// weights than 1.
    fn make_room(&mut self, ServiceInputs { service, node, .. }: ServiceInputs<'_>, heaviest: Weight) {
        let weighted = match self.scheduler {
            Scheduler::RR => Scheduler::WRR,
            Scheduler::LC => Scheduler::WLC,
            other => other,
        };
        if node.lacks(weighted).is_none() && shares_by_weight(weighted) {
            self.scheduler = weighted;
            let is_limited = service.balancing.as_ref().is_some_and(|it| it.max_connections.is_some());
            let (room, most) = if weighted == Scheduler::WRR && is_limited {
                (ROOM_IN_LIMITED_WRR, HEAVIEST_IN_WRR)
            } else {
                (ROOM, Weight::MAX)
            };
            self.scale = room.min(most / heaviest.max(1)).max(1);
        } else if service.slow_start().is_some() {
            self.problems.push(format!(
                "metadata.annotations[kube-ipvs.io/slow-start]: ignored: the scheduler {} does not share connections by \
                 weight",
                self.scheduler
            ));
        }
    }

    /// Whether clients of an endpoint with weight 0 go to others. `dh`, and `sh` and `mh` without their fallback, refuse
    /// them (`ip_vs_dh_schedule`, `ip_vs_sh_get_fallback`, `ip_vs_mh_get_fallback`).
    pub(super) fn can_eject(&self) -> bool {
        let falls_back = self.scheduler_flags.contains(ServiceFlags::SCHEDULER_1);
        match self.scheduler {
            Scheduler::DH => false,
            Scheduler::SH | Scheduler::MH => falls_back,
            _ => true,
        }
    }

    /// What a share leaves of a weight: where weights cannot be shared out, an endpoint gets all or nothing.
    pub(super) fn share(&self, share: Share) -> Share {
        match share {
            Share::Ejected { .. } | Share::OnTrial { .. } | Share::Kept { .. } if !self.can_eject() => {
                Share::Whole
            }
            Share::SlowStart { .. } | Share::OnTrial { .. } | Share::Kept { .. }
                if !shares_by_weight(self.scheduler) =>
            {
                Share::Whole
            }
            share => share,
        }
    }

    /// The problem of a Service with a limit that makes `wrr` slow. Where its heavy endpoints are full, it counts
    /// down from the largest weight for each new connection, past all endpoints each time, under a lock
    /// (`ip_vs_wrr_schedule` in net/netfilter/ipvs/ip_vs_wrr.c). With a thousand endpoints and a weight of 65535
    /// that took 198 ms (Linux 7.2), by which any client could keep a processor of the node busy.
    fn walks_for_long(&self, heaviest: Weight) -> Option<String> {
        let heaviest = heaviest.saturating_mul(self.scale);
        (self.scheduler == Scheduler::WRR && heaviest > HEAVIEST_IN_WRR).then(|| {
            format!(
                "metadata.annotations[kube-ipvs.io/max-connections]: ignored: with a weight of {heaviest}, above \
                 {HEAVIEST_IN_WRR}, the scheduler wrr would search too long for an endpoint that is not full"
            )
        })
    }
}

/// Whether weights change with time.
fn has_shares(ServiceInputs { service, options, .. }: ServiceInputs<'_>) -> bool {
    service.slow_start().is_some() || !service.ejection(options).is_empty()
}

/// The factor by which weights are larger where they change with time.
const ROOM: Weight = 100;
/// The same where [`EffectiveBalancing::walks_for_long`] limits weights.
const ROOM_IN_LIMITED_WRR: Weight = 20;

/// The largest weight that an endpoint can have, shares aside.
fn heaviest(asked: &Balancing, slices: &[CompactSlice], distance: Option<DistanceWeights>) -> Weight {
    let of_slices = slices.iter().filter_map(|slice| slice.weight);
    let bases = asked.node_weights.iter().chain(asked.zone_weights.iter()).chain(of_slices);
    bases.max().unwrap_or(1).max(1).saturating_mul(distance.map_or(1, DistanceWeights::max))
}

/// Whether the scheduler gives endpoints connections in proportion to their weights. To `fo` and `ovf` a weight is a rank
/// or a limit, and `sh` gives an endpoint as many of its 256 entries as its weight is (net/netfilter/ipvs/ip_vs_*.c).
fn shares_by_weight(scheduler: Scheduler) -> bool {
    use Scheduler as S;
    [S::WRR, S::WLC, S::SED, S::NQ, S::LBLC, S::LBLCR, S::TWOS].contains(&scheduler)
}

/// Whether weights make no difference to the scheduler, except 0.
fn ignores_weights(scheduler: Scheduler) -> bool {
    [Scheduler::RR, Scheduler::LC, Scheduler::DH].contains(&scheduler)
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

/// The problem of a Service with weights that its scheduler never reads, or with a scheduler that makes no
/// sense without them (net/netfilter/ipvs/ip_vs_*.c).
fn useless_weights(asked: &Balancing, slices: &[CompactSlice], scheduler: Scheduler) -> Option<String> {
    let given = || asked.node_weights.iter().chain(asked.zone_weights.iter());
    // Before the first slice the weights are unknown.
    let none = given().next().is_none() && !slices.is_empty() && slices.iter().all(|it| it.weight.is_none());
    match scheduler {
        // Every scheduler respects 0.
        _ if ignores_weights(scheduler) && given().any(|weight| weight > 0) => {
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
