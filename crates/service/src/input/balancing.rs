//! The settings of a Service's annotations about the balancing of its connections.

use std::{num::NonZero, sync::Arc, time::Duration};

use ipvs::{Scheduler, ServiceFlags};

use crate::direct_return::ForwardingMethod;

/// The share of new connections that an endpoint gets; 0: none, by annotation.
pub type Weight = u16;

/// The settings of a Service's annotations, beyond what every Service gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balancing {
    /// The scheduler, which picks the real server of a new connection; `None`: that of every Service.
    pub scheduler: Option<Scheduler>,
    /// The flags of that scheduler, of which only those for schedulers count; `None`: those by which it suits
    /// Kubernetes. They mean nothing without a scheduler of its own.
    pub scheduler_flags: Option<ServiceFlags>,
    /// The weights of the endpoints on a node.
    pub node_weights: Weights,
    /// The weights of the endpoints in a zone, where their nodes have none.
    pub zone_weights: Weights,
    /// The factors by distance; `None`: as for every Service.
    pub distance_weights: Option<ByDistance>,
    /// Which failing endpoints get no new connections; `None`: as for every Service.
    pub ejection: Option<Ejection>,
    /// Whether it answers every datagram, so that an endpoint that does not has failed. Name servers do without saying
    /// so.
    pub answers_datagrams: bool,
    /// How long an endpoint that appears beside others takes to get all of its weight: between
    /// [`Self::SHORTEST_SLOW_START`] and [`Self::LONGEST_SLOW_START`]. `None`: it gets all at once.
    pub slow_start: Option<Duration>,
    /// With so many connections a real server gets no new ones: the upper threshold of IPVS.
    pub max_connections: Option<NonZero<u32>>,
    /// With fewer it gets new ones again: the lower threshold, at most the upper one and nothing without it. `None`:
    /// with fewer than three quarters (`ip_vs_unbind_dest` in net/netfilter/ipvs/ip_vs_conn.c).
    pub resume_below: Option<NonZero<u32>>,
    /// How what comes in at external addresses reaches the endpoints; `None`: as for every Service.
    pub forwarding_method: Option<ForwardingMethod>,
}

impl Balancing {
    /// A weight grows at least ten times, and at most once a second.
    pub const SHORTEST_SLOW_START: Duration = Duration::from_secs(10);
    /// An hour.
    pub const LONGEST_SLOW_START: Duration = Duration::from_secs(3_600);
}

/// Weights by name, of nodes or zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights(Box<[(Arc<str>, Weight)]>);

impl Weights {
    /// Whether no name has a weight.
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

/// Whether weights depend on the distance of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByDistance {
    /// They do not.
    Off,
    /// They are multiplied by these factors.
    By(DistanceWeights),
}

/// The factors of weights by distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DistanceWeights {
    /// Of endpoints on this node.
    pub node: NonZero<u16>,
    /// Of the others in this node's zone.
    pub zone: NonZero<u16>,
    /// Of the others.
    pub other: NonZero<u16>,
}

impl DistanceWeights {
    /// The largest factor, so that there is room for other weights and shares.
    pub const MAX: u16 = 1_000;

    /// The factor at a distance.
    pub(crate) fn at(&self, distance: Distance) -> NonZero<u16> {
        match distance {
            Distance::Node => self.node,
            Distance::Zone => self.zone,
            Distance::Other => self.other,
        }
    }

    pub(crate) fn max(&self) -> u16 {
        self.node.max(self.zone).max(self.other).get()
    }
}

/// How far an endpoint is from this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distance {
    /// On this node.
    Node,
    /// On another node of the same zone.
    Zone,
    /// In another zone, or in an unknown one.
    Other,
}

bitflags::bitflags! {
    /// The failing endpoints that get no new connections; empty: none is ejected.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Ejection: u8 {
        /// Those that do not answer.
        const SILENT = 1 << 0;
        /// Those that reject connections.
        const REFUSING = 1 << 1;
    }
}
