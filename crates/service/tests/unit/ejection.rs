//! Which endpoints get no new connections because clients fail there, and how they come back.

mod false_faults;
mod histories;

use std::time::{Duration, Instant};

use crate::common::*;
use ipvs::{Protocol, Scheduler, ServiceAddress};
use service::{
    Answer, Answers, Balancing, Change, Ejection, EjectionCause, EjectionState, Endpoint, EndpointAnswer,
    EndpointSlice, Event, ObjectName, Options, Service, Share, State, TrafficPolicy, Weights,
};

use Answer::{Answered, Missing, Refused, Silent};

const AT: &str = "10.96.0.1:80";
const OTHER: &str = "10.96.0.2:80";

fn ejecting(ejection: Ejection) -> Options {
    Options { ejection, ..options() }
}

/// An endpoint on a node of its own, so that no two of them make their node silent.
fn alone(address: &str) -> Endpoint {
    on(&format!("node-of-{address}"), address)
}

fn on(node: &str, address: &str) -> Endpoint {
    Endpoint { node: Some(node.into()), ..ready(address) }
}

fn addresses(count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("10.1.0.{number}")).collect()
}

/// The slice `web-1` of `count` endpoints, each on a node of its own.
fn web_slice(count: usize) -> EndpointSlice {
    let all: Vec<_> = addresses(count).iter().map(|address| alone(address)).collect();
    slice("web-1", "web", &all)
}

/// A node, and the time there.
struct Node {
    state: State,
    now: Instant,
}

impl Node {
    /// A node that ejects silent endpoints, with `default/web` of so many endpoints.
    fn new(count: usize) -> Self {
        Self::with(ejecting(Ejection::SILENT), &[service("web", "10.96.0.1")], &[web_slice(count)])
    }

    fn with(options: Options, services: &[Service], slices: &[EndpointSlice]) -> Self {
        Self { state: state_with(options, services, slices), now: Instant::now() }
    }

    /// Clients have just asked these endpoints of `default/web`, by their numbers.
    fn answer(&mut self, answers: &[(u8, Answer)]) {
        let all: Vec<_> =
            answers.iter().map(|(number, answer)| (tcp(AT), format!("10.1.0.{number}"), *answer)).collect();
        self.answer_at(&all);
    }

    fn answer_at(&mut self, answers: &[(ServiceAddress, String, Answer)]) {
        let endpoints = answers
            .iter()
            .map(|(virtual_server, address, answer)| EndpointAnswer {
                virtual_server: *virtual_server,
                endpoint: real(&format!("{address}:8080")),
                answer: *answer,
                asked: self.now,
            })
            .collect();
        self.state.apply(Change::Answers(Answers { at: self.now, endpoints }));
    }

    /// Lets time pass, second by second.
    fn wait(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += Duration::from_secs(1);
            self.state.apply(Change::Time(self.now));
        }
    }

    fn weights(&self) -> Vec<u32> {
        self.weights_at(tcp(AT))
    }

    fn weights_at(&self, at: ServiceAddress) -> Vec<u32> {
        self.state.virtual_server(&at).unwrap().real_servers.iter().map(|real| real.weight).collect()
    }

    /// The ejected endpoints with their causes.
    fn ejected(&self) -> Vec<(String, EjectionCause)> {
        let all = self.state.reports().ejected().flat_map(|(_, ejected)| ejected);
        all.map(|it| (it.address.ip.to_string(), it.cause)).collect()
    }

    /// The shares of the endpoints at the first address, in their order.
    fn shares(&self) -> Vec<Share> {
        let explanation = self.state.explain(&name("web"));
        explanation.parts[0].endpoints.iter().map(|it| it.weight_parts.unwrap().share).collect()
    }

    fn replace_slice(&mut self, slice: EndpointSlice) {
        self.state.apply(Change::Slices(Event::Apply(slice)));
    }
}

#[test]
fn a_silent_endpoint_gets_no_new_connections() {
    let mut node = Node::new(3);
    assert_eq!(node.weights(), [100; 3]);
    node.answer(&[(1, Answered), (2, Silent), (3, Answered)]);
    assert_eq!(node.weights(), [100, 0, 100]);
    assert_eq!(config(&node.state, AT).scheduler, Scheduler::WRR);
    assert_eq!(node.ejected(), [("10.1.0.2".to_owned(), EjectionCause::Silent)]);
    assert_eq!(node.state.reports().ejected_count(), [1, 0]);
    node.wait(3);
    let age = Duration::from_secs(3);
    node.answer(&[(1, Answered)]);
    assert_eq!(
        node.shares(),
        [Share::Whole, Share::Ejected { cause: EjectionCause::Silent, age }, Share::Whole]
    );
}

#[test]
fn without_ejection_nothing_happens_to_a_silent_endpoint() {
    let off = Balancing { ejection: Some(Ejection::empty()), ..Balancing::default() };
    let by_annotation = Service { balancing: Some(off.into()), ..service("web", "10.96.0.1") };
    let nodes = [
        Node::with(options(), &[service("web", "10.96.0.1")], &[web_slice(3)]),
        Node::with(ejecting(Ejection::all()), &[by_annotation], &[web_slice(3)]),
    ];
    for mut node in nodes {
        node.answer(&[(1, Answered), (2, Silent), (3, Refused)]);
        assert_eq!(node.weights(), [1; 3]);
        assert_eq!(config(&node.state, AT).scheduler, Scheduler::RR);
        assert!(!node.state.is_unsettled());
    }
}

#[test]
fn an_annotation_asks_for_ejection_where_the_option_does_not() {
    let asking = Balancing { ejection: Some(Ejection::SILENT), ..Balancing::default() };
    let web = Service { balancing: Some(asking.into()), ..service("web", "10.96.0.1") };
    let mut node = Node::with(options(), &[web, service("other", "10.96.0.2")], &[web_slice(2)]);
    node.answer(&[(1, Answered), (2, Silent)]);
    assert_eq!(node.weights(), [100, 0]);
    node.state.apply(Change::Services(Event::Apply(service("web", "10.96.0.1"))));
    assert_eq!(node.weights(), [1, 1], "the annotation is gone");
    assert_eq!(node.ejected(), []);
}

#[test]
fn an_endpoint_that_refuses_is_ejected_only_where_that_is_asked_for() {
    let after = |ejection| {
        let mut node = Node::with(ejecting(ejection), &[service("web", "10.96.0.1")], &[web_slice(4)]);
        node.answer(&[(1, Answered), (2, Silent), (3, Refused), (4, Missing)]);
        node.weights()
    };
    assert_eq!(after(Ejection::SILENT), [100, 0, 100, 100]);
    assert_eq!(after(Ejection::REFUSING), [100, 100, 0, 100]);
    assert_eq!(after(Ejection::all()), [100, 0, 0, 100]);
}

#[test]
fn at_most_half_of_the_endpoints_are_out_those_that_failed_last() {
    let mut node = Node::with(ejecting(Ejection::REFUSING), &[service("web", "10.96.0.1")], &[web_slice(5)]);
    node.answer(&[(4, Refused)]);
    node.wait(1);
    node.answer(&[(1, Refused)]);
    node.wait(1);
    node.answer(&[(2, Refused), (3, Answered)]);
    assert_eq!(node.weights(), [0, 0, 100, 10, 100]);
    assert_eq!(node.shares()[3], Share::Kept { cause: EjectionCause::Refusing });
    assert_eq!(node.state.reports().ejected_count(), [2, 0]);
    node.wait(1);
    node.answer(&[(4, Answered)]);
    assert_eq!(node.shares()[3], Share::Whole, "it answers those that it got");
}

#[test]
fn of_two_endpoints_the_one_that_fails_now_is_out_and_the_other_is_back() {
    let mut node = Node::new(2);
    node.answer(&[(1, Silent), (2, Answered)]);
    assert_eq!(node.weights(), [0, 100]);
    node.wait(3);
    node.answer(&[(2, Silent)]);
    assert_eq!(node.weights(), [10, 0]);
    node.wait(1);
    node.answer(&[(1, Silent)]);
    assert_eq!(node.weights(), [0, 10], "the first still fails");
}

#[test]
fn the_last_endpoint_is_never_out() {
    let mut node = Node::new(1);
    node.answer(&[(1, Silent)]);
    assert_eq!(node.weights(), [100]);
    let mut node = Node::new(2);
    node.answer(&[(1, Silent), (2, Silent)]);
    assert_eq!(node.weights().iter().filter(|weight| **weight == 0).count(), 1);
    // Endpoints that the operator has taken out do not count.
    let out: Weights =
        ["10.1.0.1", "10.1.0.2"].map(|it| (format!("node-of-{it}").into(), 0)).into_iter().collect();
    let balancing = Balancing { node_weights: out, ..Balancing::default() };
    let web = Service { balancing: Some(balancing.into()), ..service("web", "10.96.0.1") };
    let mut node = Node::with(ejecting(Ejection::SILENT), &[web], &[web_slice(3)]);
    node.answer(&[(3, Silent)]);
    assert_eq!(node.weights(), [0, 0, 100]);
}

#[test]
fn udp_endpoints_are_ejected_only_if_they_are_known_to_answer() {
    let after = |number, answers_datagrams| {
        let balancing = Balancing { answers_datagrams, ..Balancing::default() };
        let service = Service {
            ports: vec![port("", Protocol::Udp, number)],
            balancing: Some(balancing.into()),
            ..service("web", "10.96.0.1")
        };
        let slice = EndpointSlice { ports: vec![listening("", Protocol::Udp, 8080)], ..web_slice(2) };
        let mut node = Node::with(ejecting(Ejection::SILENT), &[service], &[slice]);
        let at = udp(&format!("10.96.0.1:{number}"));
        node.answer_at(&[(at, "10.1.0.1".to_owned(), Answered), (at, "10.1.0.2".to_owned(), Silent)]);
        node.weights_at(at)
    };
    assert_eq!(after(53, false), [100, 0], "name servers answer");
    assert_eq!(after(514, false), [100, 100], "a log server does not");
    assert_eq!(after(514, true), [100, 0]);
}

#[test]
fn most_endpoints_silent_is_a_fault_of_this_node_and_ejects_none() {
    let mut node = Node::new(6);
    node.answer(&[(1, Silent), (2, Answered), (3, Answered)]);
    assert_eq!(node.weights(), [0, 100, 100, 100, 100, 100]);
    node.wait(1);
    node.answer(&[(2, Silent), (3, Silent), (4, Answered)]);
    assert!(node.state.has_fault() && node.state.is_unsettled());
    assert_eq!(node.weights(), [100; 6], "the one that was ejected is back");
    node.wait(29);
    node.answer(&[(1, Silent), (2, Answered), (3, Answered)]);
    assert_eq!(node.weights(), [100; 6], "too soon after the fault");
    node.wait(1);
    assert!(!node.state.has_fault());
    node.answer(&[(1, Silent), (2, Answered), (3, Answered)]);
    assert_eq!(node.weights(), [0, 100, 100, 100, 100, 100]);
}

#[test]
fn a_few_or_half_silent_endpoints_are_no_fault_of_this_node() {
    let mut node = Node::new(5);
    node.answer(&[(1, Silent), (2, Silent)]);
    assert!(!node.state.has_fault());
    assert_eq!(node.weights(), [0, 0, 100, 100, 100]);
    let mut node = Node::new(6);
    node.answer(&[(1, Silent), (2, Silent), (3, Silent), (4, Answered), (5, Refused), (6, Answered)]);
    assert!(!node.state.has_fault());
    assert_eq!(node.weights(), [0, 0, 0, 100, 100, 100]);
}

#[test]
fn an_endpoint_asked_long_ago_says_nothing() {
    let mut node = Node::new(2);
    let answer = EndpointAnswer {
        virtual_server: tcp(AT),
        endpoint: real("10.1.0.1:8080"),
        answer: Silent,
        asked: node.now,
    };
    node.wait(7);
    node.state.apply(Change::Answers(Answers { at: node.now, endpoints: vec![answer] }));
    assert_eq!(node.weights(), [100, 100]);
}

#[test]
fn all_endpoints_of_a_silent_node_are_ejected_even_those_not_asked() {
    let web = slice(
        "web-1",
        "web",
        &[on("dead", "10.1.0.1"), on("dead", "10.1.0.2"), alone("10.1.0.3"), alone("10.1.0.4")],
    );
    let other = slice("other-1", "other", &[on("dead", "10.1.1.1"), alone("10.1.1.2")]);
    let services = [service("web", "10.96.0.1"), service("other", "10.96.0.2")];
    let mut node = Node::with(ejecting(Ejection::SILENT), &services, &[web.clone(), other]);
    node.answer(&[(1, Silent), (3, Answered)]);
    assert_eq!(node.weights_at(tcp(OTHER)), [100, 100], "one may be its own fault");
    node.answer(&[(1, Silent), (2, Silent), (3, Answered), (4, Answered)]);
    assert_eq!(node.weights(), [0, 0, 100, 100]);
    assert_eq!(node.weights_at(tcp(OTHER)), [0, 100]);
    assert!(node.ejected().contains(&("10.1.1.1".to_owned(), EjectionCause::NodeSilent)));
}

#[test]
fn a_node_of_which_one_endpoint_answers_is_not_silent() {
    let web = slice(
        "web-1",
        "web",
        &[on("node-b", "10.1.0.1"), on("node-b", "10.1.0.2"), alone("10.1.0.3"), alone("10.1.0.4")],
    );
    let other = slice("other-1", "other", &[on("node-b", "10.1.1.1"), alone("10.1.1.2")]);
    let services = [service("web", "10.96.0.1"), service("other", "10.96.0.2")];
    let mut node = Node::with(ejecting(Ejection::SILENT), &services, &[web, other]);
    let at = |number: u8| format!("10.1.0.{number}");
    node.answer_at(&[
        (tcp(AT), at(1), Silent),
        (tcp(AT), at(2), Silent),
        (tcp(AT), at(3), Answered),
        (tcp(OTHER), "10.1.1.1".to_owned(), Answered),
    ]);
    assert_eq!(node.weights(), [0, 0, 100, 100]);
    assert_eq!(node.weights_at(tcp(OTHER)), [100, 100]);
}

#[test]
fn after_a_pause_an_endpoint_has_a_tenth_until_it_answers() {
    let mut node = Node::new(3);
    node.answer(&[(1, Silent), (2, Answered), (3, Answered)]);
    node.wait(19);
    assert_eq!(node.weights(), [0, 100, 100]);
    node.wait(1);
    assert_eq!(node.weights(), [10, 100, 100]);
    assert_eq!(node.state.reports().ejected_count(), [0, 1], "it gets connections again");
    node.answer(&[(2, Answered)]);
    assert_eq!(node.weights(), [10, 100, 100], "nothing is known of it");
    node.answer(&[(1, Answered)]);
    assert_eq!(node.weights(), [100, 100, 100]);
}

#[test]
fn on_trial_the_first_question_without_an_answer_ejects_it_for_longer() {
    let mut node = Node::new(3);
    node.answer(&[(1, Silent), (2, Answered)]);
    for pause in [20, 40, 60, 60, 60, 60] {
        node.wait(pause - 1);
        assert_eq!(node.weights(), [0, 100, 100], "for {pause} s");
        node.wait(1);
        assert_eq!(node.weights(), [10, 100, 100], "after {pause} s");
        node.answer(&[(1, Missing), (2, Missing)]);
        assert_eq!(node.weights(), [0, 100, 100], "the other is not on trial");
    }
}

#[test]
fn a_trial_without_clients_ends_after_a_minute() {
    let mut node = Node::new(3);
    node.answer(&[(1, Silent), (2, Answered)]);
    node.wait(20 + 59);
    assert_eq!(node.weights(), [10, 100, 100]);
    node.wait(1);
    assert_eq!(node.weights(), [100; 3]);
    node.wait(60);
    assert!(!node.state.is_unsettled(), "all is forgotten");
}

#[test]
fn a_change_of_readiness_clears_the_record() {
    let with = |first| slice("web-1", "web", &[first, alone("10.1.0.2"), alone("10.1.0.3")]);
    let mut node = Node::new(3);
    node.answer(&[(1, Silent), (2, Answered)]);
    assert_eq!(node.weights(), [0, 100, 100]);
    node.replace_slice(with(Endpoint { zone: Some("zone-1".into()), ..alone("10.1.0.1") }));
    assert_eq!(node.weights(), [0, 100, 100], "it is still the same");
    node.replace_slice(with(Endpoint { ready: false, serving: false, ..alone("10.1.0.1") }));
    node.replace_slice(with(alone("10.1.0.1")));
    assert_eq!(node.weights(), [100; 3], "it was restarted");
    node.answer(&[(1, Silent), (2, Answered)]);
    node.wait(20);
    assert_eq!(node.weights(), [10, 100, 100], "its first pause again");
}

#[test]
fn an_endpoint_that_leaves_the_slice_is_forgotten() {
    let mut node = Node::new(3);
    node.answer(&[(1, Silent), (2, Answered)]);
    node.replace_slice(slice("web-1", "web", &[alone("10.1.0.2"), alone("10.1.0.3")]));
    node.replace_slice(web_slice(3));
    assert_eq!(node.weights(), [100; 3]);
    node.answer(&[(1, Silent), (2, Answered)]);
    node.state.apply(Change::Slices(Event::Delete(name("web-1"))));
    node.replace_slice(web_slice(3));
    assert_eq!(node.weights(), [100; 3]);
}

#[test]
fn each_port_of_an_endpoint_is_judged_by_itself() {
    let web = Service {
        ports: vec![port("http", Protocol::Tcp, 80), port("grpc", Protocol::Tcp, 90)],
        ..service("web", "10.96.0.1")
    };
    let slice = EndpointSlice {
        ports: vec![listening("http", Protocol::Tcp, 8080), listening("grpc", Protocol::Tcp, 9090)],
        ..web_slice(2)
    };
    let mut node = Node::with(ejecting(Ejection::SILENT), &[web], &[slice]);
    node.answer(&[(1, Silent), (2, Answered)]);
    assert_eq!(node.weights(), [0, 100]);
    assert_eq!(node.weights_at(tcp("10.96.0.1:90")), [100, 100]);
}

#[test]
fn an_endpoint_that_answers_at_one_address_is_not_silent() {
    let web = Service { external_ips: ips(&["203.0.113.5"]), ..service("web", "10.96.0.1") };
    let mut node = Node::with(ejecting(Ejection::SILENT), &[web], &[web_slice(3)]);
    let external = tcp("203.0.113.5:80");
    let at = "10.1.0.1".to_owned();
    node.answer_at(&[(external, at.clone(), Silent), (tcp(AT), at.clone(), Answered)]);
    assert_eq!(node.weights(), [100; 3]);
    node.answer_at(&[(external, at.clone(), Silent), (tcp(AT), at, Missing)]);
    assert_eq!(node.weights(), [0, 100, 100]);
    assert_eq!(node.weights_at(external), [0, 100, 100], "at every address");
}

#[test]
fn an_endpoint_that_is_out_here_and_kept_there_as_the_last_is_reported_as_out() {
    let external = tcp("203.0.113.5:80");
    let web = Service {
        external_ips: ips(&["203.0.113.5"]),
        external_traffic_policy: TrafficPolicy::Local,
        ..service("web", "10.96.0.1")
    };
    let slice = slice("web-1", "web", &[on(NODE, "10.1.0.1"), alone("10.1.0.2")]);
    let mut node = Node::with(ejecting(Ejection::SILENT), &[web], &[slice]);
    node.answer(&[(1, Silent), (2, Answered)]);
    assert_eq!((node.weights(), node.weights_at(external)), (vec![0, 100], vec![100]));
    let reported = node.state.reports().ejected().flat_map(|(_, ejected)| ejected).map(|it| it.state);
    assert_eq!(reported.collect::<Vec<_>>(), [EjectionState::Out]);
}

#[test]
fn with_a_hash_an_endpoint_is_out_or_has_all_of_its_weight() {
    let named = Balancing { scheduler: Some(Scheduler::SH), ..Balancing::default() };
    let web = Service { balancing: Some(named.into()), ..service("web", "10.96.0.1") };
    let mut node = Node::with(ejecting(Ejection::SILENT), &[web], &[web_slice(2)]);
    node.answer(&[(1, Silent), (2, Answered)]);
    assert_eq!(node.weights(), [0, 1]);
    node.wait(20);
    assert_eq!(node.weights(), [1, 1]);
    node.answer(&[(1, Missing)]);
    assert_eq!(node.weights(), [0, 1], "on trial all the same");
}

#[test]
fn an_answer_changes_only_the_virtual_servers_of_its_service() {
    let services = [service("web", "10.96.0.1"), service("other", "10.96.0.2")];
    let other = slice("other-1", "other", &[alone("10.1.1.1"), alone("10.1.1.2")]);
    let mut node = Node::with(ejecting(Ejection::SILENT), &services, &[web_slice(2), other]);
    let answer = |answer, asked| EndpointAnswer {
        virtual_server: tcp(AT),
        endpoint: real("10.1.0.1:8080"),
        answer,
        asked,
    };
    let now = node.now;
    let mut apply = |endpoints| {
        let dirty = node.state.apply(Change::Answers(Answers { at: now, endpoints }));
        dirty.virtual_servers.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(apply(vec![answer(Answered, now)]), []);
    assert_eq!(apply(vec![answer(Silent, now)]), [tcp(AT)]);
    assert_eq!(apply(vec![answer(Silent, now)]), [], "it is out already");
}

#[test]
fn a_scheduler_that_would_refuse_clients_ejects_none_and_that_is_reported() {
    use ipvs::ServiceFlags;
    let after = |scheduler, flags| {
        let balancing = Balancing {
            scheduler: Some(scheduler),
            scheduler_flags: flags,
            ejection: Some(Ejection::SILENT),
            ..Balancing::default()
        };
        let web = Service { balancing: Some(balancing.into()), ..service("web", "10.96.0.1") };
        let mut node = Node::with(options(), &[web], &[web_slice(3)]);
        node.answer(&[(1, Silent), (2, Answered)]);
        (node.weights()[0], node.ejected().len(), node.state.explain(&name("web")).problems.len())
    };
    assert_eq!(after(Scheduler::DH, None), (1, 0, 1));
    assert_eq!(after(Scheduler::SH, Some(ServiceFlags::empty())), (1, 0, 1));
    assert_eq!(after(Scheduler::SH, None), (0, 1, 0));
    assert_eq!(after(Scheduler::MH, Some(ServiceFlags::SCHEDULER_1)), (0, 1, 0));
}
