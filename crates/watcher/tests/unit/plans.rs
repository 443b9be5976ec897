//! What a plan does to a kernel, whatever is desired and whatever the kernel looks like.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::IpAddr,
    num::NonZero,
};

use crate::common::*;
use dummy_interface::Operation::{Bind, EnsureDevice, EnsureTunnel, RemoveTunnel, Unbind};
use ipvs::{
    Command, Family, Forwarding, PROBE_ADDRESS, Protocol, RealServer, Scheduler, ServiceAddress,
    ServiceFlags, Tunnel, VirtualServer, VirtualServerId,
};
use netfilter::{
    AllowedSource, ClusterIpFor, Element, MaxSegmentSize,
    Operation::{AddDirectReturn, AddElement, DeleteElement, InstallTable, PrepareTable, RemoveDirectReturn},
    TunnelExit,
};
use proptest::{collection::vec, prelude::*};
use service::{Balancing, Change, Dirty, EndpointSlice, Event, ObjectName, Service, State, Urgency, Weights};
use testkit::FakeKernel;
use watcher::{
    Draining, Drift, Foreign, Observed, Operation, Ownership, Plan, departing_real_servers, diff,
    differing_in, is_foreign,
};

/// Whether a virtual server that no Service wants is left alone on this node.
fn is_kept(id: VirtualServerId, ours: &Ownership, before: &FakeKernel) -> bool {
    match id {
        VirtualServerId::Mark { .. } => true,
        VirtualServerId::Address(at) => {
            let is_foreign = is_foreign(&at, &read(before));
            !ours.families.contains(&id.family())
                || ours.exclude.iter().any(|range| range.contains(&at.ip))
                || ours.foreign == Foreign::Keep && is_foreign
        }
    }
}

/// Virtual servers with their real servers, as far as they are configured.
type Servers = BTreeMap<VirtualServerId, (VirtualServer, BTreeSet<RealServer>)>;

fn servers(fake: &FakeKernel) -> Servers {
    // A masqueraded real server on this node may be reported as local: that is the kernel's business. It keeps the kind of
    // the tunnel that it has had.
    let as_asked = |mut config: RealServer| match config.forwarding {
        Forwarding::Local | Forwarding::Masquerade => {
            config.tunnel = Tunnel::default();
            config.forwarding(Forwarding::Masquerade)
        }
        _ => config,
    };
    let state = fake.state();
    let servers = state.virtual_servers.iter().map(|(id, (config, reals))| {
        (*id, (config.clone(), reals.values().map(|real| as_asked(real.config)).collect()))
    });
    servers.collect()
}

/// The virtual servers as they must be in the end: those desired with their real servers, TCP real
/// servers with connections beside them at weight 0, and those that are not ours as they were.
fn expected_servers(state: &State, before: &FakeKernel, ours: &Ownership) -> Servers {
    let mut expected = servers(before);
    expected.retain(|id, _| is_kept(*id, ours, before));
    let wanted =
        state.virtual_servers().filter(|wanted| ours.families.contains(&Family::from(wanted.address.ip)));
    for wanted in wanted {
        let mut reals: BTreeSet<RealServer> = wanted.real_servers.iter().copied().collect();
        reals.extend(draining(wanted, before));
        expected.insert(wanted.address.into(), (wanted.config(), reals));
    }
    expected
}

fn draining(wanted: &service::DesiredVirtualServer, before: &FakeKernel) -> Vec<RealServer> {
    let state = before.state();
    let Some((_, reals)) = state.virtual_servers.get(&wanted.address.into()) else { return Vec::new() };
    reals
        .values()
        .filter(|real| {
            wanted.address.protocol == Protocol::Tcp
                && real.active_connections + real.inactive_connections > 0
        })
        .filter(|real| wanted.real_servers.iter().all(|other| other.address != real.config.address))
        .map(|real| match real.config.forwarding {
            Forwarding::Local => real.config.weight(0).forwarding(Forwarding::Masquerade),
            _ => real.config.weight(0),
        })
        .collect()
}

/// A copy of a kernel, independent of it.
fn copy(fake: &FakeKernel) -> FakeKernel {
    let copy = FakeKernel::new();
    {
        let (from, mut to) = (fake.state(), copy.state());
        to.virtual_servers = from.virtual_servers.clone();
        to.dummy_interface = from.dummy_interface.clone();
        to.tables.clone_from(&from.tables);
        to.direct_return.clone_from(&from.direct_return);
        to.elements.clone_from(&from.elements);
    }
    copy
}

/// The desired keys of the families that we serve, and the keys of the other family as they were.
fn expected_of<T: Ord + Copy>(
    desired: impl Iterator<Item = T>,
    before: impl Iterator<Item = T>,
    family: impl Fn(&T) -> Family,
    ours: &Ownership,
) -> BTreeSet<T> {
    let served = |key: &T| ours.families.contains(&family(key));
    desired.filter(&served).chain(before.filter(|key| !served(key))).collect()
}

fn position(plan: &Plan, operation: impl Into<Operation>) -> Option<usize> {
    let operation = operation.into();
    plan.operations().position(|other| other == operation)
}

/// Whether one comes before the other, if both are there.
fn in_order(first: Option<usize>, then: Option<usize>) -> bool {
    first.zip(then).is_none_or(|(first, then)| first < then)
}

/// Whether an operation takes something away from a client.
fn removes(operation: &Operation, state: &State) -> bool {
    match operation {
        // Clients of a restricted address make way for others.
        Operation::Netfilter(DeleteElement(Element::AllowedSource(AllowedSource { to, .. }))) => {
            state.virtual_server(to).is_none_or(|server| server.allowed_sources.is_none())
        }
        // And what a map has for a key, for another value.
        Operation::Netfilter(DeleteElement(
            Element::ClusterIpFor(ClusterIpFor { to, .. })
            | Element::MaxSegmentSize(MaxSegmentSize { to, .. })
            | Element::TunnelExit(TunnelExit { to, .. }),
        )) => state.virtual_server(to).is_none_or(|server| server.direct_return.is_none()),
        Operation::Ipvs(Command::DeleteVirtualServer(_) | Command::DeleteRealServer(..))
        | Operation::Netfilter(DeleteElement(_) | RemoveDirectReturn(_))
        | Operation::DummyInterface(Unbind(_) | RemoveTunnel(_)) => true,
        Operation::Ipvs(Command::EditRealServer(VirtualServerId::Address(of), real)) => {
            !state.virtual_server(of).unwrap().real_servers.contains(real)
        }
        _ => false,
    }
}

/// The urgency of an operation that adds or edits something; `None` for the others.
fn urgency(operation: &Operation, state: &State) -> Option<Urgency> {
    match operation {
        _ if removes(operation, state) => None,
        Operation::Ipvs(command) => match command.virtual_server() {
            VirtualServerId::Address(at) => Some(state.urgency(&at.ip)),
            VirtualServerId::Mark { .. } => panic!("{operation}"),
        },
        Operation::DummyInterface(Bind(vip)) | Operation::Netfilter(AddElement(Element::Vip(vip))) => {
            Some(state.urgency(vip))
        }
        Operation::Netfilter(AddElement(element) | DeleteElement(element)) => {
            element.virtual_server().map(|at| state.urgency(&at.ip))
        }
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_makes_any_kernel_as_desired(
        inputs in any_inputs(), fake in any_kernel(), ours in any_ownership()
    ) {
        let (state, before) = (state(&inputs), copy(&fake));
        settle(&state, &fake, &ours);

        prop_assert_eq!(servers(&fake), expected_servers(&state, &before, &ours));
        let (now, before) = (fake.state(), before.state());
        prop_assert!(now.dummy_interface.device);
        prop_assert!(now.tables.is_superset(&ours.families));
        let vips = |before: &BTreeSet<IpAddr>, desired: Vec<IpAddr>| {
            expected_of(desired.into_iter(), before.iter().copied(), |vip| Family::from(*vip), &ours)
        };
        prop_assert_eq!(&now.dummy_interface.bound, &vips(&before.dummy_interface.bound, state.vips().copied().collect()));
        prop_assert_eq!(&now.dummy_interface.stale_bindings, &vips(&before.dummy_interface.stale_bindings, Vec::new()));
        let elements: BTreeSet<_> = now.elements.iter().copied().collect();
        let desired = state.elements();
        // Who was let in stays so until it is known who may be.
        let unknown = |it: &&Element| {
            matches!(it, Element::TunnelSender(_)) && state.unpacks(it.family()) && !state.knows_peers()
        };
        let desired = desired.chain(before.elements.iter().filter(unknown).copied());
        let expected = expected_of(desired, before.elements.iter().copied(), Element::family, &ours);
        prop_assert_eq!(elements, expected);
        let returning = || Family::BOTH.into_iter().filter(|family| state.unpacks(*family));
        let families = |before: &BTreeSet<Family>| {
            expected_of(returning(), before.iter().copied(), |family| *family, &ours)
        };
        prop_assert_eq!(&now.direct_return, &families(&before.direct_return));
        let devices = |links: &dummy_interface::Observed| links.tunnels.keys().copied().collect();
        prop_assert_eq!(devices(&now.dummy_interface), families(&devices(&before.dummy_interface)));
    }

    #[test]
    fn a_second_plan_removes_what_the_first_took_out_of_service_and_a_third_is_empty(
        inputs in any_inputs(), fake in any_kernel(), ours in any_ownership()
    ) {
        let state = state(&inputs);
        let second = settle(&state, &fake, &ours);
        for operation in second.operations() {
            let tcp_removal = matches!(operation, Operation::Ipvs(
                Command::DeleteRealServer(VirtualServerId::Address(ServiceAddress { protocol: Protocol::Tcp, .. }), _)
            ));
            prop_assert!(tcp_removal, "{}", operation);
        }
        prop_assert_eq!(full(&state, &read(&fake), &ours), Plan::default());
    }

    #[test]
    fn the_image_follows_the_kernel(inputs in any_inputs(), fake in any_kernel(), ours in any_ownership()) {
        let mut image = read(&fake);
        let plan = full(&state(&inputs), &image, &ours);
        apply(&plan, &fake);
        plan.operations().for_each(|operation| image.carried_out(&operation));
        prop_assert_eq!(image, read(&fake));
    }

    #[test]
    fn what_a_change_touched_is_all_that_differs(
        inputs in any_inputs(), fake in any_kernel(), ours in any_ownership(), change in any_change()
    ) {
        let mut state = state(&inputs);
        settle(&state, &fake, &ours);
        let touched = state.apply(change);
        let observed = read(&fake);
        let small = diff(&state, &observed, &touched, &ours, &Draining::default());
        let whole = full(&state, &observed, &ours);
        let set = |plan: &Plan| plan.operations().collect::<HashSet<_>>();
        prop_assert_eq!(set(&small), set(&whole), "small:\n{}whole:\n{}", small, whole);
        prop_assert_eq!(small.len(), whole.len());
    }

    #[test]
    fn notified_parts_are_repaired_without_comparing_anything_else(
        inputs in any_inputs(), fake in any_kernel(), ours in any_ownership(),
        change in any_change(), disturbance in any_disturbance(), notified in any::<(bool, bool)>()
    ) {
        let mut state = state(&inputs);
        settle(&state, &fake, &ours);
        let settled = read(&fake);
        let touched = state.apply(change);
        let (links, tables) = notified;
        put_links_and_tables(&fake, links.then_some(disturbance.0), tables.then_some(disturbance.1));
        let observed = read(&fake);
        let mut dirty = touched.clone();
        let drift = Drift { links, tables, ..Drift::default() };
        dirty.merge(differing_in(drift, &state, &observed, &ours));
        let repair = diff(&state, &observed, &dirty, &ours, &Draining::default());
        let mut whole: Plan = full(&state, &observed, &ours);
        // An element that another program adds for its virtual server makes that ours only where all is compared.
        // So is its virtual server at an address that another program binds while our table is gone.
        let was_kept = |operation: &Operation| match operation {
            Operation::Ipvs(Command::DeleteVirtualServer(VirtualServerId::Address(at))) => {
                ours.foreign == Foreign::Keep
                    && is_foreign(at, &settled)
                    && !touched.virtual_servers.contains(at)
            }
            _ => false,
        };
        whole = whole.operations().filter(|operation| !was_kept(operation)).collect();
        let set = |plan: &Plan| plan.operations().collect::<HashSet<_>>();
        prop_assert_eq!(set(&repair), set(&whole), "repair:\n{}whole:\n{}", repair, whole);
        prop_assert_eq!(repair.len(), whole.len());
    }

    #[test]
    fn no_desired_real_server_is_deleted_and_nothing_is_done_twice(
        inputs in any_inputs(), fake in any_kernel(), ours in any_ownership(),
        change in any_change(), bits in any::<u64>()
    ) {
        let mut state = state(&inputs);
        let observed = read(&fake);
        let draining = expired(&observed, bits);
        let first = full_while(&state, &observed, &ours, &draining);
        prop_assert_eq!(careless(&first, &state, &observed), None);

        let touched = state.apply(change);
        let whole = full_while(&state, &observed, &ours, &draining);
        for plan in [whole, diff(&state, &observed, &touched, &ours, &draining)] {
            prop_assert_eq!(careless(&plan, &state, &observed), None);
        }
    }

    #[test]
    fn a_tcp_real_server_is_deleted_only_when_it_takes_no_connections_and_has_none(
        inputs in any_inputs(), fake in any_kernel(), ours in any_ownership(), bits in any::<u64>()
    ) {
        let observed = read(&fake);
        let draining = expired(&observed, bits);
        for operation in full_while(&state(&inputs), &observed, &ours, &draining).operations() {
            let Operation::Ipvs(Command::DeleteRealServer(VirtualServerId::Address(of), address)) = operation else { continue };
            let server = observed.virtual_servers[&of].real_server(&address).unwrap();
            // Or when it has had all the time that it may have.
            let idle = server.config.weight == 0 && (server.connections == 0 || draining.has_expired(&of, &address));
            prop_assert!(idle || of.protocol != Protocol::Tcp, "{} -> {}: {:?}", of, address, server);
        }
    }

    #[test]
    fn what_has_no_more_time_to_drain_leaves_with_its_connections(
        inputs in any_inputs(), fake in any_kernel(), ours in any_ownership()
    ) {
        let state = state(&inputs);
        settle(&state, &fake, &ours);
        let observed = read(&fake);
        let plan = full_while(&state, &observed, &ours, &expired(&observed, u64::MAX));
        apply(&plan, &fake);
        let left = servers(&fake);
        for wanted in state.virtual_servers().filter(|wanted| ours.families.contains(&Family::from(wanted.address.ip))) {
            let real_servers: BTreeSet<_> = wanted.real_servers.iter().copied().collect();
            prop_assert_eq!(&left[&wanted.address.into()].1, &real_servers, "{}", wanted.address);
        }
    }

    #[test]
    fn without_its_changes_of_schedulers_a_plan_makes_everything_else_as_desired(
        inputs in any_inputs(), fake in any_kernel(), ours in any_ownership()
    ) {
        let (state, before) = (state(&inputs), copy(&fake));
        let kept = |observed: &Observed, plan: &Plan| {
            plan.operations().filter(|one| !changes_scheduler(one, observed)).collect::<Plan>()
        };
        for _ in 0..2 {
            let observed = read(&fake);
            apply(&kept(&observed, &full(&state, &observed, &ours)), &fake);
        }
        let mut expected = expected_servers(&state, &before, &ours);
        for (id, (config, _)) in &before.state().virtual_servers {
            if let Some((expected, _)) = expected.get_mut(id)
                && expected.scheduler != config.scheduler
            {
                expected.scheduler = config.scheduler;
                expected.flags = (expected.flags & ServiceFlags::PERSISTENT) | (config.flags - ServiceFlags::PERSISTENT);
            }
        }
        prop_assert_eq!(servers(&fake), expected);
    }

    #[test]
    fn what_is_not_ours_is_in_no_plan(inputs in any_inputs(), fake in any_kernel(), ours in any_ownership()) {
        let state = state(&inputs);
        for operation in full(&state, &read(&fake), &ours).operations() {
            let family = match &operation {
                Operation::Ipvs(command) => {
                    let id = command.virtual_server();
                    let wanted = matches!(id, VirtualServerId::Address(at) if state.virtual_server(&at).is_some());
                    prop_assert!(wanted || !is_kept(id, &ours, &fake), "{}", operation);
                    continue;
                }
                Operation::Netfilter(AddElement(element) | DeleteElement(element)) => element.family(),
                Operation::DummyInterface(Bind(vip) | Unbind(vip)) => Family::from(*vip),
                Operation::Netfilter(
                    PrepareTable(family)
                    | InstallTable(family)
                    | AddDirectReturn(family)
                    | RemoveDirectReturn(family),
                )
                | Operation::DummyInterface(EnsureTunnel(family) | RemoveTunnel(family)) => *family,
                Operation::DummyInterface(EnsureDevice) => continue,
            };
            prop_assert!(ours.families.contains(&family), "{}", operation);
        }
    }

    #[test]
    fn a_vip_opens_after_its_rules_and_its_virtual_servers(
        inputs in any_inputs(), fake in any_kernel(), ours in any_ownership()
    ) {
        let state = state(&inputs);
        let plan = full(&state, &read(&fake), &ours);
        for wanted in state.virtual_servers() {
            let at = wanted.address;
            let server = position(&plan, Command::AddVirtualServer(wanted.config()));
            let vip = position(&plan, Bind(at.ip));
            for element in wanted.elements().chain([Element::Vip(at.ip)]) {
                let element = position(&plan, AddElement(element));
                prop_assert!(in_order(element, server) && in_order(element, vip), "{}:\n{}", at, plan);
            }
            for real in &*wanted.real_servers {
                let real = position(&plan, Command::AddRealServer(at.into(), *real));
                prop_assert!(in_order(server, real), "{}:\n{}", at, plan);
                prop_assert!(in_order(real, vip), "{}:\n{}", at, plan);
            }
        }
    }

    #[test]
    fn a_vip_closes_before_its_virtual_servers_and_its_rules_go(
        inputs in any_inputs(), fake in any_kernel(), ours in any_ownership()
    ) {
        let plan = full(&state(&inputs), &read(&fake), &ours);
        for operation in &plan.operations().collect::<Vec<_>>() {
            let Operation::Ipvs(Command::DeleteVirtualServer(VirtualServerId::Address(at))) = operation else { continue };
            let at: ServiceAddress = *at;
            let server = position(&plan, operation.clone());
            prop_assert!(in_order(position(&plan, Unbind(at.ip)), server), "{}:\n{}", at, plan);
            let elements = plan.operations().enumerate().filter(|(_, operation)| {
                let Operation::Netfilter(DeleteElement(element)) = operation else { return false };
                *element == Element::Vip(at.ip) || element.virtual_server() == Some(&at)
            });
            for (element, _) in elements {
                prop_assert!(in_order(server, Some(element)), "{}:\n{}", at, plan);
            }
        }
    }

    #[test]
    fn urgent_services_come_first_and_removal_last(
        inputs in any_inputs(), fake in any_kernel(), ours in any_ownership()
    ) {
        let state = state(&inputs);
        let plan = full(&state, &read(&fake), &ours);
        let due: Vec<Urgency> = plan.operations().filter_map(|one| urgency(&one, &state)).collect();
        prop_assert!(due.is_sorted(), "{}", plan);
        let removal: Vec<bool> = plan.operations().map(|one| removes(&one, &state)).collect();
        prop_assert!(removal.is_sorted(), "{}", plan);
    }

    #[test]
    fn what_leaves_is_known_before_the_plan(
        inputs in any_inputs(), fake in any_kernel(), ours in any_ownership(), changes in vec(any_change(), 0..4)
    ) {
        let mut state = state(&inputs);
        settle(&state, &fake, &ours);
        let mut touched = Dirty::default();
        for change in changes {
            touched.merge(state.apply(change));
        }
        let observed = read(&fake);
        for operation in diff(&state, &observed, &touched, &ours, &Draining::default()).operations() {
            let Operation::Ipvs(
                Command::DeleteRealServer(VirtualServerId::Address(of), _) | Command::EditRealServer(VirtualServerId::Address(of), _),
            ) = &operation
            else {
                continue;
            };
            if removes(&operation, &state) {
                let departing = departing_real_servers(&state, &observed, of).count();
                prop_assert!(departing > 0, "{}", operation);
            }
        }
    }

    #[test]
    fn a_plan_survives_json(inputs in any_inputs(), fake in any_kernel(), ours in any_ownership()) {
        let plan = full(&state(&inputs), &read(&fake), &ours);
        let json = serde_json::to_string(&plan).unwrap();
        prop_assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
    }
}

/// The operations of a plan that are wrong: they delete what is wanted, or do something twice.
fn careless(plan: &Plan, state: &State, observed: &Observed) -> Option<String> {
    let mut subjects = HashSet::new();
    plan.operations().find_map(|operation| {
        let deletes_wanted = match &operation {
            Operation::Ipvs(Command::DeleteRealServer(VirtualServerId::Address(of), address)) => {
                let wanted = state.virtual_server(of).map(|wanted| &wanted.real_servers);
                wanted.is_none_or(|wanted| wanted.iter().any(|real| real.address == *address))
            }
            Operation::Ipvs(Command::DeleteVirtualServer(VirtualServerId::Address(of))) => {
                state.virtual_server(of).is_some()
            }
            _ => false,
        };
        let again = !subjects.insert(subject(&operation, observed));
        (deletes_wanted || again).then(|| format!("{operation}, in\n{plan}"))
    })
}

fn changes_scheduler(operation: &Operation, observed: &Observed) -> bool {
    let Operation::Ipvs(Command::EditVirtualServer(VirtualServer {
        id: VirtualServerId::Address(of),
        scheduler,
        ..
    })) = operation
    else {
        return false;
    };
    observed.virtual_servers.get(of).is_some_and(|image| image.config().scheduler != *scheduler)
}

/// The subject of an operation, whatever is done to it.
fn subject(operation: &Operation, observed: &Observed) -> String {
    match operation {
        Operation::Ipvs(command) if changes_scheduler(operation, observed) => {
            format!("scheduler of {}", command.virtual_server())
        }
        Operation::Ipvs(Command::AddRealServer(of, real) | Command::EditRealServer(of, real)) => {
            format!("real server {of} {}", real.address)
        }
        Operation::Ipvs(Command::DeleteRealServer(of, address)) => format!("real server {of} {address}"),
        Operation::Ipvs(command) => format!("virtual server {}", command.virtual_server()),
        Operation::Netfilter(AddElement(element) | DeleteElement(element)) => element.to_string(),
        Operation::DummyInterface(Bind(vip) | Unbind(vip)) => format!("VIP {vip}"),
        Operation::Netfilter(_) | Operation::DummyInterface(_) => operation.to_string(),
    }
}

fn both_families() -> Ownership {
    Ownership { families: BTreeSet::from(Family::BOTH), exclude: Vec::new(), foreign: Foreign::Delete }
}

/// The slice with its endpoints on another node.
fn elsewhere(mut slice: EndpointSlice) -> EndpointSlice {
    slice.endpoints.iter_mut().for_each(|endpoint| endpoint.node = None);
    slice
}

/// The Service with an external address and a NodePort.
fn exposed(name: &str, cluster_ips: &[&str]) -> Service {
    let mut service = service(name, cluster_ips);
    service.external_ips = vec![ip("203.0.113.7")];
    service.ports.iter_mut().for_each(|port| port.node_port = 30080.try_into().ok());
    service
}

/// A Service with a load balancer's address that these clients may reach.
fn balanced(name: &str, cluster_ip: &str, load_balancer_ip: &str, clients: &[&str]) -> Service {
    Service {
        load_balancer_ips: vec![ip(load_balancer_ip)],
        load_balancer_source_ranges: Some(clients.iter().map(|range| range.parse().unwrap()).collect()),
        ..service(name, &[cluster_ip])
    }
}

/// A plan from one state to the next in both families, over a kernel that another program has changed.
fn mixed() -> Plan {
    let mut now = state(&[
        Change::Services(Event::Apply(service("web", &["10.96.0.10", "fd00:96::10"]))),
        Change::Slices(Event::Apply(slice("web", Family::V4, &["10.244.1.2", "10.244.2.2"]))),
        Change::Slices(Event::Apply(slice("web", Family::V6, &["fd00:244::2", "fd00:244::3"]))),
        Change::Services(Event::Apply(service("gone", &["10.96.0.11", "fd00:96::11"]))),
        Change::Services(Event::Apply(balanced(
            "shop",
            "10.96.0.13",
            "203.0.113.8",
            &["10.0.0.0/8", "192.0.2.0/24"],
        ))),
        Change::Services(Event::Apply(balanced("open", "10.96.0.14", "203.0.113.9", &["192.0.2.0/24"]))),
    ]);
    let fake = FakeKernel::new();
    settle(&now, &fake, &both_families());
    {
        let mut state = fake.state();
        let web =
            &mut state.virtual_servers.get_mut(&address(Protocol::Tcp, "10.96.0.10:80").into()).unwrap().1;
        web.get_mut(&real("10.244.1.2:8080")).unwrap().config.weight = 7;
        web.get_mut(&real("10.244.2.2:8080")).unwrap().active_connections = 1;
        let (web6, real_servers) =
            state.virtual_servers.get_mut(&address(Protocol::Tcp, "[fd00:96::10]:80").into()).unwrap();
        web6.scheduler = Scheduler::WLC;
        real_servers.get_mut(&real("[fd00:244::3]:8080")).unwrap().config.weight = 0;
        state.dummy_interface.bound.insert(ip("192.0.2.7"));
        state.tables.remove(&Family::V6);
    }
    let mut web = service("web", &["10.96.0.10", "fd00:96::10"]);
    web.session_affinity = Some(600);
    for change in [
        Change::Services(Event::Apply(web)),
        Change::Slices(Event::Apply(slice("web", Family::V4, &["10.244.1.2", "10.244.3.2"]))),
        Change::Slices(Event::Apply(slice("web", Family::V6, &["fd00:244::2"]))),
        Change::Services(Event::Delete("default/gone".parse().unwrap())),
        Change::Services(Event::Apply(balanced(
            "shop",
            "10.96.0.13",
            "203.0.113.8",
            &["10.1.0.0/16", "192.0.2.0/24"],
        ))),
        Change::Services(Event::Apply(balanced("open", "10.96.0.14", "203.0.113.9", &["0.0.0.0/0"]))),
        Change::NodeAddresses { here: BTreeSet::from([ip("172.18.0.2")]), lost: BTreeSet::new() },
        Change::Services(Event::Apply(exposed("new", &["10.96.0.12"]))),
        Change::Services(Event::Apply(service("kubernetes", &["10.96.0.1", "fd00:96::1"]))),
        Change::Slices(Event::Apply(elsewhere(slice("kubernetes", Family::V6, &["fd00:50::1"])))),
    ] {
        now.apply(change);
    }
    full(&now, &read(&fake), &both_families())
}

#[test]
fn a_plan_reads_as_what_will_be_done_in_order() {
    assert_eq!(
        mixed().to_string(),
        "\
prepare table IPv6
add element vips 10.96.0.1
add element vips fd00:96::1
add element cluster-ips TCP 10.96.0.1:80
add element cluster-ips TCP [fd00:96::1]:80
add element hairpin TCP 10.244.3.2:8080
add virtual server TCP 10.96.0.1:80 rr
add virtual server TCP [fd00:96::1]:80 rr
add real server TCP [fd00:96::1]:80 -> [fd00:50::1]:8080 weight 1
bind 10.96.0.1
bind fd00:96::1
delete element allowed-sources TCP 203.0.113.8:80 from 10.0.0.0-10.255.255.255
add element vips 10.96.0.12
add element vips 203.0.113.7
add element allowed-sources TCP 203.0.113.8:80 from 10.1.0.0-10.1.255.255
add element cluster-ips TCP 10.96.0.12:80
add element external TCP 172.18.0.2:30080
add element external TCP 203.0.113.7:80
edit virtual server TCP 10.96.0.10:80 rr persistent 600 s
edit real server TCP 10.96.0.10:80 -> 10.244.1.2:8080 weight 1
add real server TCP 10.96.0.10:80 -> 10.244.3.2:8080 weight 1
add virtual server TCP 10.96.0.12:80 rr
add virtual server TCP 172.18.0.2:30080 rr
add virtual server TCP 203.0.113.7:80 rr
edit virtual server TCP [fd00:96::10]:80 wlc persistent 600 s
edit virtual server TCP [fd00:96::10]:80 rr persistent 600 s
bind 10.96.0.12
bind 203.0.113.7
install table IPv6
unbind 10.96.0.11
unbind 192.0.2.7
unbind fd00:96::11
edit real server TCP 10.96.0.10:80 -> 10.244.2.2:8080 weight 0
delete real server TCP [fd00:96::10]:80 -> [fd00:244::3]:8080
delete virtual server TCP 10.96.0.11:80
delete virtual server TCP [fd00:96::11]:80
delete element vips 10.96.0.11
delete element vips fd00:96::11
delete element restricted TCP 203.0.113.9:80
delete element allowed-sources TCP 203.0.113.9:80 from 192.0.2.0-192.0.2.255
delete element cluster-ips TCP 10.96.0.11:80
delete element cluster-ips TCP [fd00:96::11]:80
delete element hairpin TCP 10.244.2.2:8080
delete element hairpin TCP [fd00:244::3]:8080
"
    );
}

/// A kernel with a virtual server of a Service that is gone, and two of another program.
fn beside_others() -> FakeKernel {
    let fake = FakeKernel::new();
    let gone = state(&[Change::Services(Event::Apply(service("gone", &["10.96.0.11"])))]);
    settle(&gone, &fake, &both_families());
    for at in ["192.0.2.7:6443", "198.51.100.7:80"] {
        let id = address(Protocol::Tcp, at).into();
        fake.state().virtual_servers.insert(id, (VirtualServer::new(id, Scheduler::WLC), BTreeMap::new()));
    }
    fake
}

#[test]
fn plan_marks_virtual_servers_that_never_belonged_to_a_service() {
    let plan = full(&state(&[]), &read(&beside_others()), &both_families());
    let deletions: Vec<_> =
        plan.to_string().lines().filter(|line| line.contains("virtual server")).map(str::to_owned).collect();
    assert_eq!(
        deletions,
        [
            "delete virtual server TCP 10.96.0.11:80",
            "delete virtual server TCP 192.0.2.7:6443 (foreign)",
            "delete virtual server TCP 198.51.100.7:80 (foreign)",
        ]
    );
}

#[test]
fn own_virtual_server_is_not_kept_although_its_table_is_gone() {
    let (desired, fake) = (state(&[]), beside_others());
    {
        let mut kernel = fake.state();
        kernel.tables.clear();
        kernel.elements.clear();
        kernel.virtual_servers.insert(
            PROBE_ADDRESS.into(),
            (VirtualServer::new(PROBE_ADDRESS, Scheduler::RR), BTreeMap::new()),
        );
    }
    let keeping = Ownership { foreign: Foreign::Keep, ..both_families() };
    let observed = read(&fake);
    assert_eq!(keeping.kept(&desired, &observed).count(), 2);
    let plan = full(&desired, &observed, &keeping);
    let deletes = |line: &&str| line.starts_with("delete virtual server");
    assert_eq!(
        plan.to_string().lines().filter(deletes).collect::<Vec<_>>(),
        ["delete virtual server TCP 10.96.0.11:80", "delete virtual server TCP 198.51.100.0:20000",]
    );
}

#[test]
fn kept_are_the_virtual_servers_of_others_that_no_plan_deletes() {
    let (desired, observed) = (state(&[]), read(&beside_others()));
    let kept = |ours: &Ownership| -> Vec<_> {
        let plan = full(&desired, &observed, ours);
        let mut kept: Vec<_> = ours.kept(&desired, &observed).map(ToString::to_string).collect();
        assert_eq!(plan.foreign.len() + kept.len(), 2);
        kept.sort();
        kept
    };
    let excluding = Ownership { exclude: vec!["192.0.2.0/24".parse().unwrap()], ..both_families() };
    let keeping = Ownership { foreign: Foreign::Keep, ..both_families() };
    assert_eq!(kept(&both_families()), [""; 0]);
    assert_eq!(kept(&excluding), ["TCP 192.0.2.7:6443"]);
    assert_eq!(kept(&keeping), ["TCP 192.0.2.7:6443", "TCP 198.51.100.7:80"]);
}

#[test]
fn each_batch_of_a_plan_names_its_seam_in_json() {
    let at = address(Protocol::Tcp, "10.96.0.10:80");
    let operations: [Operation; 4] = [
        AddElement(Element::ClusterIp(at)).into(),
        Command::DeleteRealServer(at.into(), real("10.244.1.2:8080")).into(),
        Command::DeleteVirtualServer(at.into()).into(),
        Bind(at.ip).into(),
    ];
    let (named, id) = (
        serde_json::json!({"protocol": "TCP", "ip": "10.96.0.10", "port": 80}),
        |named| serde_json::json!({ "address": named }),
    );
    assert_eq!(
        serde_json::to_value(operations.into_iter().collect::<Plan>()).unwrap(),
        serde_json::json!({"batches": [
            {"netfilter": [{"add-element": {"cluster-ip": named}}]},
            {"ipvs": [
                {"delete-real-server": [id(&named), {"ip": "10.244.1.2", "port": 8080}]},
                {"delete-virtual-server": id(&named)},
            ]},
            {"link": [{"bind": "10.96.0.10"}]},
        ], "foreign": []})
    );
}

/// `default/web` with two endpoints on this node.
fn web_with(balancing: Balancing, endpoints: &[&str]) -> State {
    let web = Service { balancing: Some(balancing.into()), ..service("web", &["10.96.0.10"]) };
    state(&[
        Change::Services(Event::Apply(web)),
        Change::Slices(Event::Apply(slice("web", Family::V4, endpoints))),
    ])
}

#[test]
fn weights_and_limits_are_edited_in_place() {
    let (fake, ours) = (FakeKernel::new(), both_families());
    settle(&web_with(Balancing::default(), &["10.244.1.2"]), &fake, &ours);
    let heavy: Weights = [("node".into(), 3)].into_iter().collect();
    let limited = Balancing {
        node_weights: heavy.clone(),
        max_connections: NonZero::new(100),
        resume_below: NonZero::new(80),
        ..Balancing::default()
    };
    let plan = full(&web_with(limited, &["10.244.1.2"]), &read(&fake), &ours);
    assert_eq!(
        plan.to_string(),
        "edit real server TCP 10.96.0.10:80 -> 10.244.1.2:8080 weight 3 upper threshold 100 lower threshold 80\n"
    );
    apply(&plan, &fake);

    // Weights alone stay; then nothing.
    let weighted = Balancing { node_weights: heavy, ..Balancing::default() };
    let plan = full(&web_with(weighted, &["10.244.1.2"]), &read(&fake), &ours);
    assert_eq!(plan.to_string(), "edit real server TCP 10.96.0.10:80 -> 10.244.1.2:8080 weight 3\n");
    apply(&plan, &fake);
    let plan = full(&web_with(Balancing::default(), &["10.244.1.2"]), &read(&fake), &ours);
    assert_eq!(plan.to_string(), "edit real server TCP 10.96.0.10:80 -> 10.244.1.2:8080 weight 1\n");
}

#[test]
fn a_real_server_that_comes_back_while_it_drains_has_its_own_weight_again() {
    let (fake, ours) = (FakeKernel::new(), both_families());
    let weights = || [("node".into(), 7)].into_iter().collect();
    let desired =
        |endpoints| web_with(Balancing { node_weights: weights(), ..Balancing::default() }, endpoints);
    settle(&desired(&["10.244.1.2", "10.244.2.2"]), &fake, &ours);
    let plan = full(&desired(&["10.244.1.2"]), &read(&fake), &ours);
    assert_eq!(
        plan.commands().map(ToString::to_string).collect::<Vec<_>>(),
        ["edit real server TCP 10.96.0.10:80 -> 10.244.2.2:8080 weight 0"]
    );
    apply(&plan, &fake);
    let plan = full(&desired(&["10.244.1.2", "10.244.2.2"]), &read(&fake), &ours);
    assert_eq!(
        plan.commands().map(ToString::to_string).collect::<Vec<_>>(),
        ["edit real server TCP 10.96.0.10:80 -> 10.244.2.2:8080 weight 7"]
    );
}

#[test]
fn an_endpoint_moving_between_slices_changes_nothing_if_one_sync_sees_both() {
    let (fake, ours) = (FakeKernel::new(), both_families());
    let [old, new] = ["old", "new"].map(|name| {
        move |endpoints: &[&str]| {
            let slice = EndpointSlice {
                name: ObjectName::new("default", name),
                ..slice("web", Family::V4, endpoints)
            };
            Change::Slices(Event::Apply(slice))
        }
    });
    let mut state = state(&[
        Change::Services(Event::Apply(service("web", &["10.96.0.10"]))),
        old(&["10.244.1.2", "10.244.2.2"]),
        new(&[]),
    ]);
    settle(&state, &fake, &ours);
    let plan = |state: &State, touched: &Dirty| {
        let observed = read(&fake);
        diff(state, &observed, touched, &ours, &Draining::default())
    };

    let mut both = state.apply(old(&["10.244.2.2"]));
    both.merge(state.apply(new(&["10.244.1.2"])));
    assert!(both.virtual_servers.contains(&address(Protocol::Tcp, "10.96.0.10:80")));
    assert_eq!(plan(&state, &both).to_string(), "");

    let gone = state.apply(new(&[]));
    let removal = plan(&state, &gone);
    let weight = |weight| format!("edit real server TCP 10.96.0.10:80 -> 10.244.1.2:8080 weight {weight}");
    assert_eq!(removal.commands().map(ToString::to_string).collect::<Vec<_>>(), [weight(0)]);
    apply(&removal, &fake);
    // It drains as long as it has connections, and goes where it is.
    let back = state.apply(old(&["10.244.1.2", "10.244.2.2"]));
    let return_ = plan(&state, &back);
    assert_eq!(return_.commands().map(ToString::to_string).collect::<Vec<_>>(), [weight(1)]);
}
