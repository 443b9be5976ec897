//! How the connections of one Service are balanced.

use std::{num::NonZero, sync::Arc};

use ipvs::{Scheduler, ServiceFlags};

use crate::input::{Absence, KnownEndpoint, KnownSlice, Options, Service, ThisNode};

/// The share of new connections that an endpoint gets. Not 0, by which a real server drains.
pub type Weight = NonZero<u16>;

/// What the annotations of a Service ask for, beyond what every Service gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balancing {
    /// What picks the real server of a new connection; `None`: the scheduler of every Service.
    pub scheduler: Option<Scheduler>,
    /// The flags of that scheduler, of which only those for schedulers count; `None`: those by which it suits
    /// Kubernetes. They mean nothing without a scheduler of its own.
    pub scheduler_flags: Option<ServiceFlags>,
    /// The weights of the endpoints on a node.
    pub node_weights: Weights,
    /// The weights of the endpoints in a zone, where nothing is said of their nodes.
    pub zone_weights: Weights,
    /// With so many connections a real server gets no new ones: the upper threshold of IPVS.
    pub max_connections: Option<NonZero<u32>>,
    /// With fewer it gets new ones again: the lower threshold, at most the upper one and nothing without it. `None`:
    /// with fewer than three quarters (`ip_vs_unbind_dest` in net/netfilter/ipvs/ip_vs_conn.c).
    pub resume_below: Option<NonZero<u32>>,
}

/// Weights by name, of nodes or zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights(Box<[(Arc<str>, Weight)]>);

impl Weights {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = Weight> {
        self.0.iter().map(|(_, weight)| *weight)
    }

    fn of(&self, name: &str) -> Option<Weight> {
        let at = self.0.binary_search_by(|(known, _)| known.as_ref().cmp(name)).ok()?;
        self.0.get(at).map(|(_, weight)| *weight)
    }
}

/// Of several of one name the first counts.
impl FromIterator<(Arc<str>, Weight)> for Weights {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Weight)>>(weights: I) -> Self {
        let mut weights: Vec<_> = weights.into_iter().collect();
        weights.sort_by(|(one, _), (other, _)| one.cmp(other));
        weights.dedup_by(|(later, _), (earlier, _)| later == earlier);
        Self(weights.into())
    }
}

impl Service {
    /// The scheduler that its annotations ask for.
    pub(crate) fn scheduler(&self) -> Option<Scheduler> {
        self.balancing.as_ref()?.scheduler
    }

    /// The weight of an endpoint: what is said most precisely counts, of its node, then of its zone, then of
    /// its slice.
    pub(crate) fn weight_of(&self, slice: &KnownSlice, endpoint: &KnownEndpoint) -> Weight {
        let by_place =
            self.balancing.as_ref().zip(slice.place_of(endpoint)).and_then(|(balancing, place)| {
                let of_node = place.node.as_ref().and_then(|node| balancing.node_weights.of(node));
                of_node.or_else(|| balancing.zone_weights.of(place.zone.as_ref()?))
            });
        by_place.or(slice.weight).unwrap_or(Weight::MIN)
    }
}

/// The [`Balancing`] of a Service as this node can do it.
pub(crate) struct Balance {
    pub(crate) scheduler: Scheduler,
    pub(crate) scheduler_flags: ServiceFlags,
    /// 0: no limit.
    pub(crate) upper_threshold: u32,
    /// 0: as the kernel has it.
    pub(crate) lower_threshold: u32,
    /// What cannot be done, or means nothing, in words.
    pub(crate) problems: Vec<String>,
}

impl Balance {
    pub(crate) fn of(service: &Service, slices: &[KnownSlice], node: &ThisNode, options: &Options) -> Self {
        let mut balance = Self {
            scheduler: options.scheduler,
            scheduler_flags: usual_flags(options.scheduler),
            upper_threshold: 0,
            lower_threshold: 0,
            problems: Vec::new(),
        };
        let Some(asked) = &service.balancing else { return balance };
        if let Some(scheduler) = asked.scheduler {
            // The one of every Service is there, or the daemon would not be.
            match node.lacks(scheduler).filter(|_| scheduler != options.scheduler) {
                Some(why) => balance.problems.push(without(scheduler, why, options)),
                None => {
                    let flags = asked.scheduler_flags.map(|flags| flags & ServiceFlags::OF_SCHEDULER);
                    balance.scheduler = scheduler;
                    balance.scheduler_flags = flags.unwrap_or_else(|| usual_flags(scheduler));
                }
            }
        }
        balance.problems.extend(useless_weights(asked, slices, balance.scheduler));
        let walks = walks_for_long(asked, slices, balance.scheduler);
        if let Some(most) = asked.max_connections.filter(|_| walks.is_none()) {
            balance.upper_threshold = most.get();
            // More than the upper one would be refused (ERANGE).
            balance.lower_threshold = asked.resume_below.map_or(0, |below| below.get().min(most.get()));
        }
        balance.problems.extend(walks);
        balance
    }
}

/// The problem of a Service whose scheduler cannot be used on this node. On others it may be.
fn without(
    scheduler: Scheduler,
    why: Absence,
    Options { node_name, scheduler: usual, .. }: &Options,
) -> String {
    match why {
        Absence::Lacking => format!(
            "metadata.annotations: the kernel of node {node_name} lacks the scheduler {scheduler} (module ip_vs_{scheduler}); \
             {usual} is used there. With the module loaded, kube-ipvs resync tries again"
        ),
        Absence::NotLoaded => format!(
            "metadata.annotations: the scheduler {scheduler} is not loaded on node {node_name}, and to load it on demand \
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
fn walks_for_long(asked: &Balancing, slices: &[KnownSlice], scheduler: Scheduler) -> Option<String> {
    asked.max_connections.filter(|_| scheduler == Scheduler::WRR)?;
    let of_slices = slices.iter().filter_map(|slice| slice.weight);
    let heaviest = asked.node_weights.iter().chain(asked.zone_weights.iter()).chain(of_slices).max()?;
    (heaviest.get() > HEAVIEST_IN_WRR).then(|| {
        format!(
            "metadata.annotations[kube-ipvs.io/max-connections]: not with the scheduler wrr and a weight of {heaviest}, \
             only up to {HEAVIEST_IN_WRR}: it would look for an endpoint that is not full for too long"
        )
    })
}

/// The problem of a Service with weights that its scheduler never looks at, or a scheduler that makes no
/// sense without (net/netfilter/ipvs/ip_vs_*.c).
fn useless_weights(asked: &Balancing, slices: &[KnownSlice], scheduler: Scheduler) -> Option<String> {
    let of_places = !asked.node_weights.is_empty() || !asked.zone_weights.is_empty();
    // Without a slice it is too early to say.
    let none = !of_places && !slices.is_empty() && slices.iter().all(|slice| slice.weight.is_none());
    match scheduler {
        Scheduler::RR | Scheduler::LC | Scheduler::DH if of_places => {
            Some(format!("metadata.annotations: weights mean nothing to the scheduler {scheduler}"))
        }
        Scheduler::FO if none => Some(
            "metadata.annotations: without weights the scheduler fo has no order of endpoints to keep to".to_owned(),
        ),
        Scheduler::OVF if none => Some(
            "metadata.annotations: without weights the scheduler ovf gives an endpoint two connections and then refuses \
             clients"
                .to_owned(),
        ),
        _ => None,
    }
}

/// Without the fallback, sh and mh refuse clients that hash to a draining real server; without the port
/// all of a client's connections go to one real server (net/netfilter/ipvs/ip_vs_sh.c, ip_vs_mh.c). For
/// sh that is the purpose.
fn usual_flags(scheduler: Scheduler) -> ServiceFlags {
    match scheduler {
        Scheduler::SH => ServiceFlags::SCHEDULER_1,
        Scheduler::MH => ServiceFlags::SCHEDULER_1 | ServiceFlags::SCHEDULER_2,
        _ => ServiceFlags::empty(),
    }
}
