//! Which Services get virtual servers at all.

use crate::common::*;
use rustc_hash::FxHashSet;
use service::{Change, Event, Service, ServiceKind};

fn nothing_is_wanted(state: &service::State) -> bool {
    state.virtual_servers().count() + state.vips().count() + state.elements().count() == 0
}

#[test]
fn a_service_of_another_proxy_gets_nothing() {
    let theirs = Service { other_proxy: true, ..service("web", "10.96.0.1") };
    let state = state_of(&[theirs], &[slice("web-1", "web", &[ready("10.1.0.1").here()])]);
    assert!(nothing_is_wanted(&state));
    assert_eq!(state.desired(&name("web")), None);
}

#[test]
fn a_service_that_passes_to_another_proxy_lets_go_of_everything() {
    let ours = service("web", "10.96.0.1");
    let mut state = state_of(std::slice::from_ref(&ours), &[]);
    let touched = state.apply(Change::Services(Event::Apply(Service { other_proxy: true, ..ours })));
    assert!(touched.virtual_servers.contains(&tcp("10.96.0.1:80")));
    assert!(touched.vips.contains(&ip("10.96.0.1")));
    assert!(nothing_is_wanted(&state));
}

#[test]
fn a_headless_service_gets_nothing() {
    let headless = Service { cluster_ips: Vec::new(), ..service("web", "10.96.0.1") };
    let state = state_of(&[headless], &[slice("web-1", "web", &[ready("10.1.0.1").here()])]);
    assert!(nothing_is_wanted(&state));
    assert_eq!(state.desired(&name("web")), None);
}

#[test]
fn an_external_name_gets_nothing_even_with_a_cluster_ip_left_over() {
    let alias = Service { kind: ServiceKind::ExternalName, ..service("web", "10.96.0.1") };
    let state = state_of(&[alias], &[slice("web-1", "web", &[ready("10.1.0.1").here()])]);
    assert!(nothing_is_wanted(&state));
    assert_eq!(state.desired(&name("web")), None);
}

#[test]
fn every_type_but_external_name_is_served_at_its_cluster_ip() {
    for kind in [ServiceKind::ClusterIp, ServiceKind::NodePort, ServiceKind::LoadBalancer] {
        let state = state_of(&[Service { kind, ..service("web", "10.96.0.1") }], &[]);
        assert_eq!(virtual_servers(&state), ["TCP 10.96.0.1:80"], "{kind:?}");
    }
}

#[test]
fn the_state_is_synced_when_both_lists_have_arrived() {
    let names = FxHashSet::default;
    for lists in [
        [Change::Services(Event::Replace(Vec::new())), Change::Slices(Event::Replace(Vec::new()))],
        [Change::Slices(Event::Replace(Vec::new())), Change::Services(Event::Replace(Vec::new()))],
        [Change::Services(Event::InitDone(names())), Change::Slices(Event::InitDone(names()))],
        [Change::Slices(Event::InitDone(names())), Change::Services(Event::InitDone(names()))],
    ] {
        let mut state = state();
        state.apply(Change::Services(Event::InitApply(vec![service("web", "10.96.0.1")])));
        state.apply(Change::Slices(Event::InitApply(vec![slice("web-1", "web", &[])])));
        assert!(!state.synced());
        let synced = lists.map(|list| {
            state.apply(list);
            state.synced()
        });
        assert_eq!(synced, [false, true]);
    }
}

#[test]
fn a_list_without_a_service_deletes_it() {
    let (web, db) = (service("web", "10.96.0.1"), service("db", "10.96.0.2"));
    let mut state = state_of(&[web, db.clone()], &[]);
    let touched = state.apply(Change::Services(Event::Replace(vec![db])));
    assert_eq!(virtual_servers(&state), ["TCP 10.96.0.2:80"]);
    assert_eq!(touched.virtual_servers, [tcp("10.96.0.1:80")].into());
    assert_eq!(touched.vips, [ip("10.96.0.1")].into());
}

#[test]
fn problems_are_passed_along_with_the_object_that_has_them() {
    let mut broken = service("web", "10.96.0.1");
    broken.problems = vec!["ports[1].protocol: unknown".to_owned()];
    let mut broken_slice = slice("web-1", "web", &[]);
    broken_slice.problems = vec!["endpoints[0].addresses: empty".to_owned()];
    let mut state = state_of(&[broken, service("db", "10.96.0.2")], &[broken_slice]);

    let mut problems: Vec<_> = state.problems().map(|problem| problem.to_string()).collect();
    problems.sort();
    assert_eq!(
        problems,
        [
            "EndpointSlice default/web-1: endpoints[0].addresses: empty",
            "default/web: ports[1].protocol: unknown"
        ]
    );

    state.apply(Change::Slices(Event::Delete(name("web-1"))));
    state.apply(Change::Services(Event::Apply(service("web", "10.96.0.1"))));
    assert_eq!(state.problems().count(), 0);
}
