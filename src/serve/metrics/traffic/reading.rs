//! Reads the counters, and the Services that own them.

use std::collections::HashMap;

use ipvs::{Ipvs, ObservedRealServer, Stats, VirtualServerId};
use reconciler::VirtualServerOwner;

use super::series;

/// The limit of series, as many as ten thousand virtual servers have. More would cost Prometheus more than it is
/// worth.
pub(super) const MOST_SERIES: usize = 100_000;

/// The result of one reading.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TrafficReading {
    /// Sorted by Service, so that the same series are dropped each time.
    pub(super) virtual_servers: Vec<ServiceCounters>,
    /// The number of dropped series.
    pub(super) dropped: usize,
}

/// The counters of a virtual server that a Service owns.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServiceCounters {
    pub(super) holder: VirtualServerOwner,
    pub(super) stats: Stats,
    /// Its real servers, if wanted and if there is room.
    pub(super) real_servers: Vec<ObservedRealServer>,
}

impl TrafficReading {
    /// Reads the virtual servers that have an owner, and with `endpoints` their real servers. Virtual servers of others,
    /// and those that balance a mark, are nobody's Service.
    pub(super) fn take(
        kernel: &mut impl Ipvs,
        holders: Vec<VirtualServerOwner>,
        endpoints: bool,
    ) -> Result<Self, ipvs::Error> {
        let mut holders: HashMap<_, _> = holders.into_iter().map(|holder| (holder.address, holder)).collect();
        let mut virtual_servers: Vec<_> = kernel
            .virtual_servers()?
            .into_iter()
            .filter_map(|server| {
                let VirtualServerId::Address(address) = server.config.id else { return None };
                let holder = holders.remove(&address)?;
                Some(ServiceCounters { holder, stats: server.stats, real_servers: Vec::new() })
            })
            .collect();
        virtual_servers.sort_unstable_by(
            |ServiceCounters { holder: a, .. }, ServiceCounters { holder: b, .. }| {
                (&a.service, a.address).cmp(&(&b.service, b.address))
            },
        );
        let room = MOST_SERIES / series::OF_VIRTUAL_SERVER;
        let beyond = virtual_servers.len().saturating_sub(room);
        virtual_servers.truncate(room);
        let mut reading = Self { virtual_servers, dropped: beyond * series::OF_VIRTUAL_SERVER };
        if endpoints {
            reading.take_real_servers(kernel)?;
        }
        Ok(reading)
    }

    /// All real servers of a virtual server or none: half of them would look as if they were all. Where there is no room
    /// for those that are wanted, the kernel is not asked for them either.
    fn take_real_servers(&mut self, kernel: &mut impl Ipvs) -> Result<(), ipvs::Error> {
        let mut room = MOST_SERIES - self.virtual_servers.len() * series::OF_VIRTUAL_SERVER;
        for server in &mut self.virtual_servers {
            let mut series = server.holder.real_servers * series::OF_REAL_SERVER;
            if series <= room {
                server.real_servers = kernel.real_servers(server.holder.address.into())?;
                series = server.real_servers.len() * series::OF_REAL_SERVER;
            }
            match room.checked_sub(series) {
                Some(left) => room = left,
                None => {
                    server.real_servers.clear();
                    self.dropped += series;
                }
            }
        }
        Ok(())
    }
}
