//! How the connections of one Service are balanced, where its annotations say so.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZero,
};

use crate::common::*;
use ipvs::{Scheduler, ServiceFlags};
use service::{Absence, Balancing, Change, Endpoint, EndpointSlice, Event, Options, Service, State, Weights};

const AT: &str = "10.96.0.1:80";

/// `default/web` with these annotations.
fn web(balancing: Balancing) -> Service {
    Service { balancing: Some(balancing.into()), ..service("web", "10.96.0.1") }
}

fn with_scheduler(scheduler: Scheduler) -> Balancing {
    Balancing { scheduler: Some(scheduler), ..Balancing::default() }
}

fn weights(of: &[(&str, u16)]) -> Weights {
    of.iter().map(|(name, number)| ((*name).into(), *number)).collect()
}

/// An endpoint on a node, in a zone; an empty name is none.
fn located(address: &str, node: &str, zone: &str) -> Endpoint {
    let unless_empty = |name: &str| (!name.is_empty()).then(|| name.into());
    Endpoint { node: unless_empty(node), zone: unless_empty(zone), ..ready(address) }
}

/// The weights of the real servers, in the order of their addresses.
fn weights_in(state: &State) -> Vec<u32> {
    state.virtual_server(&tcp(AT)).unwrap().real_servers.iter().map(|real| real.weight).collect()
}

#[test]
fn a_scheduler_of_its_own_comes_with_the_flags_that_suit_it() {
    let (fallback, port) = (ServiceFlags::SCHEDULER_1, ServiceFlags::SCHEDULER_2);
    for (scheduler, flags) in
        [(Scheduler::WRR, ServiceFlags::empty()), (Scheduler::SH, fallback), (Scheduler::MH, fallback | port)]
    {
        let config = config(&state_of(&[web(with_scheduler(scheduler))], &[]), AT);
        assert_eq!((config.scheduler, config.flags), (scheduler, flags));
    }
}

#[test]
fn flags_that_are_named_take_the_place_of_those_that_suit() {
    let flags = |named| {
        let balancing = Balancing { scheduler_flags: Some(named), ..with_scheduler(Scheduler::MH) };
        config(&state_of(&[web(balancing)], &[]), AT).flags
    };
    assert_eq!(flags(ServiceFlags::SCHEDULER_2), ServiceFlags::SCHEDULER_2);
    assert_eq!(flags(ServiceFlags::empty()), ServiceFlags::empty());
    assert_eq!(flags(ServiceFlags::ONE_PACKET), ServiceFlags::empty(), "not a flag of a scheduler");
}

#[test]
fn the_weight_is_that_of_the_node_then_of_the_zone_then_of_the_slice() {
    let balancing = Balancing {
        node_weights: weights(&[("n1", 5)]),
        zone_weights: weights(&[("a", 3), ("b", 2)]),
        ..Balancing::default()
    };
    let endpoints = [
        located("10.1.0.1", "n1", "a"),
        located("10.1.0.2", "n2", "a"),
        located("10.1.0.3", "n1", ""),
        located("10.1.0.4", "", "b"),
        located("10.1.0.5", "n2", "c"),
        located("10.1.0.6", "", ""),
    ];
    let light = slice("web-1", "web", &endpoints);
    assert_eq!(
        weights_in(&state_of(&[web(balancing.clone())], std::slice::from_ref(&light))),
        [5, 3, 5, 2, 1, 1]
    );
    let heavy = EndpointSlice { weight: Some(10), ..light };
    assert_eq!(weights_in(&state_of(&[web(balancing)], std::slice::from_ref(&heavy))), [5, 3, 5, 2, 10, 10]);
    assert_eq!(weights_in(&state_of(&[service("web", "10.96.0.1")], &[heavy])), [10; 6]);
}

#[test]
fn a_slice_may_come_before_the_service_that_weighs_its_endpoints() {
    let endpoints = [located("10.1.0.1", "n1", "a"), located("10.1.0.2", "n2", "b")];
    let mut state = state_of(&[], &[slice("web-1", "web", &endpoints)]);
    let balancing = Balancing { zone_weights: weights(&[("b", 7)]), ..Balancing::default() };
    state.apply(Change::Services(Event::Apply(web(balancing))));
    assert_eq!(weights_in(&state), [1, 7]);
    let touched = state.apply(Change::Services(Event::Apply(service("web", "10.96.0.1"))));
    assert_eq!(touched.virtual_servers, BTreeSet::from([tcp(AT)]));
    assert_eq!(weights_in(&state), [1, 1]);
}

#[test]
fn every_real_server_has_the_limit_of_connections() {
    let limited = |most, below| {
        let balancing = Balancing {
            max_connections: NonZero::new(most),
            resume_below: NonZero::new(below),
            ..Balancing::default()
        };
        let state = state_of(&[web(balancing)], &[slice("web-1", "web", &[ready("10.1.0.1")])]);
        let real = state.virtual_server(&tcp(AT)).unwrap().real_servers[0];
        (real.upper_threshold, real.lower_threshold)
    };
    assert_eq!(limited(100, 0), (100, 0), "the kernel has a rule of its own for when to begin again");
    assert_eq!(limited(100, 80), (100, 80));
    assert_eq!(limited(100, 101), (100, 100), "the kernel refuses more");
    assert_eq!(limited(0, 80), (0, 0));
}

#[test]
fn a_scheduler_that_the_kernel_lacks_is_replaced_by_the_default_and_reported() {
    let balancing = Balancing {
        scheduler_flags: Some(ServiceFlags::SCHEDULER_2),
        zone_weights: weights(&[("a", 3)]),
        ..with_scheduler(Scheduler::MH)
    };
    let endpoints = [located("10.1.0.1", "n1", "a")];
    let mut state =
        state_of(&[web(balancing), service("other", "10.96.0.2")], &[slice("web-1", "web", &endpoints)]);
    assert_eq!(state.reports().problems().count(), 0);
    let before = state.reports_revision();

    let touched = state.apply(Change::MissingSchedulers(BTreeMap::from([(Scheduler::MH, Absence::Lacking)])));
    assert_eq!(touched.virtual_servers, BTreeSet::from([tcp(AT)]), "the other does not ask for it");
    let fallen_back = config(&state, AT);
    assert_eq!((fallen_back.scheduler, fallen_back.flags), (Scheduler::RR, ServiceFlags::empty()));
    assert_eq!(weights_in(&state), [3]);
    let problems = [
        "metadata.annotations: the kernel of node node-a lacks the scheduler mh (module ip_vs_mh); rr is used there. \
         With the module loaded, kube-ipvs resync tries again",
        "metadata.annotations: the scheduler rr ignores weights",
    ];
    let reported: Vec<_> =
        state.reports().problems().map(|(service, reported)| (service.clone(), reported.to_vec())).collect();
    assert_eq!(reported, [(name("web"), problems.map(str::to_owned).into())]);
    assert_ne!(state.reports_revision(), before);
    let explanation = state.explain(&name("web"));
    assert_eq!(explanation.balancing.unwrap().scheduler, Scheduler::RR);
    assert_eq!(explanation.problems, problems.map(|it| format!("default/web: {it}")));

    state.apply(Change::MissingSchedulers(BTreeMap::from([(Scheduler::MH, Absence::NotLoaded)])));
    let reported = state.explain(&name("web")).problems;
    assert!(reported[0].contains("mh is not loaded on node node-a"), "{reported:?}");

    state.apply(Change::MissingSchedulers(BTreeMap::new()));
    assert_eq!(config(&state, AT).scheduler, Scheduler::MH);
    assert_eq!(state.reports().problems().count(), 0);
}

#[test]
fn wrr_has_no_limit_with_weights_that_make_its_search_too_long() {
    let asked = |scheduler, weight, of_slice: u16| {
        let balancing = Balancing {
            node_weights: weights(&[("n1", weight)]),
            max_connections: NonZero::new(10),
            resume_below: NonZero::new(5),
            ..with_scheduler(scheduler)
        };
        let slice = EndpointSlice {
            weight: Some(of_slice),
            ..slice("web-1", "web", &[located("10.1.0.1", "n1", "a")])
        };
        let state = state_of(&[web(balancing)], &[slice]);
        let config = config(&state, AT);
        let real_servers = &state.virtual_server(&tcp(AT)).unwrap().real_servers;
        let thresholds: Vec<_> =
            real_servers.iter().map(|it| (it.upper_threshold, it.lower_threshold)).collect();
        (config.scheduler, thresholds, state.explain(&name("web")).problems)
    };
    let limited = vec![(10, 5)];
    for (weight, of_slice) in [(256, 1), (1, 256)] {
        assert_eq!(asked(Scheduler::WRR, weight, of_slice), (Scheduler::WRR, limited.clone(), vec![]));
    }
    assert_eq!(asked(Scheduler::WLC, 65_535, 1), (Scheduler::WLC, limited, vec![]));
    for (weight, of_slice) in [(257, 1), (1, 257)] {
        let (scheduler, thresholds, problems) = asked(Scheduler::WRR, weight, of_slice);
        assert_eq!((scheduler, thresholds), (Scheduler::WRR, vec![(0, 0)]));
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("ignored: with a weight of 257, above 256, the scheduler wrr"));
    }
}

#[test]
fn weights_that_the_scheduler_never_looks_at_are_named() {
    let reported = |scheduler, node_weights| {
        let balancing = Balancing { scheduler, node_weights, ..Balancing::default() };
        state_of(&[web(balancing)], &[]).explain(&name("web")).problems
    };
    for scheduler in Scheduler::ALL {
        let ignored = [Scheduler::RR, Scheduler::LC, Scheduler::DH].contains(&scheduler);
        let expected =
            format!("default/web: metadata.annotations: the scheduler {scheduler} ignores weights");
        let expected: Vec<_> = ignored.then_some(expected).into_iter().collect();
        assert_eq!(reported(Some(scheduler), weights(&[("n1", 5)])), expected);
        assert_eq!(reported(Some(scheduler), Weights::default()), [""; 0]);
    }
    assert_eq!(reported(None, weights(&[("n1", 0)])), [""; 0], "every scheduler respects 0");
    assert_eq!(reported(None, weights(&[("n1", 5)])).len(), 1, "that of every Service is rr");
}

#[test]
fn a_scheduler_that_needs_weights_and_has_none_is_named() {
    for scheduler in [Scheduler::FO, Scheduler::OVF] {
        let plain = slice("web-1", "web", &[ready("10.1.0.1")]);
        let reported = |balancing: Balancing, slices: &[EndpointSlice]| {
            state_of(&[web(balancing)], slices).explain(&name("web")).problems
        };
        let problems = reported(with_scheduler(scheduler), std::slice::from_ref(&plain));
        assert!(
            matches!(&problems[..], [one] if one.contains(&format!("without weights the scheduler {scheduler}"))),
            "{problems:?}"
        );
        let heavy = EndpointSlice { weight: Some(10), ..plain.clone() };
        assert_eq!(reported(with_scheduler(scheduler), &[heavy]), [""; 0]);
        assert_eq!(reported(with_scheduler(scheduler), &[]), [""; 0], "too early to say");
        let weighed = Balancing { zone_weights: weights(&[("a", 3)]), ..with_scheduler(scheduler) };
        assert_eq!(reported(weighed, &[plain]), [""; 0]);
    }
}

#[test]
fn a_scheduler_that_is_everybodys_is_never_missing() {
    let mut state = state_of(&[web(with_scheduler(Scheduler::RR))], &[]);
    state.apply(Change::MissingSchedulers(BTreeMap::from([(Scheduler::RR, Absence::Lacking)])));
    assert_eq!(config(&state, AT).scheduler, Scheduler::RR);
    assert_eq!(state.reports().problems().count(), 0);
}

#[test]
fn problems_of_a_service_and_its_slices_are_reported_by_service() {
    let wrong = |problem: &str| vec![problem.to_owned()];
    let service = Service { problems: wrong("spec.ports[0].port: not set"), ..service("web", "10.96.0.1") };
    let slice = EndpointSlice { problems: wrong("ports[0].port: not set"), ..slice("web-1", "web", &[]) };
    let mut state = state_of(&[service], &[slice]);
    let reported = |state: &State| {
        state.reports().problems().flat_map(|(_, reported)| reported.to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(
        reported(&state),
        ["spec.ports[0].port: not set", "EndpointSlice default/web-1: ports[0].port: not set"]
    );
    state.apply(Change::Slices(Event::Delete(name("web-1"))));
    assert_eq!(reported(&state), ["spec.ports[0].port: not set"]);
    state.apply(Change::Services(Event::Delete(name("web"))));
    assert_eq!(reported(&state), [""; 0]);
}

#[test]
fn what_is_explained_is_what_counts() {
    let balancing = Balancing {
        node_weights: weights(&[("n1", 5)]),
        max_connections: NonZero::new(100),
        ..with_scheduler(Scheduler::MH)
    };
    let endpoints = [located("10.1.0.1", "n1", ""), located("10.1.0.2", "n2", "")];
    let explanation = state_of(&[web(balancing)], &[slice("web-1", "web", &endpoints)]).explain(&name("web"));
    let weights: Vec<_> = explanation.parts[0].endpoints.iter().map(|it| it.weight).collect();
    assert_eq!(weights, [5, 1]);
    let balancing = explanation.balancing.unwrap();
    assert_eq!(balancing.scheduler_flags, ["mh-fallback".into(), "mh-port".into()]);
    assert_eq!((balancing.max_connections, balancing.resume_below), (Some(100), None));
    let plain = state_of(&[service("web", "10.96.0.1")], &[]).explain(&name("web"));
    assert_eq!(plain.balancing, None);
}

#[test]
fn a_service_without_annotations_has_no_problem_with_the_nodes_own_scheduler() {
    for scheduler in [Scheduler::FO, Scheduler::OVF] {
        let mut state = state_with(Options { scheduler, ..options() }, &[], &[]);
        let slice = slice("web-1", "web", &[located("10.1.0.1", "n1", "a")]);
        state.apply(Change::Services(Event::Apply(service("web", "10.96.0.1"))));
        state.apply(Change::Slices(Event::Apply(slice)));
        assert_eq!(config(&state, AT).scheduler, scheduler);
        assert_eq!(state.explain(&name("web")).problems, [""; 0]);
    }
}
