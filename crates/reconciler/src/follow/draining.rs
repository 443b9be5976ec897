//! Graceful termination: which real servers drain, since when, and when to check them. Nothing here reads a clock:
//! the caller passes the time. What is done to one then (weight 0, wait, remove) is `next_drain_step` in
//! `crates/watcher/src/diff.rs`.

use std::{
    collections::BTreeMap,
    mem,
    time::{Duration, Instant},
};

use ipvs::{RealServerAddress, ServiceAddress};

use crate::DrainStats;

/// The time until a draining real server is first checked. Most connections are short, and a rollout waits for
/// them.
const FIRST_CHECK: Duration = Duration::from_secs(1);

/// The longest pause between two checks. IPVS keeps a connection for two minutes after its end
/// (`IP_VS_TCP_S_TIME_WAIT` in net/netfilter/ipvs/ip_vs_proto_tcp.c), so shorter pauses gain little; and ten
/// thousand draining real servers cost a thousand short reads in a second.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// The real servers that get no new connections and stay until their last connection ends.
///
/// Each has its own next check: after as long again as it has been draining,
/// but not before [`FIRST_CHECK`] and not after [`MAX_PAUSE`], and exactly at its timeout.
#[derive(Debug)]
pub(crate) struct Draining {
    timeout: Option<Duration>,
    servers: BTreeMap<ServiceAddress, BTreeMap<RealServerAddress, DrainTimes>>,
    /// How many began to drain since the last [`Self::take_stats`].
    started: usize,
    /// How many ceased to drain since the last [`Self::take_stats`].
    ended: usize,
}

#[derive(Clone, Copy, Debug)]
struct DrainTimes {
    since: Instant,
    next_check: Instant,
}

impl Draining {
    /// Starts without any. No real server may drain for longer than `timeout`.
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        Self { timeout, servers: BTreeMap::new(), started: 0, ended: 0 }
    }

    /// Records that a virtual server was checked, and which of its real servers drain now.
    pub(crate) fn update(
        &mut self,
        virtual_server: ServiceAddress,
        draining: impl Iterator<Item = RealServerAddress>,
        now: Instant,
    ) {
        let before = self.servers.remove(&virtual_server).unwrap_or_default();
        let still: BTreeMap<_, _> = draining
            .map(|server| {
                let since = before.get(&server).map_or(now, |drain| drain.since);
                (server, DrainTimes { since, next_check: next_check(since, self.timeout, now) })
            })
            .collect();
        let stayed = still.keys().filter(|server| before.contains_key(server)).count();
        self.started += still.len() - stayed;
        self.ended += before.len() - stayed;
        if !still.is_empty() {
            self.servers.insert(virtual_server, still);
        }
    }

    /// Records that nothing could be checked: what is due gets a later check.
    pub(crate) fn postpone_due(&mut self, now: Instant) {
        let drains = self.servers.values_mut().flat_map(BTreeMap::values_mut);
        for drain in drains.filter(|drain| drain.next_check <= now) {
            drain.next_check = next_check(drain.since, self.timeout, now);
        }
    }

    /// When the next check is due, if any drain. After [`Self::update`] and [`Self::postpone_due`] that is in the future.
    pub(crate) fn next_check(&self) -> Option<Instant> {
        self.drains().map(|(_, _, drain)| drain.next_check).min()
    }

    /// The virtual servers whose check is due.
    pub(crate) fn due(&self, now: Instant) -> impl Iterator<Item = ServiceAddress> {
        let due =
            move |servers: &BTreeMap<_, DrainTimes>| servers.values().any(|drain| drain.next_check <= now);
        self.servers
            .iter()
            .filter(move |(_, servers)| due(servers))
            .map(|(virtual_server, _)| *virtual_server)
    }

    /// The real servers of a virtual server whose drain timeout has passed.
    pub(crate) fn expired(
        &self,
        virtual_server: &ServiceAddress,
        now: Instant,
    ) -> impl Iterator<Item = RealServerAddress> {
        let over = move |drain: &DrainTimes| end(drain.since, self.timeout).is_some_and(|end| end <= now);
        let servers = self.servers.get(virtual_server).into_iter().flatten();
        servers.filter(move |(_, drain)| over(drain)).map(|(server, _)| *server)
    }

    /// Every virtual server with draining real servers.
    pub(crate) fn virtual_servers(&self) -> impl Iterator<Item = ServiceAddress> {
        self.servers.keys().copied()
    }

    /// How many real servers drain.
    pub(crate) fn count(&self) -> usize {
        self.drains().count()
    }

    /// The real servers that drain, longest first, and for how long.
    pub(crate) fn oldest(
        &self,
        now: Instant,
    ) -> impl Iterator<Item = (ServiceAddress, RealServerAddress, Duration)> {
        let mut all: Vec<_> = self
            .drains()
            .map(|(virtual_server, server, drain)| (drain.since, virtual_server, server))
            .collect();
        all.sort_unstable();
        let aged = move |(since, virtual_server, server)| {
            (virtual_server, server, now.saturating_duration_since(since))
        };
        all.into_iter().map(aged)
    }

    /// Returns what has happened since the last call, and what drains now.
    pub(crate) fn take_stats(&mut self, cut_off: u64) -> DrainStats {
        DrainStats {
            started: mem::take(&mut self.started),
            ended: mem::take(&mut self.ended),
            cut_off,
            pending: self.count(),
            oldest: self.drains().map(|(.., drain)| drain.since).min(),
        }
    }

    /// How long the oldest drain has lasted; 0 without any.
    pub(crate) fn longest(&self, now: Instant) -> Duration {
        self.drains()
            .map(|(_, _, drain)| now.saturating_duration_since(drain.since))
            .max()
            .unwrap_or_default()
    }

    fn drains(&self) -> impl Iterator<Item = (ServiceAddress, RealServerAddress, &DrainTimes)> {
        self.servers.iter().flat_map(|(virtual_server, servers)| {
            servers.iter().map(|(server, drain)| (*virtual_server, *server, drain))
        })
    }
}

fn next_check(since: Instant, timeout: Option<Duration>, now: Instant) -> Instant {
    let check = now + now.saturating_duration_since(since).clamp(FIRST_CHECK, MAX_PAUSE);
    end(since, timeout).filter(|end| *end > now).map_or(check, |end| end.min(check))
}

/// When the drain timeout of a real server passes, if there is one.
fn end(since: Instant, timeout: Option<Duration>) -> Option<Instant> {
    since.checked_add(timeout?)
}

#[cfg(test)]
mod tests;
