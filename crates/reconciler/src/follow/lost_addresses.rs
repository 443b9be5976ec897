//! Addresses that this node lost a moment ago and may get back. Nothing here reads a clock: the caller
//! passes the time.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use service::Change;

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

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(30);

    fn ips(last: &[u8]) -> BTreeSet<IpAddr> {
        last.iter().map(|last| [192, 0, 2, *last].into()).collect()
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
}
