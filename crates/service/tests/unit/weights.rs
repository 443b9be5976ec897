//! What the weights of real servers are made of: annotations, distance and the age of endpoints.

use std::{
    collections::BTreeMap,
    num::NonZero,
    time::{Duration, Instant},
};

use crate::common::*;
use ipvs::{Protocol, Scheduler};
use service::{
    Absence, Balancing, ByDistance, Change, Distance, DistanceWeights, Ejection, Endpoint, EndpointSlice,
    Event, Options, Service, Share, State, TrafficPolicy, Weights,
};

const AT: &str = "10.96.0.1:80";
const ZONE: &str = "zone-1";

/// `default/web` with these annotations.
fn web(balancing: Balancing) -> Service {
    Service { balancing: Some(balancing.into()), ..service("web", "10.96.0.1") }
}

fn by_distance() -> Balancing {
    Balancing { distance_weights: "node=100,zone=10,other=1".parse().ok(), ..Balancing::default() }
}

fn slow_start(seconds: u64) -> Balancing {
    Balancing { slow_start: Some(Duration::from_secs(seconds)), ..Balancing::default() }
}

fn zone_weights(of: &[(&str, u16)]) -> Weights {
    of.iter().map(|(name, number)| ((*name).into(), *number)).collect()
}

/// An endpoint on this node, one in its zone, and one elsewhere.
fn at_all_distances() -> Vec<Endpoint> {
    let near = ready("10.1.0.1").here();
    let zone = Endpoint { zone: Some(ZONE.into()), ..ready("10.1.0.2") };
    let other = Endpoint { zone: Some("zone-2".into()), ..ready("10.1.0.3") };
    vec![Endpoint { zone: Some(ZONE.into()), ..near }, zone, other]
}

/// A node in [`ZONE`].
fn node_with(options: Options, service: Service, endpoints: &[Endpoint]) -> State {
    let mut state = state_with(options, &[service], &[slice("web-1", "web", endpoints)]);
    state.apply(in_zone(ZONE));
    state
}

fn placed(service: Service) -> State {
    node_with(options(), service, &at_all_distances())
}

fn weights_in(state: &State) -> Vec<u32> {
    state.virtual_server(&tcp(AT)).unwrap().real_servers.iter().map(|real| real.weight).collect()
}

fn scheduler_and_weights(state: &State) -> (Scheduler, Vec<u32>) {
    (config(state, AT).scheduler, weights_in(state))
}

fn problems(state: &State) -> Vec<String> {
    state.reports().problems().flat_map(|(_, reported)| reported.to_vec()).collect()
}

fn lacking(schedulers: &[Scheduler]) -> Change {
    Change::MissingSchedulers(schedulers.iter().map(|it| (*it, Absence::Lacking)).collect::<BTreeMap<_, _>>())
}

/// The slice `web-1` with these endpoints.
fn endpoints(addresses: &[&str]) -> Change {
    let all: Vec<_> = addresses.iter().map(|address| ready(address)).collect();
    Change::Slices(Event::Apply(slice("web-1", "web", &all)))
}

#[test]
fn without_a_setting_no_weight_depends_on_distance() {
    assert_eq!(scheduler_and_weights(&placed(service("web", "10.96.0.1"))), (Scheduler::RR, vec![1, 1, 1]));
}

#[test]
fn near_endpoints_weigh_more_and_sed_fills_them_first() {
    assert_eq!(scheduler_and_weights(&placed(web(by_distance()))), (Scheduler::SED, vec![100, 10, 1]));
    let service = || service("web", "10.96.0.1");
    let Ok(ByDistance::By(weights)) = "node=30,zone=20,other=10".parse() else { panic!() };
    let options = || Options { distance_weights: Some(weights), ..options() };
    let state = |service| node_with(options(), service, &at_all_distances());
    assert_eq!(scheduler_and_weights(&state(service())), (Scheduler::SED, vec![30, 20, 10]));
    assert_eq!(weights_in(&state(web(by_distance()))), [100, 10, 1], "the annotation counts first");
    let off = Balancing { distance_weights: Some(ByDistance::Off), ..Balancing::default() };
    assert_eq!(scheduler_and_weights(&state(web(off))), (Scheduler::RR, vec![1, 1, 1]));
}

#[test]
fn a_zone_that_becomes_known_changes_the_distance() {
    let mut state = state_of(&[web(by_distance())], &[slice("web-1", "web", &at_all_distances())]);
    assert_eq!(weights_in(&state), [100, 1, 1], "as long as the zone is not known");
    state.apply(in_zone("zone-2"));
    assert_eq!(weights_in(&state), [100, 1, 10]);
}

#[test]
fn a_weight_is_the_product_of_its_factors() {
    let balancing = Balancing { zone_weights: zone_weights(&[(ZONE, 3), ("zone-2", 5)]), ..by_distance() };
    let state = placed(web(balancing.clone()));
    assert_eq!(weights_in(&state), [300, 30, 5]);
    let parts: Vec<_> = state.explain(&name("web")).parts[0]
        .endpoints
        .iter()
        .map(|it| it.weight_parts.unwrap())
        .map(|it| (it.base, it.distance, it.scale, it.share))
        .collect();
    assert_eq!(
        parts,
        [
            (3, Some((Distance::Node, 100)), 1, Share::Whole),
            (3, Some((Distance::Zone, 10)), 1, Share::Whole),
            (5, Some((Distance::Other, 1)), 1, Share::Whole),
        ]
    );
    let ejecting = Balancing { ejection: Some(Ejection::SILENT), ..balancing };
    assert_eq!(weights_in(&placed(web(ejecting))), [30_000, 3_000, 500], "with room for shares");
}

#[test]
fn a_product_beyond_the_largest_weight_of_ipvs_is_that_weight() {
    let heavy =
        |weight| Balancing { zone_weights: zone_weights(&[(ZONE, weight), ("zone-2", 1)]), ..by_distance() };
    assert_eq!(weights_in(&placed(web(heavy(655)))), [65_500, 6_550, 1]);
    assert_eq!(weights_in(&placed(web(heavy(656)))), [65_535, 6_560, 1]);
    assert_eq!(weights_in(&placed(web(heavy(65_535)))), [65_535, 65_535, 1]);
    // The room for shares is what is left: 65535 / (300 × 100) = 2.
    let ejecting = Balancing { ejection: Some(Ejection::SILENT), ..heavy(300) };
    assert_eq!(weights_in(&placed(web(ejecting))), [60_000, 6_000, 2]);
}

#[test]
fn under_the_policy_local_distance_does_not_matter() {
    let local = Service { internal_traffic_policy: TrafficPolicy::Local, ..web(by_distance()) };
    assert_eq!(scheduler_and_weights(&placed(local)), (Scheduler::RR, vec![1]));
    let external = Service {
        kind: service::ServiceKind::NodePort,
        external_ips: ips(&["203.0.113.5"]),
        external_traffic_policy: TrafficPolicy::Local,
        ..web(by_distance())
    };
    let state = placed(external);
    assert_eq!(weights_in(&state), [100, 10, 1], "the internal policy is Cluster");
    let server = state.virtual_server(&tcp("203.0.113.5:80")).unwrap();
    assert_eq!(server.real_servers.iter().map(|real| real.weight).collect::<Vec<_>>(), [1]);
    assert_eq!(server.scheduler, Scheduler::RR);
}

#[test]
fn udp_is_balanced_without_regard_to_distance() {
    let ports = vec![port("tcp", Protocol::Tcp, 80), port("udp", Protocol::Udp, 80)];
    let both = EndpointSlice {
        ports: vec![listening("tcp", Protocol::Tcp, 8080), listening("udp", Protocol::Udp, 8080)],
        ..slice("web-1", "web", &at_all_distances())
    };
    let mut state = state_of(&[Service { ports, ..web(by_distance()) }], &[both]);
    state.apply(in_zone(ZONE));
    let of = |at| {
        let server = state.virtual_server(&at).unwrap();
        (server.scheduler, server.real_servers.iter().map(|real| real.weight).collect::<Vec<_>>())
    };
    assert_eq!(of(tcp(AT)), (Scheduler::SED, vec![100, 10, 1]));
    assert_eq!(of(udp(AT)), (Scheduler::RR, vec![1, 1, 1]));
}

#[test]
fn a_scheduler_that_the_service_names_is_kept() {
    let named = |scheduler| web(Balancing { scheduler: Some(scheduler), ..by_distance() });
    for scheduler in [Scheduler::WRR, Scheduler::WLC, Scheduler::NQ, Scheduler::MH] {
        let state = placed(named(scheduler));
        assert_eq!(scheduler_and_weights(&state), (scheduler, vec![100, 10, 1]));
        assert_eq!(problems(&state), [""; 0]);
    }
    let state = placed(named(Scheduler::LC));
    assert_eq!(scheduler_and_weights(&state), (Scheduler::LC, vec![100, 10, 1]));
    assert_eq!(
        problems(&state),
        ["metadata.annotations: weights by distance: the scheduler lc ignores weights"]
    );
}

#[test]
fn a_node_that_lacks_sed_uses_wlc_and_says_so() {
    let mut state = placed(web(by_distance()));
    state.apply(lacking(&[Scheduler::SED]));
    assert_eq!(scheduler_and_weights(&state), (Scheduler::WLC, vec![100, 10, 1]));
    let reported = problems(&state);
    assert!(
        matches!(&reported[..], [one] if one.contains("lacks the scheduler sed") && one.contains("wlc is used there")),
        "{reported:?}"
    );
    state.apply(lacking(&[]));
    assert_eq!((config(&state, AT).scheduler, problems(&state)), (Scheduler::SED, vec![]));
}

#[test]
fn hints_select_endpoints_before_their_distance_counts() {
    let hinted: Vec<_> = at_all_distances()
        .into_iter()
        .zip([&[ZONE][..], &["zone-2"], &[ZONE]])
        .map(|(endpoint, zones)| endpoint.for_zones(zones))
        .collect();
    let state = node_with(options(), web(by_distance()), &hinted);
    assert_eq!(real_servers(&state, AT), ["10.1.0.1:8080", "10.1.0.3:8080"]);
    assert_eq!(weights_in(&state), [100, 1]);
}

#[test]
fn weight_0_is_out_at_any_distance_and_without_any_share() {
    let out = |balancing| Balancing { zone_weights: zone_weights(&[(ZONE, 0)]), ..balancing };
    assert_eq!(weights_in(&placed(web(out(by_distance())))), [0, 0, 1]);
    assert_eq!(weights_in(&placed(web(out(slow_start(30))))), [0, 0, 100]);
    let all_out = EndpointSlice { weight: Some(0), ..slice("web-1", "web", &at_all_distances()) };
    let state = state_of(&[service("web", "10.96.0.1")], &[all_out]);
    assert_eq!(weights_in(&state), [0, 0, 0], "the operator may take all of them out");
}

#[test]
fn weights_that_change_with_time_have_room_for_a_hundredth() {
    let ejecting = || Options { ejection: Ejection::SILENT, ..options() };
    for (usual, weighted) in [(Scheduler::RR, Scheduler::WRR), (Scheduler::LC, Scheduler::WLC)] {
        let options = Options { scheduler: usual, ..ejecting() };
        let state = node_with(options, service("web", "10.96.0.1"), &at_all_distances());
        assert_eq!(scheduler_and_weights(&state), (weighted, vec![100; 3]));
        assert_eq!(problems(&state), [""; 0]);
    }
    let limited = Balancing { max_connections: NonZero::new(10), ..slow_start(30) };
    assert_eq!(scheduler_and_weights(&placed(web(limited.clone()))), (Scheduler::WRR, vec![20; 3]));
    let heavy = Balancing { zone_weights: zone_weights(&[(ZONE, 100)]), ..limited };
    let state = placed(web(heavy));
    assert_eq!(weights_in(&state), [200, 200, 2], "as much as leaves the limit of connections");
    assert_eq!(problems(&state), [""; 0]);
    for scheduler in [Scheduler::SH, Scheduler::MH, Scheduler::DH, Scheduler::FO, Scheduler::OVF] {
        let named = Balancing { scheduler: Some(scheduler), ..Balancing::default() };
        let state = node_with(ejecting(), web(named), &at_all_distances());
        assert_eq!(scheduler_and_weights(&state), (scheduler, vec![1; 3]), "ejected, or as before");
    }
}

#[test]
fn without_wrr_or_with_a_hash_no_endpoint_starts_slowly() {
    let mut state = state_of(&[web(slow_start(30))], &[slice("web-1", "web", &[ready("10.1.0.1")])]);
    state.apply(lacking(&[Scheduler::WRR]));
    state.apply(endpoints(&["10.1.0.1", "10.1.0.2"]));
    assert_eq!(scheduler_and_weights(&state), (Scheduler::RR, vec![1, 1]));
    assert_eq!(
        problems(&state),
        [
            "metadata.annotations[kube-ipvs.io/slow-start]: ignored: the scheduler rr does not share connections by weight"
        ]
    );
    let hashed = Balancing { scheduler: Some(Scheduler::MH), ..slow_start(30) };
    let mut state = state_of(&[web(hashed)], &[slice("web-1", "web", &[ready("10.1.0.1")])]);
    state.apply(endpoints(&["10.1.0.1", "10.1.0.2"]));
    assert_eq!(weights_in(&state), [1, 1]);
    assert_eq!(problems(&state).len(), 1);
}

#[test]
fn a_new_endpoint_beside_others_starts_with_a_tenth_and_grows() {
    let mut state = state_of(&[web(slow_start(30))], &[slice("web-1", "web", &[ready("10.1.0.1")])]);
    let begin = Instant::now();
    let after = |state: &mut State, seconds| {
        state.apply(Change::Time(begin + Duration::from_secs(seconds)));
        weights_in(state)
    };
    assert!(!state.is_unsettled());
    state.apply(endpoints(&["10.1.0.1", "10.1.0.2"]));
    assert_eq!(scheduler_and_weights(&state), (Scheduler::WRR, vec![100, 10]));
    assert!(state.is_unsettled());
    for (seconds, weight) in [(0, 10), (3, 10), (4, 20), (15, 50), (29, 90), (30, 100)] {
        assert_eq!(after(&mut state, seconds), [100, weight], "after {seconds} s");
    }
    assert!(!state.is_unsettled());
    state.apply(endpoints(&["10.1.0.1"]));
    state.apply(endpoints(&["10.1.0.1", "10.1.0.2"]));
    assert_eq!(weights_in(&state), [100, 10], "one that comes back is new");
}

#[test]
fn an_endpoint_that_becomes_ready_beside_others_starts_slowly() {
    let with = |second| Change::Slices(Event::Apply(slice("web-1", "web", &[ready("10.1.0.1"), second])));
    let mut state = state_of(&[web(slow_start(30))], &[]);
    state.apply(with(unready("10.1.0.2")));
    assert_eq!(weights_in(&state), [100]);
    state.apply(with(ready("10.1.0.2")));
    assert_eq!(weights_in(&state), [100, 10]);
}

#[test]
fn first_endpoints_and_those_of_the_first_list_start_at_once() {
    let both = [ready("10.1.0.1"), ready("10.1.0.2")];
    let mut state = state_of(&[web(slow_start(30))], &[slice("web-1", "web", &both)]);
    assert_eq!(weights_in(&state), [100, 100], "they were there before this daemon");
    state.apply(endpoints(&["10.1.0.3", "10.1.0.4"]));
    assert_eq!(weights_in(&state), [100, 100], "none is beside an older one");

    // While the first list comes in parts, the later ones are not new either.
    let mut state = State::new(options());
    state.apply(Change::Services(Event::Replace(vec![web(slow_start(30))])));
    for (part, endpoint) in [("web-1", "10.1.0.1"), ("web-2", "10.1.0.2")] {
        state.apply(Change::Slices(Event::InitApply(vec![slice(part, "web", &[ready(endpoint)])])));
    }
    assert_eq!(weights_in(&state), [100, 100]);
}

#[test]
fn without_the_annotation_a_new_endpoint_gets_all_of_its_weight() {
    let mut state = state_of(&[service("web", "10.96.0.1")], &[slice("web-1", "web", &[ready("10.1.0.1")])]);
    state.apply(endpoints(&["10.1.0.1", "10.1.0.2"]));
    assert_eq!(scheduler_and_weights(&state), (Scheduler::RR, vec![1, 1]));
    assert!(!state.is_unsettled());
}

#[test]
fn a_slow_start_ends_with_its_annotation() {
    let annotated = |slow_start| {
        let scheduler = Some(Scheduler::WLC);
        web(Balancing {
            scheduler,
            slow_start,
            zone_weights: zone_weights(&[(ZONE, 50)]),
            ..Balancing::default()
        })
    };
    let [near, zone, _] = at_all_distances().try_into().unwrap();
    let mut state = state_of(
        &[annotated(Some(Duration::from_secs(30)))],
        &[slice("web-1", "web", std::slice::from_ref(&near))],
    );
    state.apply(Change::Slices(Event::Apply(slice("web-1", "web", &[near, zone]))));
    assert_eq!(weights_in(&state), [5_000, 500]);
    state.apply(Change::Services(Event::Apply(annotated(None))));
    assert_eq!(weights_in(&state), [50, 50]);
}

#[test]
fn the_largest_factor_is_a_thousand() {
    let largest = DistanceWeights::MAX;
    let text = format!("node={largest},zone=1,other=1");
    let balancing = Balancing { distance_weights: text.parse().ok(), ..Balancing::default() };
    assert_eq!(weights_in(&placed(web(balancing))), [1_000, 1, 1]);
}
