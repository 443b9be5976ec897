//! What holds of weights after any history of readiness, answers, time and annotations.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::ejecting;
use crate::common::*;
use ipvs::Scheduler;
use proptest::{
    collection::vec,
    option,
    prelude::*,
    sample::{select, subsequence},
};
use service::{
    Answer, Answers, Balancing, Change, Ejection, Endpoint, EndpointAnswer, EndpointSlice, Event, Options,
    Service, State, Weights,
};

/// The Services, with the addresses of their virtual servers.
const SERVICES: [(&str, &str); 2] = [("web", "10.96.0.1"), ("other", "10.96.0.2")];
/// The nodes of the endpoints, in turn.
const NODES: [&str; 3] = [NODE, "node-b", "node-c"];
/// How many endpoints a Service may have.
const ENDPOINTS: usize = 6;
/// The weight of all endpoints that annotations do not take out.
const BASE: u16 = 50;

#[derive(Clone, Debug)]
enum Step {
    /// A Service has these annotations from now on.
    Annotate(usize, Annotations),
    /// The endpoints of a Service, and whether each is ready.
    Endpoints(usize, Vec<(usize, bool)>),
    /// Clients asked endpoints of Services so many seconds ago.
    Answers(Vec<(usize, usize, Answer, u64)>),
    /// Seconds pass.
    Wait(u64),
}

#[derive(Clone, Debug)]
struct Annotations {
    scheduler: Option<Scheduler>,
    ejection: Option<Ejection>,
    by_distance: bool,
    slow_start: Option<u64>,
    /// A node that the operator has taken out.
    node_out: Option<&'static str>,
}

impl Annotations {
    fn service(&self, number: usize) -> Service {
        let (name, ip) = SERVICES[number];
        let balancing = Balancing {
            scheduler: self.scheduler,
            ejection: self.ejection,
            distance_weights: self.by_distance.then(|| "node=9,zone=3,other=2".parse().unwrap()),
            slow_start: self.slow_start.map(Duration::from_secs),
            node_weights: self.node_out.iter().map(|node| ((*node).into(), 0)).collect::<Weights>(),
            ..Balancing::default()
        };
        Service { balancing: Some(balancing.into()), ..service(name, ip) }
    }

    /// Whether nothing but the base makes the weights.
    fn are_plain(&self, options: &Options) -> bool {
        self.ejection.unwrap_or(options.ejection).is_empty() && !self.by_distance && self.slow_start.is_none()
    }
}

fn any_annotations() -> impl Strategy<Value = Annotations> {
    let scheduler = option::of(select(&[Scheduler::WRR, Scheduler::WLC, Scheduler::LC, Scheduler::MH][..]));
    let ejection = option::of((0..4u8).prop_map(Ejection::from_bits_truncate));
    let slow_start = option::weighted(0.4, select(&[10, 30, 60][..]));
    let node_out = option::weighted(0.2, select(&NODES[..]));
    (scheduler, ejection, any::<bool>(), slow_start, node_out).prop_map(
        |(scheduler, ejection, by_distance, slow_start, node_out)| Annotations {
            scheduler,
            ejection,
            by_distance,
            slow_start,
            node_out,
        },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    use Answer::{Answered, Missing, Refused, Silent};
    let service = || 0..SERVICES.len();
    let numbers: Vec<usize> = (0..ENDPOINTS).collect();
    let endpoints = subsequence(numbers, 0..=ENDPOINTS).prop_flat_map(|numbers| {
        let ready = vec(prop::bool::weighted(0.8), numbers.len());
        ready.prop_map(move |ready| numbers.iter().copied().zip(ready).collect::<Vec<_>>())
    });
    let answer = select(&[Answered, Answered, Missing, Refused, Silent, Silent][..]);
    let answers = vec((service(), 0..ENDPOINTS, answer, 0..9u64), 1..8);
    prop_oneof![
        2 => (service(), any_annotations()).prop_map(|(of, annotations)| Step::Annotate(of, annotations)),
        3 => (service(), endpoints).prop_map(|(of, endpoints)| Step::Endpoints(of, endpoints)),
        5 => answers.prop_map(Step::Answers),
        4 => (1..20u64).prop_map(Step::Wait),
    ]
}

/// The address of an endpoint of a Service.
fn address(of: usize, number: usize) -> String {
    format!("10.1.{of}.{number}")
}

fn slice_of(of: usize, endpoints: &[(usize, bool)]) -> EndpointSlice {
    let (service, _) = SERVICES[of];
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|(number, is_ready)| Endpoint {
            ready: *is_ready,
            serving: *is_ready,
            node: Some(NODES[number % NODES.len()].into()),
            ..ready(&address(of, *number))
        })
        .collect();
    EndpointSlice { weight: Some(BASE), ..slice(&format!("{service}-1"), service, &endpoints) }
}

/// A State while a history happens, and the inputs that hold.
struct History {
    state: State,
    begin: Instant,
    now: Instant,
    annotations: [Annotations; 2],
    slices: [EndpointSlice; 2],
}

impl History {
    fn new(options: &Options, annotations: [Annotations; 2], begin: Instant) -> Self {
        let slices = [0, 1].map(|of| slice_of(of, &[(0, true), (1, true), (2, true), (3, true)]));
        let services = [0, 1].map(|of| annotations[of].service(of));
        let state = state_with(options.clone(), &services, &slices);
        Self { state, begin, now: begin, annotations, slices }
    }

    fn after(options: &Options, annotations: [Annotations; 2], steps: &[Step], begin: Instant) -> Self {
        let mut history = Self::new(options, annotations, begin);
        for step in steps {
            history.take(step);
        }
        history
    }

    fn take(&mut self, step: &Step) {
        let change = match step {
            Step::Annotate(of, annotations) => {
                self.annotations[*of] = annotations.clone();
                Change::Services(Event::Apply(annotations.service(*of)))
            }
            Step::Endpoints(of, endpoints) => {
                self.slices[*of] = slice_of(*of, endpoints);
                Change::Slices(Event::Apply(self.slices[*of].clone()))
            }
            Step::Answers(answers) => Change::Answers(self.answers(answers)),
            Step::Wait(seconds) => {
                for _ in 1..*seconds {
                    self.now += Duration::from_secs(1);
                    self.apply(Change::Time(self.now));
                }
                self.now += Duration::from_secs(1);
                Change::Time(self.now)
            }
        };
        self.apply(change);
    }

    fn answers(&self, answers: &[(usize, usize, Answer, u64)]) -> Answers {
        let endpoints = answers.iter().map(|(of, number, answer, ago)| EndpointAnswer {
            virtual_server: tcp(&format!("{}:80", SERVICES[*of].1)),
            endpoint: real(&format!("{}:8080", address(*of, *number))),
            answer: *answer,
            asked: self.now.checked_sub(Duration::from_secs(*ago)).unwrap_or(self.begin),
        });
        Answers { at: self.now, endpoints: endpoints.collect() }
    }

    /// Applies a change, which must name every virtual server that it changes.
    fn apply(&mut self, change: Change) {
        let before = wanted(&self.state);
        let text = format!("{change:?}");
        let dirty = self.state.apply(change);
        let differing = difference(&before, &wanted(&self.state)).virtual_servers;
        assert!(differing.is_subset(&dirty.virtual_servers), "{differing:?} are not dirty after {text}");
    }

    /// The base and the weight of each real server, by virtual server.
    fn weights(&self) -> [Vec<(u16, u32)>; 2] {
        [0, 1].map(|of| {
            let server = self.state.virtual_server(&tcp(&format!("{}:80", SERVICES[of].1))).unwrap();
            let nodes: BTreeMap<_, _> =
                self.slices[of].endpoints.iter().map(|it| (it.address, it.node.as_deref())).collect();
            let is_out = |ip| nodes[&ip].is_some_and(|node| self.annotations[of].node_out == Some(node));
            let base = |ip| if is_out(ip) { 0 } else { BASE };
            server.real_servers.iter().map(|real| (base(real.address.ip), real.weight)).collect()
        })
    }

    /// What the same inputs lead to without a history.
    fn fresh(&self) -> Wanted {
        let services = [0, 1].map(|of| self.annotations[of].service(of));
        wanted(&state_with(self.state.options().clone(), &services, &self.slices))
    }
}

fn any_history() -> impl Strategy<Value = (Options, [Annotations; 2], Vec<Step>)> {
    let options = (0..4u8).prop_map(|bits| ejecting(Ejection::from_bits_truncate(bits)));
    (options, [any_annotations(), any_annotations()], vec(any_step(), 0..25))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn at_most_half_of_the_endpoints_that_may_have_clients_are_out(
        (options, annotations, steps) in any_history()
    ) {
        let mut history = History::new(&options, annotations, Instant::now());
        for step in steps {
            history.take(&step);
            for weights in history.weights() {
                let may_have_clients: Vec<_> = weights.iter().filter(|(base, _)| *base > 0).collect();
                let out = may_have_clients.iter().filter(|(_, weight)| *weight == 0).count();
                prop_assert!(out <= may_have_clients.len() / 2, "{:?} after {:?}", weights, step);
                prop_assert!(weights.iter().all(|(base, weight)| *base > 0 || *weight == 0));
            }
        }
    }

    #[test]
    fn a_service_that_asks_for_nothing_has_exactly_its_base_weights(
        (options, annotations, steps) in any_history()
    ) {
        let mut history = History::new(&options, annotations, Instant::now());
        for step in steps {
            history.take(&step);
            let all = history.weights().into_iter().zip(&history.annotations);
            for (weights, _) in all.filter(|(_, annotations)| annotations.are_plain(&options)) {
                prop_assert!(
                    weights.iter().all(|(base, weight)| u32::from(*base) == *weight),
                    "{:?} after {:?}", weights, step
                );
            }
        }
    }

    #[test]
    fn three_minutes_after_the_last_client_all_weights_are_whole(
        (options, annotations, steps) in any_history()
    ) {
        let mut history = History::after(&options, annotations, &steps, Instant::now());
        history.take(&Step::Wait(180));
        prop_assert_eq!(wanted(&history.state), history.fresh());
        prop_assert!(!history.state.is_unsettled());
    }

    #[test]
    fn a_change_that_comes_twice_changes_nothing_the_second_time(
        (options, annotations, steps) in any_history()
    ) {
        let mut history = History::new(&options, annotations, Instant::now());
        for step in steps {
            history.take(&step);
            let once = wanted(&history.state);
            if !matches!(step, Step::Wait(_)) {
                history.take(&step);
            }
            prop_assert_eq!(&wanted(&history.state), &once, "after {:?} twice", step);
        }
    }
}
