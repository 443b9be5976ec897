//! A frame: what one look at the table shows.

use std::{cmp::Ordering, ops::AddAssign, time::Duration};

use ipvs::{Protocol, RealServerAddress, VirtualServerId};
use serde::{Deserialize, Serialize};
use service::{ObjectName, seconds};

use super::{
    column::Column,
    counters::{Counters, Rates},
};

/// What went through from one look to the next.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(in crate::cli) struct Frame {
    /// The time between the two; in JSON, seconds.
    #[serde(with = "seconds")]
    pub(in crate::cli) interval: Duration,
    pub(in crate::cli) services: Vec<ServiceRow>,
}

/// A Service with all its addresses and ports, or a virtual server that is no known Service's.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(in crate::cli) struct ServiceRow {
    pub(in crate::cli) service: Option<ObjectName>,
    /// Sorted; more than one only of a Service.
    pub(in crate::cli) virtual_servers: Vec<VirtualServerId>,
    #[serde(flatten)]
    pub(in crate::cli) load: Load,
    pub(in crate::cli) real_servers: Vec<RealServerRow>,
}

/// A real server, at all virtual servers of its Service together.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(in crate::cli) struct RealServerRow {
    /// `None` of a firewall mark.
    pub(in crate::cli) protocol: Option<Protocol>,
    pub(in crate::cli) address: RealServerAddress,
    #[serde(flatten)]
    pub(in crate::cli) load: Load,
}

/// What a server has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(in crate::cli) struct Load {
    pub(in crate::cli) active_connections: u64,
    /// Those of them in `SYN_RECV`; `None` if that is not known.
    pub(in crate::cli) syn_recv_connections: Option<u64>,
    pub(in crate::cli) inactive_connections: u64,
    /// The counters as they stand.
    #[serde(flatten)]
    pub(in crate::cli) counters: Counters,
    #[serde(flatten)]
    pub(in crate::cli) rates: Rates,
}

impl Frame {
    /// Sorts Services, and the real servers of each.
    pub(in crate::cli) fn sort(&mut self, column: Column) {
        self.services.sort_by(|a, b| a.load.compare(&b.load, column).then_with(|| a.name().cmp(&b.name())));
        for row in &mut self.services {
            let key = |server: &RealServerRow| (server.protocol, server.address);
            row.real_servers
                .sort_by(|a, b| a.load.compare(&b.load, column).then_with(|| key(a).cmp(&key(b))));
        }
    }
}

impl ServiceRow {
    /// How it is called: the Service, or its address.
    pub(in crate::cli) fn name(&self) -> String {
        match (&self.service, self.virtual_servers.first()) {
            (Some(service), _) => service.to_string(),
            (None, id) => id.map(VirtualServerId::to_string).unwrap_or_default(),
        }
    }
}

impl RealServerRow {
    /// Its address, and its protocol unless that is the usual one: an IPv6 address needs the room.
    pub(in crate::cli) fn name(&self) -> String {
        match self.protocol {
            Some(Protocol::Tcp) | None => self.address.to_string(),
            Some(protocol) => format!("{protocol} {}", self.address),
        }
    }
}

impl Load {
    /// The most first; names say nothing here.
    fn compare(&self, other: &Self, column: Column) -> Ordering {
        match column {
            Column::Name => Ordering::Equal,
            Column::Active => other.active_connections.cmp(&self.active_connections),
            Column::SynRecv => other.syn_recv_connections.cmp(&self.syn_recv_connections),
            Column::Inactive => other.inactive_connections.cmp(&self.inactive_connections),
            Column::Connections => {
                other.rates.connections_per_second.total_cmp(&self.rates.connections_per_second)
            }
            Column::Packets => other.rates.packets().total_cmp(&self.rates.packets()),
            Column::Bytes => other.rates.bytes().total_cmp(&self.rates.bytes()),
        }
    }
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Self) {
        self.active_connections += other.active_connections;
        // Of one that is not known the sum is not known.
        let syn_recv = self.syn_recv_connections.zip(other.syn_recv_connections);
        self.syn_recv_connections = syn_recv.map(|(one, another)| one + another);
        self.inactive_connections += other.inactive_connections;
        self.counters += other.counters;
        self.rates += other.rates;
    }
}
