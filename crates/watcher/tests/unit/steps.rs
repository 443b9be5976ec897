//! Properties that hold after every single step of a plan from one desired state to another.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use crate::common::*;
use ipvs::{Family, ServiceAddress, VirtualServerId};
use netfilter::Element;
use proptest::prelude::*;
use service::{DesiredVirtualServer, State};
use testkit::{FakeKernel, fake_kernel};
use watcher::{Foreign, Ownership, Plan};

/// Clients in some of the ranges that a Service may name, and in none; the VIPs are there as the
/// addresses that the node sends from.
const CLIENTS: [&str; 12] = [
    "10.1.1.1",
    "10.244.1.2",
    "10.244.2.2",
    "172.18.0.2",
    "192.0.2.7",
    "198.51.100.9",
    "203.0.113.7",
    "2001:db8::9",
    "fd00:18::2",
    "fd00:203::7",
    "fd00:244::2",
    "fd00:244::3",
];

/// Those of them that are pods of this node.
const PODS_HERE: [&str; 2] = ["10.244.1.2", "fd00:244::2"];

/// The clients, of the address's family, that these elements let in at an address.
fn let_in(at: &ServiceAddress, elements: &[Element]) -> BTreeSet<IpAddr> {
    let restricted = elements.contains(&Element::Restricted(*at));
    let clients = CLIENTS.map(ip).into_iter().filter(|client| client.is_ipv4() == at.ip.is_ipv4());
    let allowed = |client: &IpAddr| {
        elements.iter().any(|element| {
            matches!(element, Element::AllowedSource(source)
                if source.to == *at && source.first <= *client && *client <= source.last)
        })
    };
    let local_only = elements.contains(&Element::LocalClientsOnly(*at));
    clients
        .filter(|client| !restricted || allowed(client))
        .filter(|client| !local_only || PODS_HERE.contains(&client.to_string().as_str()))
        .collect()
}

/// The clients that reach a virtual server in the kernel; none if there is none.
fn reach(kernel: &fake_kernel::State, at: &ServiceAddress) -> BTreeSet<IpAddr> {
    let elements: Vec<Element> = kernel.elements.iter().copied().collect();
    let there = kernel.virtual_servers.contains_key(&VirtualServerId::from(*at));
    if there { let_in(at, &elements) } else { BTreeSet::new() }
}

/// The clients that must reach a virtual server.
fn shall_reach(state: &State, at: &ServiceAddress) -> BTreeSet<IpAddr> {
    let elements = |server: &Arc<DesiredVirtualServer>| server.elements().collect::<Vec<_>>();
    state.virtual_server(at).map(elements).map(|elements| let_in(at, &elements)).unwrap_or_default()
}

/// Every virtual server that is there or is to be there.
fn virtual_servers(kernel: &FakeKernel, state: &State) -> BTreeSet<ServiceAddress> {
    let there = |id: &VirtualServerId| match id {
        VirtualServerId::Address(at) => Some(*at),
        VirtualServerId::Mark { .. } => None,
    };
    let there: Vec<_> = kernel.state().virtual_servers.keys().filter_map(there).collect();
    there.into_iter().chain(state.virtual_servers().map(|server| server.address)).collect()
}

/// The ownership of both families: what is not ours is not looked at here.
fn ours() -> Ownership {
    Ownership { families: BTreeSet::from(Family::BOTH), exclude: Vec::new(), foreign: Foreign::Delete }
}

/// A kernel as one state desires it, and the plan to another one.
fn under_way(kernel: &FakeKernel, from: &State, to: &State) -> Plan {
    settle(from, kernel, &ours());
    full(to, &read(kernel), &ours())
}

/// Whether everything is there that a family shall serve.
fn serves(kernel: &fake_kernel::State, state: &State, family: Family) -> bool {
    let is_there = |wanted: &Arc<DesiredVirtualServer>| {
        let there = kernel.virtual_servers.get(&wanted.address.into());
        there.is_some_and(|(_, real)| {
            wanted.real_servers.iter().all(|wanted| real.contains_key(&wanted.address))
        })
    };
    state.virtual_servers().filter(|wanted| Family::from(wanted.address.ip) == family).all(is_there)
        && state
            .vips()
            .filter(|vip| Family::from(**vip) == family)
            .all(|vip| kernel.dummy_interface.bound.contains(vip))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn clients_allowed_before_and_after_stay_allowed_and_the_others_stay_out(
        from in any_inputs(), to in any_inputs(), kernel in any_kernel()
    ) {
        let (from, to) = (state(&from), state(&to));
        let plan = under_way(&kernel, &from, &to);
        let addresses = virtual_servers(&kernel, &to);
        let before: Vec<_> = addresses.iter().map(|at| reach(&kernel.state(), at)).collect();
        for step in steps(&plan) {
            carry_out(&step, &kernel);
            for (at, before) in addresses.iter().zip(&before) {
                let (now, after) = (reach(&kernel.state(), at), shall_reach(&to, at));
                let may: BTreeSet<_> = before | &after;
                prop_assert!(now.is_subset(&may), "{} lets in {:?}, not {:?}\n{:?} in\n{}", at, now, may, step, plan);
                let must: BTreeSet<_> = before & &after;
                prop_assert!(now.is_superset(&must), "{} keeps out of {:?}, not {:?}\n{:?} in\n{}", at, must, now, step, plan);
            }
        }
        for at in &addresses {
            prop_assert_eq!(reach(&kernel.state(), at), shall_reach(&to, at), "{}", at);
        }
    }

    #[test]
    fn a_bound_address_is_always_in_the_set_of_vips(
        from in any_inputs(), to in any_inputs(), kernel in any_kernel()
    ) {
        let (from, to) = (state(&from), state(&to));
        let plan = under_way(&kernel, &from, &to);
        for step in steps(&plan) {
            carry_out(&step, &kernel);
            let kernel = kernel.state();
            for vip in &kernel.dummy_interface.bound {
                prop_assert!(kernel.elements.contains(&Element::Vip(*vip)), "{}: {:?} in\n{}", vip, step, plan);
            }
        }
    }

    #[test]
    fn a_virtual_server_is_never_without_an_element_that_says_who_is_masqueraded(
        from in any_inputs(), to in any_inputs(), kernel in any_kernel()
    ) {
        let (from, to) = (state(&from), state(&to));
        let plan = under_way(&kernel, &from, &to);
        for step in steps(&plan) {
            carry_out(&step, &kernel);
            for at in virtual_servers(&kernel, &to) {
                let kernel = kernel.state();
                let kinds =
                    [Element::ClusterIp, Element::External, Element::ExternalLocal, Element::DirectReturn].map(|of| of(at));
                let there = kernel.virtual_servers.contains_key(&VirtualServerId::from(at));
                let known = kinds.iter().any(|element| kernel.elements.contains(element));
                prop_assert!(!there || known, "{}: {:?} in\n{}", at, step, plan);
            }
        }
    }

    #[test]
    fn a_new_table_takes_nothing_from_others_before_all_is_there_to_serve_it(
        to in any_inputs(), kernel in any_kernel(), done in 0..40_usize
    ) {
        let to = state(&to);
        kernel.state().tables.clear();
        kernel.state().elements.clear();
        let first = full(&to, &read(&kernel), &ours());
        steps(&first).iter().take(done).for_each(|step| carry_out(step, &kernel));
        let plan = full(&to, &read(&kernel), &ours());
        for step in std::iter::once(Vec::new()).chain(steps(&plan)) {
            carry_out(&step, &kernel);
            let kernel = kernel.state();
            for family in &kernel.tables {
                prop_assert!(serves(&kernel, &to, *family), "{:?}: {:?} in\n{}", family, step, plan);
            }
        }
        prop_assert_eq!(&kernel.state().tables, &ours().families);
    }
}
