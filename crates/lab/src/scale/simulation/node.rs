//! A node: what kube-ipvs has there of one Service, and what IPVS counts for it.
//!
//! The decisions are the program's: [`State`] and [`Evidence`], one of each for every node, and an Evidence for every
//! endpoint. Modelled is what is around them: when the counters of IPVS change and are read (`src/serve/liveness.rs`), and
//! when the writer lets time pass.

use std::time::{Duration, Instant};

use fastrand::Rng;
use ipvs::{Protocol, RealServerAddress, ServiceAddress, Stats};
use service::{
    Answers, Change, EndpointSlice, Event, Options, Service, State,
    liveness::{Evidence, TICK},
};

use super::scheduler::{Balancer, Connections};

/// One node.
pub(super) struct Node {
    state: State,
    vip: ServiceAddress,
    pub(super) balancer: Balancer,
    endpoints: Vec<Watched>,
    /// The order in which the endpoints that are there at the start came into the kernel's list.
    order: Vec<usize>,
}

/// An endpoint as this node sees it.
struct Watched {
    address: RealServerAddress,
    connections: Connections,
    /// When in each tick the kernel brings its counters up to date: it spreads them (`ip_vs_est_add_kthread`).
    phase: Duration,
    tick: u128,
    now: Stats,
    shown: Stats,
    judged: Stats,
    evidence: Evidence,
}

/// What a packet or connection adds to the counters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    pub(super) connections: u64,
    pub(super) packets_in: u64,
    pub(super) bytes_in: u64,
    pub(super) packets_out: u64,
    pub(super) bytes_out: u64,
}

/// A weight that was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Written {
    pub(super) endpoint: usize,
    pub(super) before: Option<u32>,
    pub(super) after: u32,
}

impl Node {
    /// A node that has just read the lists.
    pub(super) fn new(
        options: Options,
        service: &Service,
        slice: &EndpointSlice,
        node: service::Node,
        origin: Instant,
        rng: &mut Rng,
    ) -> Option<Self> {
        let port = service.ports.first()?;
        let vip = ServiceAddress {
            protocol: port.protocol,
            ip: service.cluster_ips.first().copied()?,
            port: port.port,
        };
        let mut state = State::new(options);
        state.apply(Change::Time(origin));
        state.apply(Change::Node(Some(node)));
        state.apply(Change::Services(Event::Replace(vec![service.clone()])));
        state.apply(Change::Slices(Event::Replace(vec![slice.clone()])));
        let scheduler = state.virtual_server(&vip)?.scheduler;
        let mut this = Self {
            state,
            vip,
            balancer: Balancer::new(scheduler),
            endpoints: Vec::new(),
            order: (0..slice.endpoints.len()).collect(),
        };
        rng.shuffle(&mut this.order);
        this.watch(slice, origin, rng);
        this.write();
        Some(this)
    }

    /// The slice has changed: its further endpoints are new.
    pub(super) fn replace(&mut self, slice: &EndpointSlice, now: Instant, rng: &mut Rng) {
        self.watch(slice, now, rng);
        self.state.apply(Change::Slices(Event::Apply(slice.clone())));
    }

    fn watch(&mut self, slice: &EndpointSlice, now: Instant, rng: &mut Rng) {
        let Some(port) = slice.ports.first() else { return };
        for endpoint in slice.endpoints.iter().skip(self.endpoints.len()) {
            let nothing = Stats::default();
            self.endpoints.push(Watched {
                address: RealServerAddress { ip: endpoint.address, port: port.port },
                connections: Connections::default(),
                phase: TICK.mul_f64(rng.f64()),
                tick: 0,
                now: nothing,
                shown: nothing,
                judged: nothing,
                evidence: Evidence::begin(self.vip.protocol, false, &nothing, true, now),
            });
        }
    }

    /// Writes the weights that the state wants. Returns those that have changed.
    pub(super) fn write(&mut self) -> Vec<Written> {
        let Some(server) = self.state.virtual_server(&self.vip) else { return Vec::new() };
        let mut wanted: Vec<_> = self
            .endpoints
            .iter()
            .enumerate()
            .filter_map(|(endpoint, watched)| {
                let found = server.real_servers.binary_search_by_key(&watched.address, |it| it.address);
                Some((endpoint, server.real_servers.get(found.ok()?)?.weight))
            })
            .collect();
        // At the start each node has an order of its own.
        if self.balancer.is_empty() {
            wanted.sort_by_key(|(endpoint, _)| self.order.get(*endpoint));
        }
        let mut written = Vec::new();
        for (endpoint, after) in wanted {
            let before = self.balancer.set(endpoint, after);
            if before != Some(after) {
                written.push(Written { endpoint, before, after });
            }
        }
        written
    }

    /// Chooses the endpoint of a new connection.
    pub(super) fn choose(&mut self) -> Option<usize> {
        let endpoints = &self.endpoints;
        self.balancer.choose(|it| endpoints.get(it).map_or_else(Connections::default, |it| it.connections))
    }

    /// Counts traffic to and from an endpoint.
    pub(super) fn count(&mut self, endpoint: usize, traffic: Traffic, now: Duration) {
        let Some(watched) = self.endpoints.get_mut(endpoint) else { return };
        watched.roll(now);
        let stats = &mut watched.now;
        stats.connections += traffic.connections;
        stats.packets_in += traffic.packets_in;
        stats.bytes_in += traffic.bytes_in;
        stats.packets_out += traffic.packets_out;
        stats.bytes_out += traffic.bytes_out;
    }

    /// The connections of an endpoint.
    pub(super) fn connections(&mut self, endpoint: usize) -> Option<&mut Connections> {
        self.endpoints.get_mut(endpoint).map(|it| &mut it.connections)
    }

    /// Reads the counters, judges the endpoints, and passes the state its inputs. Returns whether weights must be written.
    pub(super) fn read(&mut self, origin: Instant, now: Duration) -> bool {
        if !self.state.ejects() {
            return false;
        }
        let at = origin + now;
        let is_udp = self.vip.protocol == Protocol::Udp;
        let mut fails = false;
        for (endpoint, watched) in self.endpoints.iter_mut().enumerate() {
            watched.roll(now);
            let Watched { connections, shown, judged, evidence, .. } = watched;
            if self.balancer.weight(endpoint) == 0 {
                evidence.restart(shown, at);
            } else if shown != judged || evidence.may_change() {
                let active = if is_udp { 0 } else { connections.active };
                evidence.update(shown, active, true, at);
                fails |= evidence.liveness().is_failing();
            }
            *judged = *shown;
        }
        if !fails && !self.state.awaits_answers() {
            return false;
        }
        let usable =
            self.endpoints.iter().enumerate().filter(|(number, _)| self.balancer.weight(*number) > 0);
        let answers = usable.filter_map(|(_, it)| it.evidence.answer(self.vip, it.address, at));
        let answers = Answers { at, endpoints: answers.collect() };
        self.state.apply(Change::Answers(answers)).virtual_servers.contains(&self.vip)
    }

    /// Lets time pass in the state. Returns whether weights must be written.
    pub(super) fn pass_time(&mut self, now: Instant) -> bool {
        self.state.is_unsettled() && self.state.apply(Change::Time(now)).virtual_servers.contains(&self.vip)
    }

    /// Whether so many endpoints are silent that the node ejects none.
    pub(super) fn has_fault(&self) -> bool {
        self.state.has_fault()
    }

    /// How many endpoints get no new connections.
    pub(super) fn out(&self) -> usize {
        (0..self.endpoints.len()).filter(|it| self.balancer.weight(*it) == 0).count()
    }
}

impl Watched {
    /// What was counted until the last tick is what a reading shows.
    fn roll(&mut self, now: Duration) {
        let tick = (now + self.phase).as_micros() / TICK.as_micros();
        if tick != self.tick {
            (self.tick, self.shown) = (tick, self.now);
        }
    }
}
