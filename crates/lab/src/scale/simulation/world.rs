//! The events of a run, one after the other: clients, endpoints, and what each node does.

mod clients;

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use fastrand::Rng;

use self::clients::Request;
use super::{
    endpoint::Endpoint,
    node::Node,
    plan::{Happening, Plan},
    seen::{Seen, WeightChange},
};

/// From one look of the writer at the time to the next (`LOOK` in crates/reconciler/src/writer.rs).
const LOOK: Duration = Duration::from_secs(1);
/// From a decision to the kernel: a changed endpoint takes 0.7 to 1.4 ms (docs/evidence/performance.md).
const SYNC: Duration = Duration::from_micros(1_400);
/// Within this time after a change of an EndpointSlice all nodes have it: 35 µs of the API server for each of 5,000
/// nodes (docs/evidence/scale.md).
const DELIVERY: Duration = Duration::from_millis(175);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Happens(Happening),
    /// A client of a node connects.
    Client(usize),
    /// A client that has no answer asks again, or gives up.
    Repeat(usize),
    GiveUp(usize),
    /// An endpoint is done with a request.
    Served(usize, usize),
    /// IPVS forgets a connection.
    Forget {
        node: usize,
        endpoint: usize,
        is_active: bool,
    },
    /// What a node does: reads the counters, looks at the time, writes weights, gets a changed EndpointSlice.
    Read(usize),
    Look(usize),
    Write(usize),
    Deliver(usize),
    /// A second is over.
    Second,
}

/// A run.
struct World<'a> {
    plan: &'a Plan,
    origin: Instant,
    rng: Rng,
    now: Duration,
    order: u64,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    every: Duration,
    nodes: Vec<Node>,
    endpoints: Vec<Endpoint>,
    requests: Vec<Request>,
    seen: Seen,
}

/// Runs a plan. The same plan always comes to the same.
pub(super) fn run(plan: &Plan) -> Result<Seen> {
    let mut world = World::new(plan).context("the Service is not served")?;
    world.begin();
    while let Some(Reverse((at, _, event))) = world.events.pop() {
        if at >= plan.length {
            break;
        }
        world.now = at;
        world.happen(event);
    }
    Ok(world.seen)
}

impl<'a> World<'a> {
    fn new(plan: &'a Plan) -> Option<Self> {
        let (origin, mut rng) = (Instant::now(), Rng::with_seed(plan.seed));
        let (service, slice) = (plan.service(), plan.slice(plan.endpoints()));
        let count = plan.zones.iter().map(|zone| zone.nodes).sum();
        let nodes = (0..count).map(|number| {
            let (options, node) = plan.node(number);
            Node::new(options, &service, &slice, node, origin, &mut rng)
        });
        let nodes = nodes.collect::<Option<Vec<_>>>()?;
        Some(Self {
            plan,
            origin,
            now: Duration::ZERO,
            order: 0,
            events: BinaryHeap::new(),
            every: plan.every,
            nodes,
            endpoints: (0..plan.endpoints()).map(|_| Endpoint::new(plan.capacity)).collect(),
            requests: Vec::new(),
            seen: Seen::default(),
            rng,
        })
    }

    fn begin(&mut self) {
        for node in 0..self.nodes.len() {
            let first = self.within(self.plan.pause);
            self.plan_in(first, Event::Read(node));
            let first = self.within(LOOK);
            self.plan_in(first, Event::Look(node));
            let first = self.random(self.every);
            self.plan_in(first, Event::Client(node));
        }
        let plan = self.plan;
        for (at, happening) in &plan.events {
            self.plan_in(*at, Event::Happens(*happening));
        }
        self.plan_in(Duration::from_secs(1), Event::Second);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Happens(happening) => self.change(happening),
            Event::Client(node) => {
                let next = self.random(self.every);
                self.plan_in(next, Event::Client(node));
                self.connect(node);
            }
            Event::Repeat(request) => self.repeat(request),
            Event::GiveUp(request) => self.give_up(request),
            Event::Served(endpoint, request) => self.served(endpoint, request),
            Event::Forget { node, endpoint, is_active } => self.connections(node, endpoint, |it| {
                let count = if is_active { &mut it.active } else { &mut it.inactive };
                *count = count.saturating_sub(1);
            }),
            Event::Read(node) => self.read(node),
            Event::Look(node) => self.look(node),
            Event::Write(node) => self.write(node),
            Event::Deliver(node) => {
                let slice = self.plan.slice(u32::try_from(self.endpoints.len()).unwrap_or(u32::MAX));
                let at = self.origin + self.now;
                if let Some(it) = self.nodes.get_mut(node) {
                    it.replace(&slice, at, &mut self.rng);
                    self.plan_in(SYNC, Event::Write(node));
                }
            }
            Event::Second => {
                let out = self.nodes.iter().map(Node::out).sum();
                let faults = self.nodes.iter().filter(|it| it.has_fault()).count();
                self.seen.end_second(self.now, out, faults);
                self.plan_in(Duration::from_secs(1), Event::Second);
            }
        }
    }

    fn change(&mut self, happening: Happening) {
        match happening {
            Happening::Silence(number) => {
                self.endpoints.get_mut(number).into_iter().for_each(Endpoint::fall_silent);
            }
            Happening::Return(number) => {
                self.endpoints.get_mut(number).into_iter().for_each(|it| it.is_silent = false);
            }
            Happening::Workers(number, workers) => {
                self.endpoints.get_mut(number).into_iter().for_each(|it| it.capacity.workers = workers);
            }
            Happening::Every(every) => self.every = every,
            Happening::NewEndpoint => {
                self.endpoints.push(Endpoint::new(self.plan.capacity));
                for node in 0..self.nodes.len() {
                    let delay = self.within(DELIVERY);
                    self.plan_in(delay, Event::Deliver(node));
                }
            }
        }
    }

    fn read(&mut self, node: usize) {
        let (origin, now) = (self.origin, self.now);
        if self.nodes.get_mut(node).is_some_and(|it| it.read(origin, now)) {
            self.plan_in(SYNC, Event::Write(node));
        }
        self.plan_in(self.plan.pause, Event::Read(node));
    }

    fn look(&mut self, node: usize) {
        let at = self.origin + self.now;
        if self.nodes.get_mut(node).is_some_and(|it| it.pass_time(at)) {
            self.plan_in(SYNC, Event::Write(node));
        }
        self.plan_in(LOOK, Event::Look(node));
    }

    fn write(&mut self, node: usize) {
        let Some(it) = self.nodes.get_mut(node) else { return };
        let written = it.write();
        let at = self.now;
        self.seen.weights.extend(written.into_iter().map(|written| WeightChange { at, node, written }));
    }

    fn plan_in(&mut self, delay: Duration, event: Event) {
        self.order += 1;
        self.events.push(Reverse((self.now + delay, self.order, event)));
    }

    /// A random time with this mean.
    fn random(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.rng.f64()).ln())
    }

    fn within(&mut self, time: Duration) -> Duration {
        time.mul_f64(self.rng.f64())
    }
}
