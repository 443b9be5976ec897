//! The settings of a Service's annotations about the balancing of its connections.

use std::{num::NonZero, str::FromStr, sync::Arc, time::Duration};

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
    /// Whether conntrack tracks flows of pods to it; `None`: as for every Service.
    pub conntrack: Option<bool>,
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
    pub(crate) fn at(self, distance: Distance) -> NonZero<u16> {
        match distance {
            Distance::Node => self.node,
            Distance::Zone => self.zone,
            Distance::Other => self.other,
        }
    }

    pub(crate) fn max(self) -> u16 {
        self.node.max(self.zone).max(self.other).get()
    }
}

/// The text says nothing about weights by distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected off or node=N,zone=N,other=N with numbers between 1 and {}", DistanceWeights::MAX)]
pub struct InvalidDistanceWeights;

/// As in the annotation and the flag: `off`, or `node=100,zone=10,other=1` in any order.
impl FromStr for ByDistance {
    type Err = InvalidDistanceWeights;

    fn from_str(text: &str) -> Result<Self, InvalidDistanceWeights> {
        if text.trim() == "off" {
            return Ok(Self::Off);
        }
        let (mut node, mut zone, mut other) = (None, None, None);
        for element in text.split(',') {
            let (name, number) = element.split_once('=').ok_or(InvalidDistanceWeights)?;
            let factor = match name.trim() {
                "node" => &mut node,
                "zone" => &mut zone,
                "other" => &mut other,
                _ => return Err(InvalidDistanceWeights),
            };
            let number = number.trim().parse().ok();
            let number = number.filter(|number: &NonZero<u16>| number.get() <= DistanceWeights::MAX);
            if factor.replace(number.ok_or(InvalidDistanceWeights)?).is_some() {
                return Err(InvalidDistanceWeights);
            }
        }
        let weights = node.zip(zone).zip(other).ok_or(InvalidDistanceWeights)?;
        let ((node, zone), other) = weights;
        Ok(Self::By(DistanceWeights { node, zone, other }))
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

/// The text does not say which failing endpoints are ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected off, silent, refusing or silent,refusing")]
pub struct InvalidEjection;

/// As in the annotation and the flag.
impl FromStr for Ejection {
    type Err = InvalidEjection;

    fn from_str(text: &str) -> Result<Self, InvalidEjection> {
        if text.trim() == "off" {
            return Ok(Self::empty());
        }
        text.split(',').try_fold(Self::empty(), |ejection, failing| match failing.trim() {
            "silent" => Ok(ejection | Self::SILENT),
            "refusing" => Ok(ejection | Self::REFUSING),
            _ => Err(InvalidEjection),
        })
    }
}

bitflags::bitflags! {
    /// The Services of which conntrack does not track flows of pods; empty: all are tracked.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct UntrackedServices: u8 {
        /// The cluster's DNS.
        const CLUSTER_DNS = 1 << 0;
        /// Those whose annotation asks for it.
        const ANNOTATED = 1 << 1;
    }
}

/// The text does not say which Services are untracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected none, cluster-dns, annotated or cluster-dns,annotated")]
pub struct InvalidUntrackedServices;

/// As in the flag.
impl FromStr for UntrackedServices {
    type Err = InvalidUntrackedServices;

    fn from_str(text: &str) -> Result<Self, InvalidUntrackedServices> {
        if text.trim() == "none" {
            return Ok(Self::empty());
        }
        text.split(',').try_fold(Self::empty(), |services, name| match name.trim() {
            "cluster-dns" => Ok(services | Self::CLUSTER_DNS),
            "annotated" => Ok(services | Self::ANNOTATED),
            _ => Err(InvalidUntrackedServices),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_by_distance_are_read_in_any_order() {
        let factor = |number| NonZero::new(number).expect("not 0");
        let by = |node, zone, other| {
            Ok(ByDistance::By(DistanceWeights {
                node: factor(node),
                zone: factor(zone),
                other: factor(other),
            }))
        };
        for (text, expected) in [
            ("node=100,zone=10,other=1", by(100, 10, 1)),
            (" other = 1 , node=1000,zone = 7", by(1_000, 7, 1)),
            ("off", Ok(ByDistance::Off)),
            (" off ", Ok(ByDistance::Off)),
        ] {
            assert_eq!(text.parse(), expected, "{text:?}");
        }
    }

    #[test]
    fn factors_that_lack_a_name_or_exceed_the_limit_are_refused() {
        for text in [
            "",
            "on",
            "100",
            "node=100",
            "node=100,zone=10",
            "node=100,zone=10,other",
            "node=100,zone=10,other=0",
            "node=1001,zone=10,other=1",
            "node=70000,zone=10,other=1",
            "node=100,zone=10,other=-1",
            "node=100,zone=10,other=1,",
            "node=100,zone=10,other=1,node=100",
            "node=100,zone=10,region=1",
            "Node=100,zone=10,other=1",
            "off,node=100,zone=10,other=1",
        ] {
            assert_eq!(text.parse::<ByDistance>(), Err(InvalidDistanceWeights), "{text:?}");
        }
    }

    #[test]
    fn the_failing_endpoints_that_are_ejected_are_read_by_name() {
        for (text, expected) in [
            ("off", Ejection::empty()),
            ("silent", Ejection::SILENT),
            ("refusing", Ejection::REFUSING),
            ("silent,refusing", Ejection::all()),
            ("refusing , silent", Ejection::all()),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text:?}");
        }
        for text in ["", "on", "true", "silent,", "silent,off", "Silent", "silent refusing"] {
            assert_eq!(text.parse::<Ejection>(), Err(InvalidEjection), "{text:?}");
        }
    }
}
