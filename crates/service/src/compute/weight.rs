//! The weight of a real server: the one owner of that number.

use std::{cmp::Reverse, fmt};

use serde::{Deserialize, Serialize};

use super::{EffectiveBalancing, PolicyGroup, PortEndpoint};
use crate::input::{Distance, EjectionCause, Share, Standing, Weight};

/// The weight of an endpoint, and what it is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointWeight {
    /// By the annotations for nodes, zones and slices; 1 without any.
    pub base: Weight,
    /// The factor of its distance, if the Service's weights depend on it.
    pub distance: Option<(Distance, u16)>,
    /// The factor of all endpoints of a Service whose weights change with time: shares of 1 need room.
    pub scale: u16,
    /// The share that it has now.
    pub share: Share,
}

impl EndpointWeight {
    /// The weight in IPVS. 0 only for an endpoint that gets no new connections.
    pub fn value(&self) -> Weight {
        let Self { base, distance, scale, share } = *self;
        let percent = share.percent();
        if base == 0 || percent == 0 {
            return 0;
        }
        let factor = distance.map_or(1, |(_, factor)| u64::from(factor));
        let whole = u64::from(base) * factor * u64::from(scale);
        // An endpoint with a share of nearly nothing still gets some.
        let part = (whole * u64::from(percent) / 100).max(1);
        Weight::try_from(part).unwrap_or(Weight::MAX)
    }

    /// Whether it is exactly what the annotations say, and not 0.
    pub fn is_plain(&self) -> bool {
        self.distance.is_none() && self.scale == 1 && self.share == Share::Whole && self.base != 0
    }
}

/// For people: "10: base 1, this zone × 10".
impl fmt::Display for EndpointWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { base, distance, scale, share } = self;
        write!(f, "{}", self.value())?;
        if *base == 0 {
            return f.write_str(": out by annotation");
        }
        if let Share::Ejected { cause, age } = share {
            return write!(f, ": ejected for {} s, {cause}", age.as_secs());
        }
        if self.is_plain() {
            return Ok(());
        }
        write!(f, ": base {base}")?;
        if let Some((distance, factor)) = distance {
            write!(f, ", {distance} × {factor}")?;
        }
        if *scale > 1 {
            write!(f, ", × {scale}")?;
        }
        match share {
            Share::Whole | Share::Ejected { .. } => Ok(()),
            Share::SlowStart { percent } => write!(f, ", {percent} % (slow start)"),
            Share::OnTrial { .. } => write!(f, ", {} % until it answers again", share.percent()),
            Share::Kept { cause } => {
                let percent = share.percent();
                write!(f, ", {percent} %: {cause}, but as many as allowed are out already")
            }
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "this node",
            Self::Zone => "this zone",
            Self::Other => "elsewhere",
        })
    }
}

impl PolicyGroup<'_> {
    /// The weights of the endpoints in use, in their order.
    ///
    /// At most half of the endpoints that may have connections are ejected, and never the last: those that failed last.
    /// One that failed earlier may serve again, and one that was ejected with its node has not failed itself.
    /// Where clients are answered directly no answer passes here, so nothing is known.
    pub(crate) fn weights(&self, balancing: &EffectiveBalancing) -> Vec<EndpointWeight> {
        let mut weights: Vec<_> = self.used.iter().map(|it| it.weight(balancing)).collect();
        if self.standings.is_empty() {
            return weights;
        }
        let key = |at: usize| Some((self.protocol, self.used.get(at)?.address));
        let most = weights.iter().filter(|it| it.base > 0).count() / 2;
        let mut ejected = Vec::new();
        for (at, weight) in weights.iter_mut().enumerate() {
            let Some(key) = key(at).filter(|_| !self.direct_return) else { continue };
            weight.share = balancing.share(self.standings.share(&key, self.now));
            let standing = self.standings.get(&key).filter(|_| weight.base > 0);
            if let Some((cause, since)) = standing.and_then(Standing::ejection) {
                ejected.push((cause == EjectionCause::NodeSilent, Reverse(since), at));
            }
        }
        ejected.sort_unstable();
        for (.., at) in ejected.into_iter().skip(most) {
            if let Some(weight) = weights.get_mut(at)
                && let Share::Ejected { cause, .. } = weight.share
            {
                // Alone it gets all connections at whatever weight.
                weight.share = if most == 0 { Share::Whole } else { balancing.share(Share::Kept { cause }) };
            }
        }
        weights
    }
}

impl PortEndpoint {
    fn weight(&self, balancing: &EffectiveBalancing) -> EndpointWeight {
        EndpointWeight {
            base: self.weight,
            distance: balancing.distance.map(|by| (self.distance, by.at(self.distance).get())),
            scale: balancing.scale,
            share: Share::Whole,
        }
    }
}
