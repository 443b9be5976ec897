//! Addresses that this node had a moment ago. Nothing here reads a clock: every method is told the time.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use service::Change;

/// The addresses that this node has, and those that went, with the time until which each may come again.
#[derive(Debug)]
pub(crate) struct LostAddresses {
    grace: Duration,
    /// `None` before the first look.
    here: Option<BTreeSet<IpAddr>>,
    lost: BTreeMap<IpAddr, Instant>,
}

impl LostAddresses {
    pub(crate) fn new(grace: Duration) -> Self {
        Self { grace, here: None, lost: BTreeMap::new() }
    }

    /// Takes in which addresses the node has now, and returns those that have come since this was last called.
    pub(crate) fn seen(&mut self, here: &BTreeSet<IpAddr>, now: Instant) -> BTreeSet<IpAddr> {
        let before = self.here.replace(here.clone());
        self.lost.retain(|ip, _| !here.contains(ip));
        let Some(before) = before else { return BTreeSet::new() };
        self.lost.extend(before.difference(here).map(|ip| (*ip, now + self.grace)));
        here - &before
    }

    /// Forgets those whose time is over, and says whether there were any.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let before = self.lost.len();
        self.lost.retain(|_, until| *until > now);
        self.lost.len() < before
    }

    /// When the time of the next one is over. After [`Self::expire`] that is in the future.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.lost.values().min().copied()
    }

    /// What the desired state is to be told of both.
    pub(crate) fn news(&self) -> Change {
        Change::NodeAddresses { here: self.here.clone().unwrap_or_default(), lost: self.all() }
    }

    /// All that went and may come again.
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
        lost.seen(&ips(&[1, 2, 3]), begin);
        assert_eq!((lost.all(), lost.next()), (ips(&[]), None), "nothing is lost at the start");
        lost.seen(&ips(&[2, 3]), begin);
        let later = begin + Duration::from_secs(10);
        lost.seen(&ips(&[3]), later);
        lost.seen(&ips(&[3]), later + Duration::from_secs(1));
        assert_eq!((lost.all(), lost.next()), (ips(&[1, 2]), Some(begin + GRACE)));

        assert!(!lost.expire(later));
        assert!(lost.expire(begin + GRACE));
        assert_eq!((lost.all(), lost.next()), (ips(&[2]), Some(later + GRACE)));
        assert!(lost.expire(later + GRACE));
        assert_eq!((lost.all(), lost.next()), (ips(&[]), None));
    }

    #[test]
    fn those_that_come_are_told_also_when_their_time_was_over_but_for_those_of_the_start() {
        let begin = Instant::now();
        let mut lost = LostAddresses::new(GRACE);
        assert_eq!(lost.seen(&ips(&[1, 2]), begin), ips(&[]));
        assert_eq!(lost.seen(&ips(&[1]), begin), ips(&[]));
        assert_eq!(lost.seen(&ips(&[1, 2, 3]), begin), ips(&[2, 3]));
        assert_eq!(lost.seen(&ips(&[1]), begin), ips(&[]));
        lost.expire(begin + GRACE);
        assert_eq!(lost.seen(&ips(&[1, 2]), begin + GRACE), ips(&[2]));
        assert_eq!(lost.seen(&ips(&[1, 2]), begin + GRACE), ips(&[]));
    }

    #[test]
    fn one_that_comes_again_is_not_lost_and_has_the_whole_time_when_it_goes_once_more() {
        let begin = Instant::now();
        let mut lost = LostAddresses::new(GRACE);
        lost.seen(&ips(&[1]), begin);
        lost.seen(&ips(&[]), begin);
        lost.seen(&ips(&[1]), begin + Duration::from_secs(1));
        assert_eq!(lost.all(), ips(&[]));
        let again = begin + Duration::from_secs(20);
        lost.seen(&ips(&[]), again);
        assert_eq!(lost.next(), Some(again + GRACE));
    }
}
