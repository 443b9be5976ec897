use ipvs::Protocol::Tcp;
use service::{
    Change, Endpoint, EndpointPort, EndpointSlice, Event, ObjectName, Options, Service, ServicePort,
};

use super::*;

/// Services by their ClusterIPs, each with so many ports and endpoints.
fn state(services: &[(&str, [u8; 4], u16, u16)]) -> State {
    let mut state = State::new(Options::new("node"));
    let (mut all, mut slices) = (Vec::new(), Vec::new());
    for (name, ip, ports, endpoints) in services {
        let (namespace, service) = name.split_once('/').unwrap();
        let name = ObjectName::new(namespace, service);
        let port =
            |port: u16| ServicePort { name: port.to_string().into(), protocol: Tcp, port, node_port: None };
        all.push(Service {
            created: Some(0),
            cluster_ips: vec![(*ip).into()],
            ports: (53..53 + *ports).map(port).collect(),
            ..Service::new(name.clone())
        });
        let port = |port: u16| EndpointPort { name: port.to_string().into(), protocol: Tcp, port };
        let endpoint = |number: u16| {
            let [high, low] = number.to_be_bytes();
            Endpoint::new([10, 244, high, low].into())
        };
        slices.push(EndpointSlice {
            ports: (53..53 + *ports).map(port).collect(),
            endpoints: (0..*endpoints).map(endpoint).collect(),
            ..EndpointSlice::new(ObjectName::new(namespace, service), name, ipvs::Family::V4)
        });
    }
    state.apply(Change::Services(Event::Replace(all)));
    state.apply(Change::Slices(Event::Replace(slices)));
    state
}

const LARGE: [u8; 4] = [10, 96, 0, 1];
const SMALL: [u8; 4] = [10, 96, 0, 2];
const DNS: [u8; 4] = [10, 96, 0, 3];

fn large_small_and_dns() -> State {
    state(&[("a/large", LARGE, 10, 100), ("b/small", SMALL, 1, 2), ("kube-system/kube-dns", DNS, 1, 2)])
}

/// Everything that is desired, in portions of so many operations.
fn divided(state: &State, waiting: &Waiting, most: usize) -> Vec<Portion> {
    let ours = watcher::Ownership {
        families: [ipvs::Family::V4].into(),
        exclude: Vec::new(),
        foreign: watcher::Foreign::Delete,
    };
    let nothing = Observed::default();
    let all = watcher::differing(state, &nothing, &ours);
    let portions = portions(all.clone(), state, &nothing, waiting, most);
    let mut together = Dirty::default();
    for portion in &portions {
        assert!(portion.keys().all(|key| !together.contains(&key)), "{portions:#?}");
        together.extend(portion.keys());
    }
    assert_eq!(together, all, "each key is in one portion");
    portions
}

/// The groups in their turn, each once.
fn turns(portions: &[Portion]) -> Vec<Group> {
    let mut groups: Vec<_> = portions.iter().flat_map(|portion| portion.groups.iter().copied()).collect();
    groups.retain(|group| group.ip().is_some());
    groups.dedup();
    groups
}

#[test]
fn urgent_services_come_first_and_costly_ones_last() {
    let portions = divided(&large_small_and_dns(), &Waiting::default(), 150);
    assert_eq!(turns(&portions), [DNS, SMALL, LARGE].map(|ip| Group::Vip(ip.into())));
    let keys = |portion: Option<&Portion>| portion.unwrap().keys().collect::<Dirty>();
    let (first, last) = (keys(portions.first()), keys(portions.last()));
    assert!(first.device && first.tables.len() == 1 && first.virtual_servers.is_empty(), "{first:?}");
    assert!(last.rules.len() == 1 && last.len() == 1, "{last:?}");
}

#[test]
fn a_service_counts_with_all_its_addresses_and_its_cluster_ip_comes_first() {
    let mut state = state(&[("a/spread", [203, 0, 113, 1], 1, 100), ("b/large", LARGE, 1, 150)]);
    let spread = Service {
        external_ips: vec![[192, 0, 2, 1].into(), [192, 0, 2, 2].into()],
        created: Some(0),
        cluster_ips: vec![[203, 0, 113, 1].into()],
        ports: vec![ServicePort { name: "53".into(), protocol: Tcp, port: 53, node_port: None }],
        ..Service::new(ObjectName::new("a", "spread"))
    };
    state.apply(Change::Services(Event::Apply(spread)));
    let ips = [LARGE, [203, 0, 113, 1], [192, 0, 2, 1], [192, 0, 2, 2]];
    assert_eq!(turns(&divided(&state, &Waiting::default(), 90)), ips.map(|ip| Group::Vip(ip.into())));
}

#[test]
fn few_operations_are_one_portion() {
    assert_eq!(divided(&large_small_and_dns(), &Waiting::default(), PORTION).len(), 1);
}

fn has(portion: &Portion, key: Key) -> bool {
    portion.keys().any(|it| it == key)
}

#[test]
fn an_address_is_bound_with_its_last_virtual_server_and_unbound_with_its_first() {
    let has_vip = |portion: &&Portion| has(portion, Key::Vip(LARGE.into()));
    let portions = divided(&large_small_and_dns(), &Waiting::default(), 150);
    let of_large: Vec<_> =
        portions.iter().filter(|portion| portion.groups.contains(&Group::Vip(LARGE.into()))).collect();
    assert!(of_large.len() >= 10, "{of_large:#?}");
    let [before @ .., last] = of_large.as_slice() else { panic!("none") };
    assert!(has_vip(last) && !before.iter().any(has_vip));
    assert!(has(before.first().unwrap(), Key::Element(Element::Vip(LARGE.into()))));

    // Now it is there, and is not wanted any more.
    let (before, nothing) = (large_small_and_dns(), state(&[]));
    let mut observed = Observed::default();
    let ours = watcher::Ownership {
        families: [ipvs::Family::V4].into(),
        exclude: Vec::new(),
        foreign: watcher::Foreign::Delete,
    };
    watcher::diff_everything(&before, &observed, &ours)
        .operations()
        .for_each(|operation| observed.carried_out(&operation));
    let all = watcher::differing(&nothing, &observed, &ours);
    let portions = portions_of_large(&all, &nothing, &observed);
    let [first, rest @ .., last] = portions.as_slice() else { panic!("{portions:#?}") };
    assert!(has_vip(&first) && !rest.iter().any(|portion| has_vip(&portion)));
    assert!(has(last, Key::Element(Element::Vip(LARGE.into()))));
}

fn portions_of_large(all: &Dirty, state: &State, observed: &Observed) -> Vec<Portion> {
    let mut portions = portions(all.clone(), state, observed, &Waiting::default(), 150);
    portions.retain(|portion| portion.groups.contains(&Group::Vip(LARGE.into())));
    portions
}

#[test]
fn one_that_waits_long_enough_comes_before_the_others() {
    let (state, mut waiting) = (large_small_and_dns(), Waiting::default());
    let large = Group::Vip(LARGE.into());
    for _ in 0..16 {
        waiting.update(&[large, large], &[]);
    }
    assert_eq!(turns(&divided(&state, &waiting, 150)), [DNS, LARGE, SMALL].map(|ip| Group::Vip(ip.into())));
    waiting.update(&[large], &[large]);
    assert_eq!(
        turns(&divided(&state, &waiting, 150)).last(),
        Some(&large),
        "it had its turn, if only in part"
    );
}

#[test]
fn rules_that_wait_long_come_before_the_services_that_take_more_than_a_portion() {
    let (state, mut waiting) = (large_small_and_dns(), Waiting::default());
    let place = |waiting: &Waiting| {
        let portions = divided(&state, waiting, 150);
        let rules = portions.iter().position(|it| has(it, Key::Rules(ipvs::Family::V4))).unwrap();
        let before: Vec<_> = turns(&portions[..rules]);
        before
    };
    let [dns, small, large] = [DNS, SMALL, LARGE].map(|ip| Group::Vip(ip.into()));
    assert_eq!(place(&waiting), [dns, small, large]);
    for _ in 0..MOST_TURNS_OF_RULES {
        waiting.update(&[Group::Rules], &[]);
    }
    assert_eq!(place(&waiting), [dns, small]);
}
