//! Reads the counters, and the Services that own them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ipvs::{Ipvs, ObservedRealServer, Stats, VirtualServerId};
use reconciler::VirtualServerOwner;
use service::{fair_shares, in_turn};

use super::series;

/// The limit of series, as many as ten thousand virtual servers have. More would cost Prometheus more than it is
/// worth. Each namespace has the same part of them, and what it does not need goes to the others: one namespace cannot
/// hide the rest.
pub(super) const MOST_SERIES: usize = 100_000;

/// The result of one reading.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TrafficReading {
    /// Sorted by Service. Of each namespace the last ones are dropped, so that it is the same series each time.
    pub(super) virtual_servers: Vec<ServiceCounters>,
    /// The number of dropped series.
    pub(super) dropped: usize,
    /// The namespaces that they are of.
    pub(super) cut: BTreeSet<String>,
}

/// The counters of a virtual server that a Service owns.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServiceCounters {
    pub(super) owner: VirtualServerOwner,
    pub(super) stats: Stats,
    /// Its real servers, if wanted and if there is room.
    pub(super) real_servers: Vec<ObservedRealServer>,
}

impl ServiceCounters {
    fn namespace(&self) -> &str {
        self.owner.service.namespace()
    }

    /// The place in the order of Services.
    fn place(&self) -> impl Ord {
        (&self.owner.service, self.owner.address)
    }
}

impl TrafficReading {
    /// Reads the virtual servers that have an owner, and with `endpoints` their real servers. Virtual servers of
    /// others, and those that balance a mark, belong to no Service.
    pub(super) fn take(
        kernel: &mut impl Ipvs,
        owners: Vec<VirtualServerOwner>,
        endpoints: bool,
    ) -> Result<Self, ipvs::Error> {
        let mut owners: HashMap<_, _> = owners.into_iter().map(|owner| (owner.address, owner)).collect();
        let mut virtual_servers: Vec<_> = kernel
            .virtual_servers()?
            .into_iter()
            .filter_map(|server| {
                let VirtualServerId::Address(address) = server.config.id else { return None };
                let owner = owners.remove(&address)?;
                Some(ServiceCounters { owner, stats: server.stats, real_servers: Vec::new() })
            })
            .collect();
        virtual_servers.sort_unstable_by(|a, b| a.place().cmp(&b.place()));
        let room = MOST_SERIES / series::OF_VIRTUAL_SERVER;
        let mut virtual_servers = in_turn(virtual_servers, usize::MAX, |it| it.namespace().to_owned());
        let beyond = virtual_servers.split_off(room.min(virtual_servers.len()));
        virtual_servers.sort_unstable_by(|a, b| a.place().cmp(&b.place()));
        let mut reading = Self {
            virtual_servers,
            dropped: beyond.len() * series::OF_VIRTUAL_SERVER,
            cut: beyond.iter().map(|it| it.namespace().to_owned()).collect(),
        };
        if endpoints {
            reading.take_real_servers(kernel)?;
        }
        Ok(reading)
    }

    /// All real servers of a virtual server or none: half of them would look as if they were all. Where there is no
    /// room for those that are wanted, the kernel is not asked for them either.
    fn take_real_servers(&mut self, kernel: &mut impl Ipvs) -> Result<(), ipvs::Error> {
        let room = MOST_SERIES - self.virtual_servers.len() * series::OF_VIRTUAL_SERVER;
        let mut asked = BTreeMap::<_, usize>::new();
        for server in &self.virtual_servers {
            *asked.entry(server.namespace().to_owned()).or_default() +=
                server.owner.real_servers * series::OF_REAL_SERVER;
        }
        let mut rooms = fair_shares(asked, room);
        for server in &mut self.virtual_servers {
            let Some(room) = rooms.get_mut(server.namespace()) else { continue };
            let mut series = server.owner.real_servers * series::OF_REAL_SERVER;
            if series <= *room {
                server.real_servers = kernel.real_servers(server.owner.address.into())?;
                series = server.real_servers.len() * series::OF_REAL_SERVER;
            }
            match room.checked_sub(series) {
                Some(left) => *room = left,
                None => {
                    server.real_servers.clear();
                    self.dropped += series;
                    self.cut.insert(server.namespace().to_owned());
                }
            }
        }
        Ok(())
    }
}
