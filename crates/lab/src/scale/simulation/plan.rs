//! What a run of the simulation is given: the Service, its clients, and what happens.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use ipvs::{Family, Protocol};
use service::{
    Balancing, DNS_PORT, Endpoint, EndpointPort, EndpointSlice, ObjectName, Options, Service, ServicePort,
};

use super::endpoint::Capacity;

/// The shortest pause of the daemon where endpoints are ejected (`SHORT_PAUSE` in src/serve/liveness.rs).
pub(super) const SHORTEST_PAUSE: Duration = Duration::from_millis(500);

/// A run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// How many nodes with clients and how many endpoints each zone has.
    pub(super) zones: Vec<Zone>,
    pub(super) protocol: Protocol,
    /// What the annotations ask for.
    pub(super) balancing: Balancing,
    /// The mean time between two connections from one node.
    pub(super) every: Duration,
    /// How long a client waits.
    pub(super) patience: Duration,
    pub(super) capacity: Capacity,
    /// From one reading of the counters to the next.
    pub(super) pause: Duration,
    pub(super) events: Vec<(Duration, Happening)>,
    pub(super) length: Duration,
    pub(super) seed: u64,
}

/// A zone of the cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zone {
    pub(super) nodes: u32,
    pub(super) endpoints: u32,
}

/// What happens to endpoints and clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Happening {
    /// An endpoint answers no client any more.
    Silence(usize),
    /// It serves again.
    Return(usize),
    /// It has so many workers from now on.
    Workers(usize, u32),
    /// The mean time between two connections from one node.
    Every(Duration),
    /// One more endpoint is ready.
    NewEndpoint,
}

impl Plan {
    /// TCP, from so many nodes to so many endpoints in one zone, which the clients load to so many percent.
    pub(super) fn new(nodes: u32, endpoints: u32, every: Duration, percent: u32) -> Self {
        Self {
            zones: vec![Zone { nodes, endpoints }],
            protocol: Protocol::Tcp,
            balancing: Balancing::default(),
            every,
            patience: Duration::from_secs(5),
            capacity: Self::capacity(nodes, endpoints, every, percent),
            pause: SHORTEST_PAUSE,
            events: Vec::new(),
            length: Duration::from_secs(120),
            seed: 1,
        }
    }

    /// What each of so many endpoints must be able to do for clients to load it to so many percent. Requests of half a
    /// second may wait.
    fn capacity(nodes: u32, endpoints: u32, every: Duration, percent: u32) -> Capacity {
        let of_all = u128::from(nodes) * 1_000_000 / every.as_micros().max(1);
        let of_one = of_all * 100 / u128::from(percent.max(1)) / u128::from(endpoints.max(1));
        Capacity::of_rate(u32::try_from(of_one).unwrap_or(u32::MAX), Duration::from_millis(500))
    }

    /// The same with what the annotations ask for.
    pub(super) fn with(mut self, balancing: Balancing) -> Self {
        self.balancing = balancing;
        self
    }

    /// The same with something that happens so many seconds after the begin.
    pub(super) fn then(mut self, seconds: u64, happening: Happening) -> Self {
        self.events.push((Duration::from_secs(seconds), happening));
        self
    }

    /// How many endpoints there are at the begin.
    pub(super) fn endpoints(&self) -> u32 {
        self.zones.iter().map(|zone| zone.endpoints).sum()
    }

    fn port(&self) -> u16 {
        if self.protocol == Protocol::Udp { DNS_PORT } else { 80 }
    }

    /// The Service.
    pub(super) fn service(&self) -> Service {
        let port =
            ServicePort { name: Arc::from(""), protocol: self.protocol, port: self.port(), node_port: None };
        Service {
            cluster_ips: vec![IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1))],
            ports: vec![port],
            balancing: Some(Box::new(self.balancing.clone())),
            ..Service::new(ObjectName::new("default", "web"))
        }
    }

    /// Its slice with so many endpoints, each on a node of its own.
    pub(super) fn slice(&self, count: u32) -> EndpointSlice {
        let port = EndpointPort { name: Arc::from(""), protocol: self.protocol, port: 8080 };
        let endpoints = (0..count).map(|number| Endpoint {
            node: Some(Arc::from(format!("pods-{number}"))),
            zone: Some(Self::zone_name(self.zone_of(number, |zone| zone.endpoints))),
            ..Endpoint::new(IpAddr::V4(Ipv4Addr::from_bits(0x0af4_0001 + number)))
        });
        EndpointSlice {
            ports: vec![port],
            endpoints: endpoints.collect(),
            ..EndpointSlice::new(
                ObjectName::new("default", "web-1"),
                ObjectName::new("default", "web"),
                Family::V4,
            )
        }
    }

    /// The node of this number.
    pub(super) fn node(&self, number: u32) -> (Options, service::Node) {
        let zone = Some(Self::zone_name(self.zone_of(number, |zone| zone.nodes)));
        (Options::new(format!("node-{number}")), service::Node { zone, ..service::Node::default() })
    }

    /// The zone of the node or endpoint of this number. One beyond all of them is in the first zone.
    pub(super) fn zone_of(&self, number: u32, size: impl Fn(&Zone) -> u32) -> usize {
        let mut before = 0;
        let at = self.zones.iter().position(|zone| {
            before += size(zone);
            number < before
        });
        at.unwrap_or_default()
    }

    fn zone_name(zone: usize) -> Arc<str> {
        format!("zone-{zone}").into()
    }
}
