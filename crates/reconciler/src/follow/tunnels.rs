//! Tunnels of direct return: those that the kernel lacks, and those that other nodes still send into.
//!
//! When no Service is answered directly any more, open connections still come through the tunnels. Their
//! nodes go on to send so, because IPVS keeps for each connection how it is forwarded.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use dummy_interface::TunnelDevice;
use ipvs::Family;
use service::Change;
use tracing::warn;

/// The families in which a tunnel device was refused.
#[derive(Debug, Default)]
pub(crate) struct MissingTunnels(BTreeSet<Family>);

impl MissingTunnels {
    /// The input of the desired state with these families.
    pub(crate) fn to_change(&self) -> Change {
        Change::MissingTunnels(self.0.clone())
    }

    /// Records families in which the kernel refused one, and returns whether any of them is new.
    pub(crate) fn record_refused(&mut self, refused: &BTreeSet<Family>) -> bool {
        let new: Vec<_> = refused.difference(&self.0).copied().collect();
        for family in &new {
            warn!(
                "the kernel has no tunnels ({family}): Services are served masqueraded; kube-ipvs resync tries again"
            );
        }
        let any = !new.is_empty();
        self.0.extend(new);
        any
    }
}

/// The tunnels that have received packets recently.
#[derive(Debug)]
pub(crate) struct TunnelsInUse {
    /// How long a tunnel receives nothing before no open connection can use it.
    silence: Duration,
    /// How many packets each had received, and since when no more.
    seen: BTreeMap<Family, (u64, Instant)>,
}

impl TunnelsInUse {
    /// Starts without any. IPVS forgets a connection that has been idle for `silence`.
    pub(crate) fn new(silence: Duration) -> Self {
        Self { silence, seen: BTreeMap::new() }
    }

    /// Stores how many packets the tunnels have received. A tunnel that is new here may have received its
    /// packets just now.
    pub(crate) fn update(&mut self, tunnels: &BTreeMap<Family, TunnelDevice>, now: Instant) {
        self.seen.retain(|family, _| tunnels.contains_key(family));
        for (family, TunnelDevice { received, .. }) in tunnels {
            if *received != 0 && self.seen.get(family).is_none_or(|(before, _)| before != received) {
                self.seen.insert(*family, (*received, now));
            }
        }
    }

    /// The input of the desired state with the families whose tunnels are in use.
    pub(crate) fn to_change(&self, now: Instant) -> Change {
        let in_use =
            self.seen.iter().filter(|(_, (_, since))| now.saturating_duration_since(*since) < self.silence);
        Change::TunnelsInUse(in_use.map(|(family, _)| *family).collect::<BTreeSet<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_is_in_use_until_it_has_been_silent_for_fifteen_minutes() {
        let begin = Instant::now();
        let after = |minutes: u64| begin + Duration::from_secs(60 * minutes);
        let mut in_use = TunnelsInUse::new(Duration::from_secs(15 * 60));
        let mut at = |minutes, v4, v6| {
            let tunnel = |received| TunnelDevice { right: true, received };
            let all = [(Family::V4, v4), (Family::V6, v6)];
            let seen = all.into_iter().filter_map(|(family, received)| Some((family, tunnel(received?))));
            in_use.update(&seen.collect(), after(minutes));
            match in_use.to_change(after(minutes)) {
                Change::TunnelsInUse(families) => families.into_iter().collect::<Vec<_>>(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(at(0, None, None), []);
        assert_eq!(at(1, Some(0), Some(7)), [Family::V6], "the first has received nothing");
        assert_eq!(at(10, Some(1), Some(7)), [Family::V4, Family::V6]);
        assert_eq!(at(16, Some(1), Some(7)), [Family::V4]);
        assert_eq!(at(24, Some(2), Some(7)), [Family::V4]);
        assert_eq!(at(38, Some(2), Some(8)), [Family::V4, Family::V6]);
        assert_eq!(at(39, Some(2), Some(8)), [Family::V6]);
        assert_eq!(at(40, None, None), [], "they were removed");
        assert_eq!(at(41, Some(2), None), [Family::V4], "another one of the same name");
    }
}
