//! Two samples make a frame.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use ipvs::{ObservedRealServer, Protocol, RealServerAddress, Stats, VirtualServerId};
use operator::top::{Counters, Frame, Load, RealServerRow, ServiceRow};
use service::ObjectName;

use super::{Sample, names::Names};

/// Remembers the last sample. Each server is measured before those of a Service are added up: a removed one takes its
/// counters along.
#[derive(Default)]
pub(super) struct Meter {
    before: Option<Before>,
}

struct Before {
    at: Instant,
    counters: HashMap<Key, Stats>,
}

/// A virtual server, or one of its real servers.
type Key = (VirtualServerId, Option<RealServerAddress>);

/// The subject of a row: a Service, or a virtual server of no known Service.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Service(ObjectName),
    VirtualServer(VirtualServerId),
}

/// A row that is being added up.
#[derive(Default)]
struct RowSum {
    virtual_servers: Vec<VirtualServerId>,
    load: MeteredLoad,
    real_servers: BTreeMap<(Option<Protocol>, RealServerAddress), MeteredLoad>,
}

#[derive(Clone, Copy)]
struct MeteredLoad {
    active: u64,
    /// `None` if it is not known of all.
    syn_recv: Option<u64>,
    inactive: u64,
    counters: Counters,
    /// Since the last sample.
    growth: Counters,
}

impl Meter {
    /// Takes a sample, and returns the frame since the one before; `None` for the first.
    pub(super) fn frame(&mut self, sample: &Sample, names: &Names) -> Option<Frame> {
        let mut now = HashMap::with_capacity(self.before.as_ref().map_or(0, |before| before.counters.len()));
        let mut sums: BTreeMap<Group, RowSum> = BTreeMap::new();
        // A new server counted everything since.
        let mut measure = |key: Key, stats: &Stats| {
            now.insert(key, *stats);
            let before = self.before.as_ref().and_then(|before| before.counters.get(&key));
            let growth = stats.since(&before.copied().unwrap_or_default());
            (Counters::from_stats(stats), Counters::from_stats(&growth))
        };
        for (virtual_server, real_servers) in &sample.servers {
            let id = virtual_server.config.id;
            let protocol = match id {
                VirtualServerId::Address(address) => Some(address.protocol),
                VirtualServerId::Mark { .. } => None,
            };
            let service = names.owner(id).cloned();
            let sum = sums.entry(service.map_or(Group::VirtualServer(id), Group::Service)).or_default();
            sum.virtual_servers.push(id);
            sum.load.count(measure((id, None), &virtual_server.stats));
            for server in real_servers {
                let address = server.config.address;
                let syn_recv = sample.syn_recv.at(id, address);
                sum.load.connect(server, syn_recv);
                let tally = sum.real_servers.entry((protocol, address)).or_default();
                tally.connect(server, syn_recv);
                tally.count(measure((id, Some(address)), &server.stats));
            }
        }
        let before = self.before.replace(Before { at: sample.at, counters: now })?;
        let interval = sample.at.saturating_duration_since(before.at);
        let services = sums.into_iter().map(|(group, sum)| sum.row(group, interval)).collect();
        Some(Frame { interval, services })
    }
}

impl Default for MeteredLoad {
    fn default() -> Self {
        let counters = Counters::default();
        Self { active: 0, syn_recv: Some(0), inactive: 0, counters, growth: counters }
    }
}

impl MeteredLoad {
    fn count(&mut self, (counters, growth): (Counters, Counters)) {
        self.counters += counters;
        self.growth += growth;
    }

    fn connect(&mut self, server: &ObservedRealServer, syn_recv: Option<u64>) {
        self.active += u64::from(server.active_connections);
        self.syn_recv = self.syn_recv.zip(syn_recv).map(|(sum, more)| sum + more);
        self.inactive += u64::from(server.inactive_connections);
    }

    fn load(self, interval: Duration) -> Load {
        let Self { active, syn_recv, inactive, counters, growth } = self;
        Load {
            active_connections: active,
            syn_recv_connections: syn_recv,
            inactive_connections: inactive,
            counters,
            rates: growth.in_a_second(interval),
        }
    }
}

impl RowSum {
    fn row(self, group: Group, interval: Duration) -> ServiceRow {
        let Self { mut virtual_servers, load, real_servers } = self;
        virtual_servers.sort_unstable();
        let real_servers = real_servers.into_iter().map(|((protocol, address), tally)| RealServerRow {
            protocol,
            address,
            load: tally.load(interval),
            answering: None,
        });
        ServiceRow {
            service: if let Group::Service(service) = group { Some(service) } else { None },
            virtual_servers,
            load: load.load(interval),
            liveness: None,
            real_servers: real_servers.collect(),
        }
    }
}

#[cfg(test)]
mod tests;
