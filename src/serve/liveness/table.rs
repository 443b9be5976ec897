//! The counters of virtual and real servers as they were last read, and what they say.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    fmt, mem,
    time::{Duration, Instant},
};

use ipvs::{
    Forwarding, ObservedRealServer, ObservedVirtualServer, RealServerAddress, ServiceAddress, Stats,
    VirtualServerId,
};
use serde::{Deserialize, Serialize};
use service::{
    DNS_PORT, EndpointAnswer, ObjectName,
    liveness::{Answering, Evidence, Liveness, TICK, is_asked},
};

/// Real servers as they were read, by virtual server.
pub(super) type RealServers = HashMap<ServiceAddress, Vec<ObservedRealServer>>;

/// The virtual servers that clients of this node have asked: most of a large cluster's never are.
#[derive(Debug, Default)]
pub(super) struct Table(HashMap<ServiceAddress, Watched>);

/// A virtual server.
#[derive(Debug, Default)]
struct Watched {
    counted: Stats,
    /// Whether the reading that is being evaluated has it.
    is_there: bool,
    /// When clients were last seen to ask.
    asked: Option<Instant>,
    /// Whether any of its endpoints has answered since the daemon started. Its counter of packets out does not show it:
    /// IPVS counts ICMP errors there.
    has_answered: bool,
    /// Only real servers that could be judged.
    real_servers: HashMap<RealServerAddress, Evidence>,
    /// Those that get no new connections: until they do, only their counters are kept.
    resting: HashMap<RealServerAddress, Evidence>,
}

/// A failing endpoint at one virtual server, and for how long clients have failed there.
pub(super) type Failing = (ServiceAddress, RealServerAddress, Answering, Duration);

/// How many endpoints do what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointCounts {
    /// They answer.
    pub answering: usize,
    /// They reject every connection or datagram.
    pub refusing: usize,
    /// They answer nothing.
    pub silent: usize,
    /// They get datagrams that are not answered by any endpoint.
    pub one_way: usize,
}

/// An endpoint that refuses or is silent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailingEndpoint {
    /// Its Service.
    pub service: ObjectName,
    /// The virtual server through which clients fail; the one through which they have failed longest.
    pub virtual_server: ServiceAddress,
    /// The endpoint's address.
    pub endpoint: RealServerAddress,
    /// What it does, and for how long.
    #[serde(flatten)]
    pub answering: Answering,
    /// For how long clients have failed there, from the first to the last one that did.
    #[serde(skip)]
    pub(crate) span: Duration,
}

impl fmt::Display for FailingEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, virtual_server, endpoint, answering, .. } = self;
        write!(f, "{service}: {endpoint} {answering} at {virtual_server}")
    }
}

impl Table {
    /// The address of a virtual server whose real servers must be read: clients have asked it since the last reading or,
    /// at its first one, ever; or something is known about one of its endpoints.
    pub(super) fn must_be_read(
        &self,
        server: &ObservedVirtualServer,
        now: Instant,
    ) -> Option<ServiceAddress> {
        let VirtualServerId::Address(address) = server.config.id else { return None };
        let watched = self.0.get(&address);
        let counted = watched.map_or_else(Stats::default, |watched| watched.counted);
        let is_asked = is_asked(address.protocol, &server.stats.since(&counted));
        (is_asked || watched.is_some_and(|watched| watched.may_change(now))).then_some(address)
    }

    /// Judges by new counters. A virtual or real server that is not there any more is forgotten.
    pub(super) fn update(
        &mut self,
        servers: &[ObservedVirtualServer],
        real_servers: &RealServers,
        now: Instant,
    ) {
        for server in servers {
            let VirtualServerId::Address(address) = server.config.id else { continue };
            let watched = match self.0.entry(address) {
                Entry::Occupied(watched) => watched.into_mut(),
                Entry::Vacant(entry) if is_asked(address.protocol, &server.stats) => {
                    entry.insert(Watched::default())
                }
                Entry::Vacant(_) => continue,
            };
            if is_asked(address.protocol, &server.stats.since(&watched.counted)) {
                watched.asked = Some(now);
            }
            watched.counted = server.stats;
            watched.is_there = true;
            if let Some(real_servers) = real_servers.get(&address) {
                watched.judge(address, real_servers, now);
            }
        }
        self.0.retain(|_, watched| mem::take(&mut watched.is_there));
    }

    /// Whether another reading may change a judgement although no connection is new.
    pub(super) fn may_change(&self, now: Instant) -> bool {
        self.0.values().any(|watched| watched.may_change(now))
    }

    /// How many endpoints do what; one at several virtual servers counts once, by the worst.
    pub(super) fn counts(&self) -> EndpointCounts {
        let mut endpoints = BTreeMap::new();
        for (address, watched) in &self.0 {
            for (endpoint, evidence) in &watched.real_servers {
                let worst = endpoints.entry((address.protocol, *endpoint)).or_insert(Liveness::Idle);
                *worst = evidence.liveness().max(*worst);
            }
        }
        let count = |liveness| endpoints.values().filter(|it| **it == liveness).count();
        EndpointCounts {
            answering: count(Liveness::Answers),
            refusing: count(Liveness::Refuses),
            silent: count(Liveness::Silent),
            one_way: count(Liveness::OneWay),
        }
    }

    /// What endpoints did that were asked lately.
    pub(super) fn answers(&self, now: Instant) -> Vec<EndpointAnswer> {
        let all = self.0.iter().flat_map(|(at, watched)| watched.real_servers.iter().map(move |it| (at, it)));
        all.filter_map(|(at, (endpoint, evidence))| evidence.answer(*at, *endpoint, now)).collect()
    }

    /// All failing endpoints.
    pub(super) fn failing(&self, now: Instant) -> Vec<Failing> {
        let all = self.0.iter().flat_map(|(address, watched)| {
            watched.real_servers.iter().map(|(endpoint, evidence)| (*address, *endpoint, evidence))
        });
        let failing = all.filter(|(.., evidence)| evidence.liveness().is_failing());
        failing.map(|(at, endpoint, it)| (at, endpoint, it.answering(now), it.failing_span())).collect()
    }

    /// The worst of what an endpoint does at these virtual servers; `None` if nothing is known.
    pub(super) fn answering(
        &self,
        at: impl Iterator<Item = ServiceAddress>,
        endpoint: RealServerAddress,
        now: Instant,
    ) -> Option<Answering> {
        let evidence = at.filter_map(|address| self.0.get(&address)?.real_servers.get(&endpoint));
        evidence.map(|evidence| evidence.answering(now)).max_by_key(|it| it.liveness)
    }
}

impl Watched {
    /// A real server is counted up to a tick later than its virtual server.
    fn may_change(&self, now: Instant) -> bool {
        self.asked.is_some_and(|asked| now.saturating_duration_since(asked) <= 2 * TICK)
            || self.real_servers.values().any(Evidence::may_change)
    }

    fn judge(&mut self, address: ServiceAddress, real_servers: &[ObservedRealServer], now: Instant) {
        // Name servers answer every question.
        let expects_answers = self.has_answered || address.port == DNS_PORT;
        let mut before = mem::take(&mut self.real_servers);
        before.extend(mem::take(&mut self.resting));
        // Answers do not pass here unless they are masqueraded.
        let judged = real_servers
            .iter()
            .filter(|it| matches!(it.config.forwarding, Forwarding::Masquerade | Forwarding::Local));
        for ObservedRealServer { config, stats, active_connections, .. } in judged {
            let known = before.remove(&config.address);
            let begin = || {
                let ipv6 = config.address.ip.is_ipv6();
                Evidence::begin(address.protocol, ipv6, stats, expects_answers, now)
            };
            if config.weight == 0 {
                let mut evidence = known.unwrap_or_else(begin);
                evidence.restart(stats, now);
                self.resting.insert(config.address, evidence);
                continue;
            }
            let evidence = match known {
                Some(mut evidence) => {
                    evidence.update(stats, *active_connections, expects_answers, now);
                    evidence
                }
                None => begin(),
            };
            self.has_answered |= evidence.liveness() == Liveness::Answers;
            self.real_servers.insert(config.address, evidence);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

    use ipvs::{Protocol, Scheduler, VirtualServer};

    use super::*;

    fn server(port: u16, connections: u64) -> ObservedVirtualServer {
        let address = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 1].into(), port };
        let mut stats = Stats::default();
        (stats.connections, stats.packets_in) = (connections, 3 * connections);
        ObservedVirtualServer::new(VirtualServer::new(address, Scheduler::RR)).stats(stats)
    }

    #[test]
    fn virtual_servers_are_remembered_once_they_are_asked_and_until_they_are_gone() {
        let (mut table, now) = (Table::default(), Instant::now());
        let mut read = |servers: &[ObservedVirtualServer]| {
            let read: Vec<_> = servers.iter().filter_map(|it| table.must_be_read(it, now)).collect();
            table.update(servers, &RealServers::new(), now + 3 * TICK);
            let mut known: Vec<_> = table.0.keys().map(|address| address.port).collect();
            known.sort_unstable();
            (read.iter().map(|address| address.port).collect::<Vec<_>>(), known)
        };
        assert_eq!(read(&[server(80, 0), server(443, 7)]), (vec![443], vec![443]));
        assert_eq!(read(&[server(80, 1), server(443, 7)]).1, [80, 443]);
        assert_eq!(read(&[server(80, 1)]).1, [80]);
        assert_eq!(read(&[server(80, 0)]).1, [80], "its counters were zeroed");
        assert_eq!(read(&[]).1, [0u16; 0]);
    }
}
