//! Why an endpoint is used or not, and a Service served or not: each answer names what decides.

use crate::common::*;
use ipvs::Protocol;
use service::{
    Change, Endpoint, EndpointReason, EndpointScope, EndpointSelection, EndpointSlice, Event, Explanation,
    ExternalIps, HintsIgnored, NotServed, Options, Service, ServiceKind, State, TrafficPolicy,
};

fn explained(state: &State) -> Explanation {
    let explanation = state.explain(&name("web"));
    // What a program reads is what was said.
    let json = serde_json::to_string(&explanation).unwrap();
    assert_eq!(serde_json::from_str::<Explanation>(&json).unwrap(), explanation);
    explanation
}

/// The selection at the ClusterIP, and what becomes of the endpoints, by address.
fn verdicts(state: &State) -> (EndpointSelection, Vec<(String, EndpointReason)>) {
    let [part] = &explained(state).parts[..] else { unreachable!("one port, one family, one policy") };
    let endpoints = part.endpoints.iter().map(|it| (it.address.ip.to_string(), it.reason));
    (part.selection, endpoints.collect())
}

fn with(service: Service, endpoints: &[Endpoint]) -> State {
    let mut state = state_of(&[service], &[slice("web-1", "web", endpoints)]);
    state.apply(in_zone("a"));
    state
}

fn web() -> Service {
    service("web", "10.96.0.1")
}

fn is(address: &str, reason: EndpointReason) -> (String, EndpointReason) {
    (address.to_owned(), reason)
}

#[test]
fn an_endpoint_is_not_used_for_its_conditions() {
    let gone = Endpoint { serving: false, ..draining("10.1.0.4") };
    let all = [ready("10.1.0.1"), unready("10.1.0.2"), draining("10.1.0.3"), gone];
    let (selection, verdicts) = verdicts(&with(web(), &all));
    assert_eq!(selection, EndpointSelection::Ready(EndpointScope::Cluster));
    let expected = [
        is("10.1.0.1", EndpointReason::Used),
        is("10.1.0.2", EndpointReason::NotReady),
        is("10.1.0.3", EndpointReason::Terminating),
        is("10.1.0.4", EndpointReason::NoLongerServing),
    ];
    assert_eq!(verdicts, expected);
}

#[test]
fn where_none_is_ready_those_that_still_serve_are_used_and_the_choice_says_so() {
    let (selection, verdicts) = verdicts(&with(web(), &[unready("10.1.0.1"), draining("10.1.0.2")]));
    assert_eq!(selection, EndpointSelection::Draining(EndpointScope::Cluster));
    assert_eq!(verdicts, [is("10.1.0.1", EndpointReason::NotReady), is("10.1.0.2", EndpointReason::Used)]);
}

#[test]
fn policy_local_passes_over_endpoints_of_other_nodes_even_if_no_others_exist() {
    let local = || Service { internal_traffic_policy: TrafficPolicy::Local, ..web() };
    let (selection, both) = verdicts(&with(local(), &[ready("10.1.0.1").here(), ready("10.1.0.2")]));
    assert_eq!(selection, EndpointSelection::Ready(EndpointScope::Local));
    assert_eq!(both, [is("10.1.0.1", EndpointReason::Used), is("10.1.0.2", EndpointReason::OnAnotherNode)]);

    let (selection, none) = verdicts(&with(local(), &[unready("10.1.0.1").here(), ready("10.1.0.2")]));
    assert_eq!(selection, EndpointSelection::Nothing);
    assert_eq!(
        none,
        [is("10.1.0.1", EndpointReason::NotReady), is("10.1.0.2", EndpointReason::OnAnotherNode)]
    );
}

#[test]
fn hints_for_other_zones_and_nodes_pass_over_an_endpoint_unless_ignored() {
    let zones = [ready("10.1.0.1").for_zones(&["a"]), ready("10.1.0.2").for_zones(&["b"])];
    let state = with(web(), &zones);
    let (selection, of_zones) = verdicts(&state);
    assert_eq!(selection, EndpointSelection::Ready(EndpointScope::HintedZone));
    assert_eq!(
        of_zones,
        [is("10.1.0.1", EndpointReason::Used), is("10.1.0.2", EndpointReason::HintedForOtherZones)]
    );
    let part = &explained(&state).parts[0];
    assert_eq!((part.zone.as_deref(), part.hints_ignored), (Some("a"), None));

    let nodes = [ready("10.1.0.1").for_nodes(&[NODE]), ready("10.1.0.2").for_nodes(&["node-b"])];
    let (selection, of_nodes) = verdicts(&with(web(), &nodes));
    assert_eq!(selection, EndpointSelection::Ready(EndpointScope::HintedNode));
    assert_eq!(
        of_nodes,
        [is("10.1.0.1", EndpointReason::Used), is("10.1.0.2", EndpointReason::HintedForOtherNodes)]
    );

    // One endpoint without a hint, and no hint counts.
    let half = with(web(), &[ready("10.1.0.1").for_zones(&["b"]), ready("10.1.0.2")]);
    assert_eq!(
        verdicts(&half).1,
        [is("10.1.0.1", EndpointReason::Used), is("10.1.0.2", EndpointReason::Used)]
    );
    assert_eq!(explained(&half).parts[0].hints_ignored, Some(HintsIgnored::NotOnEveryEndpoint));
}

#[test]
fn the_explanation_says_which_of_two_slices_with_one_address_counts() {
    let slices = [
        slice("web-1", "web", &[draining("10.1.0.1")]),
        slice("web-2", "web", &[ready("10.1.0.1")]),
        slice("web-3", "web", &[ready("10.1.0.1")]),
    ];
    let parts = explained(&state_of(&[web()], &slices)).parts;
    let said: Vec<_> = parts[0].endpoints.iter().map(|it| (it.slice.name(), it.reason)).collect();
    let expected = [
        ("web-1", EndpointReason::ListedAgain),
        ("web-2", EndpointReason::Used),
        ("web-3", EndpointReason::ListedAgain),
    ];
    assert_eq!(said, expected);
}

#[test]
fn addresses_that_choose_alike_are_one_part_and_others_have_their_own() {
    let exposed = |external_traffic_policy| Service {
        kind: ServiceKind::LoadBalancer,
        load_balancer_ips: ips(&["203.0.113.7"]),
        load_balancer_source_ranges: Some(vec!["198.51.100.0/24".parse().unwrap()]),
        external_traffic_policy,
        ..web()
    };
    let endpoints = [ready("10.1.0.1").here(), ready("10.1.0.2")];
    let alike = explained(&with(exposed(TrafficPolicy::Cluster), &endpoints)).parts;
    let [part] = &alike[..] else { unreachable!("{alike:?}") };
    assert_eq!(
        part.addresses.iter().map(|it| it.address.ip).collect::<Vec<_>>(),
        ips(&["10.96.0.1", "203.0.113.7"])
    );
    let allowed: Vec<_> = part.addresses.iter().map(|it| it.allowed_sources.clone()).collect();
    assert_eq!(allowed, [None, Some(vec![(ip("198.51.100.0"), ip("198.51.100.255"))])]);
    let written: Vec<_> = part.addresses.iter().map(|it| it.source_ranges.clone()).collect();
    assert_eq!(written, [None, Some(vec!["198.51.100.0/24".parse().unwrap()])]);

    let apart = explained(&with(exposed(TrafficPolicy::Local), &endpoints)).parts;
    let choices: Vec<_> = apart.iter().map(|part| (part.addresses[0].policy, part.selection)).collect();
    let expected = [
        (TrafficPolicy::Cluster, EndpointSelection::Ready(EndpointScope::Cluster)),
        (TrafficPolicy::Local, EndpointSelection::Ready(EndpointScope::Local)),
    ];
    assert_eq!(choices, expected);
}

#[test]
fn an_address_that_another_service_has_names_it() {
    let first = Service { created: Some(1), ..service("first", "10.96.0.1") };
    let explanation = explained(&state_of(&[web(), first], &[]));
    assert_eq!(explanation.parts[0].addresses[0].held_by, Some(name("first")));
}

#[test]
fn slices_without_the_port_or_of_an_unserved_family_are_explained() {
    let two_ports =
        Service { ports: vec![port("", Protocol::Tcp, 80), port("metrics", Protocol::Tcp, 9090)], ..web() };
    let ipv6 = slice("web-2", "web", &[ready("fd00:1::1")]);
    let slices = [slice("web-1", "web", &[ready("10.1.0.1")]), ipv6, slice("web-3", "web", &[])];
    let explanation = explained(&state_of(&[two_ports], &slices));
    assert_eq!(explanation.unused_slices, [name("web-2")]);
    assert!(explanation.parts.iter().all(|part| part.empty_slices == [name("web-3")]));
    let lacking: Vec<_> =
        explanation.parts.iter().map(|it| (&*it.port, &it.slices_without_port[..])).collect();
    assert_eq!(lacking, [("", &[][..]), ("metrics", &[name("web-1")][..])]);
}

#[test]
fn a_terminating_endpoint_is_explained_as_such_beside_hinted_ready_ones() {
    let rollout = [ready("10.1.0.1").for_zones(&["a"]), draining("10.1.0.2")];
    let (selection, verdicts) = verdicts(&with(web(), &rollout));
    assert_eq!(selection, EndpointSelection::Ready(EndpointScope::HintedZone));
    assert_eq!(verdicts, [is("10.1.0.1", EndpointReason::Used), is("10.1.0.2", EndpointReason::Terminating)]);
}

#[test]
fn an_explanation_says_why_hints_are_ignored() {
    let ignored = |state: &State| explained(state).parts[0].hints_ignored;
    let elsewhere = [ready("10.1.0.1").for_zones(&["b"]), ready("10.1.0.2").for_zones(&["c"])];
    assert_eq!(ignored(&with(web(), &elsewhere)), Some(HintsIgnored::NoneForThisNode));
    let nowhere = state_of(&[web()], &[slice("web-1", "web", &elsewhere)]);
    assert_eq!(ignored(&nowhere), Some(HintsIgnored::NodeWithoutZone));
    let local = Service { internal_traffic_policy: TrafficPolicy::Local, ..web() };
    let here = [ready("10.1.0.1").here().for_zones(&["a"])];
    assert_eq!(ignored(&with(local, &here)), Some(HintsIgnored::PolicyLocal));
    assert_eq!(ignored(&with(web(), &[ready("10.1.0.1")])), None);
}

#[test]
fn endpoints_elsewhere_stand_in_where_external_policy_local_finds_none_here() {
    let exposed = Service {
        kind: ServiceKind::LoadBalancer,
        load_balancer_ips: ips(&["203.0.113.7"]),
        external_traffic_policy: TrafficPolicy::Local,
        ..web()
    };
    let stands_in = |endpoints: &[Endpoint]| {
        let parts = explained(&with(exposed.clone(), endpoints)).parts;
        parts.iter().map(|part| part.stands_in).collect::<Vec<_>>()
    };
    assert_eq!(stands_in(&[ready("10.1.0.1")]), [false, true]);
    assert_eq!(stands_in(&[ready("10.1.0.1").here()]), [false, false]);
    assert_eq!(stands_in(&[unready("10.1.0.1")]), [false, false]);
}

#[test]
fn what_this_node_gives_to_no_service_is_explained() {
    let asking = Service {
        kind: ServiceKind::NodePort,
        external_ips: ips(&["203.0.113.7"]),
        ports: vec![with_node_port(port("", Protocol::Tcp, 80), 30_080)],
        ..web()
    };
    let off = Options { external_ips: ExternalIps::Off, ..options() };
    let expected = [
        "default/web: spec.ports[].nodePort: no address of this node serves NodePorts",
        "default/web: spec.externalIPs: the gate AllowServiceExternalIPs is off",
    ];
    assert_eq!(explained(&state_with(off, &[asking], &[])).problems, expected);
}

#[test]
fn a_service_that_is_not_served_says_why() {
    let not_served = |service: Service| explained(&state_of(&[service], &[])).not_served;
    assert_eq!(explained(&state()).not_served, Some(NotServed::Unknown));
    assert_eq!(not_served(Service { other_proxy: true, ..web() }), Some(NotServed::OtherProxy));
    let alias = Service { kind: ServiceKind::ExternalName, ..web() };
    assert_eq!(not_served(alias), Some(NotServed::ExternalName));
    assert_eq!(not_served(Service { cluster_ips: Vec::new(), ..web() }), Some(NotServed::NoClusterIp));
    assert_eq!(not_served(web()), None);
}

#[test]
fn an_unknown_name_says_whether_the_namespace_is_known_and_suggests_similar_ones() {
    let mut state = state();
    for namespace in ["default", "shop", "b", "c", "d", "e"] {
        let name = format!("{namespace}/web").parse().unwrap();
        state.apply(Change::Services(Event::Apply(Service { name, ..web() })));
    }
    let hints = |name: &str| {
        let explanation = state.explain(&name.parse().unwrap());
        assert_eq!(explanation.problems, [""; 0], "{name}");
        explanation.hints
    };
    let namesakes = "did you mean b/web, c/web, d/web, default/web, e/web?";
    assert_eq!(hints("other/web"), ["no Service of the namespace other is known", namesakes]);
    assert_eq!(hints("other/other"), ["no Service of the namespace other is known"]);
    assert_eq!(hints("default/wep"), ["did you mean default/web?"]);
    assert_eq!(hints("default/other"), [""; 0]);
    assert_eq!(hints("shop/web"), [""; 0]);
}

#[test]
fn problems_are_explained_with_the_object_that_has_them() {
    let bad = Service {
        external_ips: ips(&["127.0.0.1"]),
        problems: vec!["spec.ports[1] is wrong".to_owned()],
        ..web()
    };
    let slice =
        EndpointSlice { problems: vec!["endpoints[0] is wrong".to_owned()], ..slice("web-1", "web", &[]) };
    let mut state = state_of(&[bad], &[]);
    state.apply(Change::Slices(Event::Apply(slice)));
    let explanation = explained(&state);
    assert_eq!(
        explanation.problems,
        ["default/web: spec.ports[1] is wrong", "EndpointSlice default/web-1: endpoints[0] is wrong"]
    );
    assert_eq!(
        explanation.refused[0].to_string(),
        "spec.externalIPs: 127.0.0.1 is not served: it is a loopback address"
    );
}

#[test]
fn an_endpoint_that_is_an_address_of_a_service_is_a_problem() {
    let others = ready("10.96.0.2");
    let state = state_of(
        &[web(), service("other", "10.96.0.2")],
        &[slice("web-1", "web", &[ready("10.1.0.1"), others, ready("10.96.0.1"), unready("10.96.0.2")])],
    );
    let problem = |ip: &str| {
        format!(
            "default/web-1: {ip}:8080 is an address of a Service, and no endpoint answers there: IPVS balances a packet once"
        )
    };
    assert_eq!(explained(&state).problems, [problem("10.96.0.1"), problem("10.96.0.2")]);
}
