//! The answer of `top`: the traffic of each Service, as data and as text.

mod counters;
mod table;

use std::{cmp::Ordering, ops::AddAssign, time::Duration};

use ipvs::{Protocol, RealServerAddress, VirtualServerId};
use serde::{Deserialize, Serialize};
use service::{
    ObjectName,
    liveness::{Answering, Liveness},
    seconds,
};

pub use counters::{Counters, Rates};
pub use table::{Cells, HEAD, WIDTHS, lines, text};

/// The column by which rows are sorted: the most first, names in their order.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// The Service, or the address.
    Name,
    /// Connections that are established or being opened.
    Active,
    /// Those of them in SYN_RECV: the handshake is not over.
    SynRecv,
    /// Connections in any other state.
    Inactive,
    /// New connections in a second.
    Connections,
    /// Packets in a second, both ways.
    Packets,
    /// Bytes in a second, both ways.
    Bytes,
    /// Whether endpoints answer: those that do not first.
    Answer,
}

/// A frame: what went through from one reading of the table to the next.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Frame {
    /// The time between the two; in JSON, seconds.
    #[serde(with = "seconds")]
    pub interval: Duration,
    /// The rows.
    pub services: Vec<ServiceRow>,
}

/// A Service with all its addresses and ports, or a virtual server that no known Service owns.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ServiceRow {
    /// The Service; `None` where no known one owns the virtual server.
    pub service: Option<ObjectName>,
    /// Sorted; more than one only of a Service.
    pub virtual_servers: Vec<VirtualServerId>,
    /// The load of all of them together.
    #[serde(flatten)]
    pub load: Load,
    /// The worst that is known of its endpoints; `None` if nothing is known.
    // An earlier release does not print it.
    #[serde(default)]
    pub liveness: Option<Liveness>,
    /// Their real servers.
    pub real_servers: Vec<RealServerRow>,
}

/// A real server, at all virtual servers of its Service together.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RealServerRow {
    /// `None` of a firewall mark.
    pub protocol: Option<Protocol>,
    /// Its address.
    pub address: RealServerAddress,
    /// Its load.
    #[serde(flatten)]
    pub load: Load,
    /// Whether it answers; `None` if that is not known.
    #[serde(default)]
    pub answering: Option<Answering>,
}

/// The load of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Load {
    /// Connections that are established or being opened.
    pub active_connections: u64,
    /// Those of them in `SYN_RECV`; `None` if that is not known.
    pub syn_recv_connections: Option<u64>,
    /// Connections in any other state.
    pub inactive_connections: u64,
    /// The counters as they stand.
    #[serde(flatten)]
    pub counters: Counters,
    /// Their growth.
    #[serde(flatten)]
    pub rates: Rates,
}

impl Frame {
    /// Sorts Services, and the real servers of each.
    pub fn sort(&mut self, column: Column) {
        let compare = |a: (&Load, Option<Liveness>), b: (&Load, Option<Liveness>)| match column {
            Column::Answer => b.1.cmp(&a.1),
            column => a.0.compare(b.0, column),
        };
        self.services.sort_by(|a, b| {
            compare((&a.load, a.liveness), (&b.load, b.liveness)).then_with(|| a.name().cmp(&b.name()))
        });
        for row in &mut self.services {
            let key = |server: &RealServerRow| (server.protocol, server.address);
            row.real_servers.sort_by(|a, b| {
                compare((&a.load, a.liveness()), (&b.load, b.liveness())).then_with(|| key(a).cmp(&key(b)))
            });
        }
    }
}

impl ServiceRow {
    /// Its displayed name: the Service, or its address.
    pub fn name(&self) -> String {
        match (&self.service, self.virtual_servers.first()) {
            (Some(service), _) => service.to_string(),
            (None, id) => id.map(VirtualServerId::to_string).unwrap_or_default(),
        }
    }
}

impl RealServerRow {
    /// Whether it answers, if that is known.
    pub fn liveness(&self) -> Option<Liveness> {
        self.answering.map(|answering| answering.liveness)
    }

    /// Its address, and its protocol unless that is the usual one: an IPv6 address needs the room.
    pub fn name(&self) -> String {
        match self.protocol {
            Some(Protocol::Tcp) | None => self.address.to_string(),
            Some(protocol) => format!("{protocol} {}", self.address),
        }
    }
}

impl Load {
    /// The most first; names and answers say nothing here.
    fn compare(&self, other: &Self, column: Column) -> Ordering {
        match column {
            Column::Name | Column::Answer => Ordering::Equal,
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
