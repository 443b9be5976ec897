//! How the annotations of a Service want its connections balanced.

use std::{num::NonZero, sync::Arc};

use ipvs::{Scheduler, ServiceFlags};

use super::{ForwardingMethod, Service};

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
    /// How what comes in at external addresses reaches the endpoints; `None`: as for every Service.
    pub forwarding_method: Option<ForwardingMethod>,
}

/// Weights by name, of nodes or zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights(Box<[(Arc<str>, Weight)]>);

impl Weights {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Weight> {
        self.0.iter().map(|(_, weight)| *weight)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Weight> {
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
}
