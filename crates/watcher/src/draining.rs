//! Graceful termination: how a real server that is no longer wanted leaves, which ones drain, since when,
//! when each is checked, for how long it may drain, and the connections that its end cuts off. Nothing here
//! reads a clock: the caller passes the time.

use std::{
    collections::BTreeMap,
    mem,
    time::{Duration, Instant},
};

use ipvs::{Command, Protocol, RealServerAddress, ServiceAddress};

use crate::{Observed, RealServerImage};

/// The time until a draining real server is first checked. Most connections are short, and a rollout waits
/// for them.
const FIRST_CHECK: Duration = Duration::from_secs(1);

/// The longest pause between two checks. IPVS keeps a connection for two minutes after its end
/// (`IP_VS_TCP_S_TIME_WAIT` in net/netfilter/ipvs/ip_vs_proto_tcp.c), so shorter pauses gain little; and ten
/// thousand draining real servers cost a thousand short reads in a second.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// The real servers that drain: TCP ones that are no longer wanted, get no new connections, and stay until
/// their last connection ends.
///
/// Each has its own next check: after as long again as it has been draining, but not before a second and not
/// after ten seconds, and exactly at its timeout. The default has no timeout.
#[derive(Debug, Default)]
pub struct Draining {
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
    /// Whether its timeout had passed at the last [`Draining::expire`].
    expired: bool,
}

/// The drains that began and ended since the last sync, and those that go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainStats {
    /// How many began to drain.
    pub started: usize,
    /// How many ceased to drain: their connections have ended, their timeout has passed, they are wanted
    /// again, or another program has removed them.
    pub ended: usize,
    /// How many connections were cut off by the drain timeout.
    pub cut_off: u64,
    /// How many drain now.
    pub pending: usize,
    /// When the oldest of these began to drain, as far as is known: a restart forgets it.
    pub oldest: Option<Instant>,
}

impl Draining {
    /// Starts without any. No real server may drain for longer than `timeout`.
    pub fn new(timeout: Option<Duration>) -> Self {
        Self { timeout, ..Self::default() }
    }

    /// The next command for a real server that is no longer wanted; `None` while it drains.
    ///
    /// One of UDP or SCTP is removed at once. One of TCP first gets weight 0, and with that no new
    /// connections; only then does a count of 0 mean that no client is cut off, and it is removed. If it has
    /// been draining for too long, it is removed with the connections that it has.
    pub(crate) fn next_step(&self, of: &ServiceAddress, server: &RealServerImage) -> Option<Command> {
        let (id, address) = ((*of).into(), server.config.address);
        if of.protocol == Protocol::Tcp && server.config.weight != 0 {
            Some(Command::EditRealServer(id, server.config.weight(0)))
        } else if drains(of, server) && !self.has_expired(of, &address) {
            None
        } else {
            Some(Command::DeleteRealServer(id, address))
        }
    }

    /// Records that a virtual server was checked, and which of its real servers are still there and not
    /// wanted.
    pub fn update(
        &mut self,
        virtual_server: ServiceAddress,
        unwanted: impl Iterator<Item = RealServerImage>,
        now: Instant,
    ) {
        let before = self.servers.remove(&virtual_server).unwrap_or_default();
        let times = |server: RealServerImage| {
            let address = server.config.address;
            let since = before.get(&address).map_or(now, |drain| drain.since);
            (address, DrainTimes { since, next_check: next_check(since, self.timeout, now), expired: false })
        };
        let still: BTreeMap<_, _> = unwanted.filter(|it| drains(&virtual_server, it)).map(times).collect();
        let stayed = still.keys().filter(|server| before.contains_key(server)).count();
        self.started += still.len() - stayed;
        self.ended += before.len() - stayed;
        if !still.is_empty() {
            self.servers.insert(virtual_server, still);
        }
    }

    /// Records that nothing could be checked: what is due gets a later check.
    pub fn postpone_due(&mut self, now: Instant) {
        let drains = self.servers.values_mut().flat_map(BTreeMap::values_mut);
        for drain in drains.filter(|drain| drain.next_check <= now) {
            drain.next_check = next_check(drain.since, self.timeout, now);
        }
    }

    /// Marks the real servers whose timeout has passed: their next step is to be removed.
    pub fn expire(&mut self, now: Instant) {
        for drain in self.servers.values_mut().flat_map(BTreeMap::values_mut) {
            drain.expired = end(drain.since, self.timeout).is_some_and(|end| end <= now);
        }
    }

    /// Whether the timeout of a real server has passed.
    pub fn has_expired(&self, of: &ServiceAddress, server: &RealServerAddress) -> bool {
        self.servers.get(of).and_then(|servers| servers.get(server)).is_some_and(|drain| drain.expired)
    }

    /// When the next check is due, if any drain. After [`Self::update`] and [`Self::postpone_due`] that is in
    /// the future.
    pub fn next_check(&self) -> Option<Instant> {
        self.drains().map(|(_, _, drain)| drain.next_check).min()
    }

    /// The virtual servers whose check is due.
    pub fn due(&self, now: Instant) -> impl Iterator<Item = ServiceAddress> {
        let due =
            move |servers: &BTreeMap<_, DrainTimes>| servers.values().any(|drain| drain.next_check <= now);
        self.servers
            .iter()
            .filter(move |(_, servers)| due(servers))
            .map(|(virtual_server, _)| *virtual_server)
    }

    /// Every virtual server with draining real servers.
    pub fn virtual_servers(&self) -> impl Iterator<Item = ServiceAddress> {
        self.servers.keys().copied()
    }

    /// How many real servers drain.
    pub fn count(&self) -> usize {
        self.drains().count()
    }

    /// The real servers that drain, longest first, and for how long.
    pub fn oldest(
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

    /// How long the oldest drain has lasted; 0 without any.
    pub fn longest(&self, now: Instant) -> Duration {
        self.since().map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Returns what has happened since the last call, and what drains now. `cut_off` connections were
    /// [cut off](connections_cut_off) meanwhile.
    pub fn take_stats(&mut self, cut_off: u64) -> DrainStats {
        DrainStats {
            started: mem::take(&mut self.started),
            ended: mem::take(&mut self.ended),
            cut_off,
            pending: self.count(),
            oldest: self.since(),
        }
    }

    /// When the oldest drain began.
    fn since(&self) -> Option<Instant> {
        self.drains().map(|(.., drain)| drain.since).min()
    }

    fn drains(&self) -> impl Iterator<Item = (ServiceAddress, RealServerAddress, &DrainTimes)> {
        self.servers.iter().flat_map(|(virtual_server, servers)| {
            servers.iter().map(|(server, drain)| (*virtual_server, *server, drain))
        })
    }
}

/// How many connections a command cuts off: those of the TCP real server that it removes.
pub fn connections_cut_off(command: &Command, observed: &Observed) -> Option<u64> {
    let Command::DeleteRealServer(_, server) = command else { return None };
    let of = command.address()?;
    let image = observed.virtual_servers.get(&of)?.real_server(server)?;
    drains(&of, &image).then_some(image.connections)
}

/// Whether a real server that is not wanted waits for its last connection. One that still has its weight
/// could not be given weight 0: that is a failure, and not a drain.
fn drains(of: &ServiceAddress, server: &RealServerImage) -> bool {
    of.protocol == Protocol::Tcp && server.config.weight == 0 && server.connections != 0
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
