//! Work that takes more than one sync: repairs, virtual servers that the kernel lost, addresses that the node lost a moment ago and may get back, and tunnels
//! of direct return: those that the kernel lacks, and those that other nodes still send into. Nothing here reads a
//! clock: the caller passes the time.

pub(crate) mod schedulers;
pub(crate) mod stale_flows;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use dummy_interface::TunnelDevice;
use ipvs::{Family, ServiceAddress};
use service::{Change, Dirty, Key};
use tracing::warn;

/// Changes of other programs that are not repaired.
#[derive(Debug, Default)]
pub(crate) struct Unrepaired {
    /// Whether the kernel was read before: later differences are changes since then. The first reading finds what an
    /// earlier daemon left, which is not to be repaired.
    pub(crate) adopted: bool,
    keys: Dirty,
}

impl Unrepaired {
    /// Records what differs from the image, without the keys that are expected to.
    pub(crate) fn add(&mut self, drift: &Dirty, is_expected: impl Fn(&Key) -> bool) {
        if self.adopted {
            self.keys.extend(drift.keys().filter(|key| !is_expected(key)));
        }
    }

    /// Whether an operation on this key repairs something.
    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.keys.contains(key)
    }

    /// Whether nothing is left to repair.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Keeps the keys that must still be compared after a sync: the rest is as desired.
    pub(crate) fn retain(&mut self, remains: impl Fn(&Key) -> bool) {
        self.keys = self.keys.keys().filter(remains).collect();
    }
}

/// The virtual servers that the kernel may have lost, until a sync has found them there or added them again.
#[derive(Debug, Default)]
pub(crate) struct LostVirtualServers {
    addresses: BTreeSet<ServiceAddress>,
    /// Whether the kernel was read since, so that the image says which of them are there.
    read: bool,
}

impl LostVirtualServers {
    /// One of these virtual servers, which the kernel had, is not there: perhaps none of them is.
    pub(crate) fn suspect(&mut self, all: impl IntoIterator<Item = ServiceAddress>) {
        self.addresses.extend(all);
        self.read = false;
    }

    /// Keeps those that are still missing after a sync. `full`: the sync has compared everything with the kernel.
    pub(crate) fn retain(&mut self, full: bool, is_missing: impl Fn(&ServiceAddress) -> bool) {
        self.read |= full;
        if self.read {
            self.addresses.retain(is_missing);
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.addresses.len()
    }
}

/// The addresses that this node has, and those that it lost, each with the end of its grace period.
#[derive(Debug)]
pub(crate) struct LostAddresses {
    grace: Duration,
    /// `None` before the first reading.
    current: Option<BTreeSet<IpAddr>>,
    lost: BTreeMap<IpAddr, Instant>,
}

impl LostAddresses {
    pub(crate) fn new(grace: Duration) -> Self {
        Self { grace, current: None, lost: BTreeMap::new() }
    }

    /// Stores which addresses the node has now, and returns those that were added since the last call. The
    /// first call returns none.
    pub(crate) fn update(&mut self, current: &BTreeSet<IpAddr>, now: Instant) -> BTreeSet<IpAddr> {
        let before = self.current.replace(current.clone());
        self.lost.retain(|ip, _| !current.contains(ip));
        let Some(before) = before else { return BTreeSet::new() };
        self.lost.extend(before.difference(current).map(|ip| (*ip, now + self.grace)));
        current - &before
    }

    /// Forgets addresses whose grace period has ended, and returns whether there were any.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let before = self.lost.len();
        self.lost.retain(|_, until| *until > now);
        self.lost.len() < before
    }

    /// When the next grace period ends. After [`Self::expire`] that is in the future.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.lost.values().min().copied()
    }

    /// The input of the desired state that says which addresses the node has and which it lost.
    pub(crate) fn to_change(&self) -> Change {
        Change::NodeAddresses { here: self.current.clone().unwrap_or_default(), lost: self.all() }
    }

    /// All lost addresses in their grace period.
    fn all(&self) -> BTreeSet<IpAddr> {
        self.lost.keys().copied().collect()
    }
}

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
///
/// When no Service is answered directly any more, open connections still come through the tunnels. Their nodes go on to
/// send so, because IPVS keeps for each connection how it is forwarded.
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

    const GRACE: Duration = Duration::from_secs(30);

    fn ips(last: &[u8]) -> BTreeSet<IpAddr> {
        last.iter().map(|last| [192, 0, 2, *last].into()).collect()
    }

    #[test]
    fn virtual_servers_count_as_lost_until_the_kernel_was_read_and_has_them() {
        let at = |port| ServiceAddress { protocol: ipvs::Protocol::Tcp, ip: [10, 96, 0, 1].into(), port };
        let mut lost = LostVirtualServers::default();
        lost.suspect([at(1), at(2)]);
        lost.retain(false, |_| false);
        assert_eq!(lost.count(), 2, "the image is from before the loss");
        lost.retain(true, |address| *address == at(2));
        assert_eq!(lost.count(), 1);
        lost.retain(false, |_| false);
        assert_eq!(lost.count(), 0, "the image is from after the loss");
        lost.suspect([at(1)]);
        lost.retain(false, |_| false);
        assert_eq!(lost.count(), 1, "lost again");
    }

    #[test]
    fn each_address_has_its_own_time_from_when_it_went() {
        let begin = Instant::now();
        let mut lost = LostAddresses::new(GRACE);
        lost.update(&ips(&[1, 2, 3]), begin);
        assert_eq!((lost.all(), lost.next_expiry()), (ips(&[]), None), "nothing is lost at the start");
        lost.update(&ips(&[2, 3]), begin);
        let later = begin + Duration::from_secs(10);
        lost.update(&ips(&[3]), later);
        lost.update(&ips(&[3]), later + Duration::from_secs(1));
        assert_eq!((lost.all(), lost.next_expiry()), (ips(&[1, 2]), Some(begin + GRACE)));

        assert!(!lost.expire(later));
        assert!(lost.expire(begin + GRACE));
        assert_eq!((lost.all(), lost.next_expiry()), (ips(&[2]), Some(later + GRACE)));
        assert!(lost.expire(later + GRACE));
        assert_eq!((lost.all(), lost.next_expiry()), (ips(&[]), None));
    }

    #[test]
    fn added_addresses_are_returned_after_their_grace_period_but_not_at_the_start() {
        let begin = Instant::now();
        let mut lost = LostAddresses::new(GRACE);
        assert_eq!(lost.update(&ips(&[1, 2]), begin), ips(&[]));
        assert_eq!(lost.update(&ips(&[1]), begin), ips(&[]));
        assert_eq!(lost.update(&ips(&[1, 2, 3]), begin), ips(&[2, 3]));
        assert_eq!(lost.update(&ips(&[1]), begin), ips(&[]));
        lost.expire(begin + GRACE);
        assert_eq!(lost.update(&ips(&[1, 2]), begin + GRACE), ips(&[2]));
        assert_eq!(lost.update(&ips(&[1, 2]), begin + GRACE), ips(&[]));
    }

    #[test]
    fn one_that_comes_again_is_not_lost_and_has_the_whole_time_when_it_goes_once_more() {
        let begin = Instant::now();
        let mut lost = LostAddresses::new(GRACE);
        lost.update(&ips(&[1]), begin);
        lost.update(&ips(&[]), begin);
        lost.update(&ips(&[1]), begin + Duration::from_secs(1));
        assert_eq!(lost.all(), ips(&[]));
        let again = begin + Duration::from_secs(20);
        lost.update(&ips(&[]), again);
        assert_eq!(lost.next_expiry(), Some(again + GRACE));
    }

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
