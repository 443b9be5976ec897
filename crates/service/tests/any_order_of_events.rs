//! What holds after any events in any order.

mod common;

use std::collections::BTreeMap;

use common::*;
use ipvs::Protocol;
use proptest::{collection::vec, option, prelude::*, sample::select};
use service::{
    Change, Endpoint, EndpointSlice, Node, ObjectName, Service, ServiceKind, ServicePort, State, Touched,
    TrafficPolicy,
};

/// The inputs after all events: what a list would say.
#[derive(Clone, Debug, Default)]
struct Inputs {
    services: BTreeMap<ObjectName, Service>,
    slices: BTreeMap<ObjectName, EndpointSlice>,
    node: Node,
}

impl Inputs {
    fn after(changes: &[Change]) -> Self {
        let mut inputs = Self::default();
        for change in changes {
            inputs.take(change.clone());
        }
        inputs
    }

    fn take(&mut self, change: Change) {
        match change {
            Change::ReplaceServices(list) => {
                self.services = list.into_iter().map(|service| (service.name.clone(), service)).collect();
            }
            Change::ApplyService(service) => drop(self.services.insert(service.name.clone(), service)),
            Change::DeleteService(name) => drop(self.services.remove(&name)),
            Change::ReplaceSlices(list) => {
                self.slices = list.into_iter().map(|slice| (slice.name.clone(), slice)).collect();
            }
            Change::ApplySlice(slice) => drop(self.slices.insert(slice.name.clone(), slice)),
            Change::DeleteSlice(name) => drop(self.slices.remove(&name)),
            Change::ApplyNode(node) => self.node = node,
        }
    }

    /// The changes that tell all of it, one by one.
    fn changes(&self) -> Vec<Change> {
        let services = self.services.values().cloned().map(Change::ApplyService);
        let slices = self.slices.values().cloned().map(Change::ApplySlice);
        services.chain(slices).chain([Change::ApplyNode(self.node.clone())]).collect()
    }

    fn state(&self) -> State {
        applied(&self.changes())
    }
}

fn applied(changes: &[Change]) -> State {
    let mut state = state();
    for change in changes {
        state.apply(change.clone());
    }
    state
}

// Few values of each kind, so that they meet often.

fn any_port() -> impl Strategy<Value = ServicePort> {
    (select(&["", "http"][..]), select(&[Protocol::Tcp, Protocol::Udp][..]), 1..3_u16)
        .prop_map(|(name, protocol, number)| port(name, protocol, number))
}

fn any_service() -> impl Strategy<Value = Service> {
    let policy = select(&[TrafficPolicy::Cluster, TrafficPolicy::Cluster, TrafficPolicy::Local][..]);
    let kind = select(&[ServiceKind::ClusterIp, ServiceKind::ClusterIp, ServiceKind::ExternalName][..]);
    let names = select(&["a", "b", "c", "kube-system/dns", "kubernetes"][..]);
    let ips = vec(select(&["10.96.0.1", "10.96.0.2", "fd00::1"][..]), 0..3);
    (names, option::of(0..3_i64), kind, ips, vec(any_port(), 0..3), option::of(1..3_u32), policy, any::<u8>())
        .prop_map(|(text, created, kind, ips, ports, session_affinity, policy, other_proxy)| Service {
            created,
            kind,
            cluster_ips: ips.into_iter().map(ip).collect(),
            ports,
            session_affinity,
            internal_traffic_policy: policy,
            other_proxy: other_proxy < 25,
            ..service(text, "10.96.0.1")
        })
}

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    let address = select(&["10.1.0.1", "10.1.0.2", "10.1.0.3", "fd01::1"][..]);
    let kinds = select(&[ready as fn(&str) -> Endpoint, ready, draining, unready][..]);
    let zones = vec(select(&["a", "b"][..]), 0..2);
    let nodes = vec(select(&[NODE, "node-b"][..]), 0..2);
    (address, kinds, any::<bool>(), zones, nodes).prop_map(|(address, kind, here, zones, nodes)| {
        let endpoint = kind(address).for_zones(&zones).for_nodes(&nodes);
        if here { endpoint.here() } else { endpoint }
    })
}

fn any_slice() -> impl Strategy<Value = EndpointSlice> {
    let of = select(&["a", "b", "c", "kubernetes"][..]);
    (select(&["s1", "s2", "s3", "s4"][..]), of, vec(any_port(), 0..3), vec(any_endpoint(), 0..4)).prop_map(
        |(text, of, ports, endpoints)| EndpointSlice {
            ports: ports.iter().map(|port| listening(&port.name, port.protocol, port.port)).collect(),
            ..slice(text, of, &endpoints)
        },
    )
}

fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        1 => vec(any_service(), 0..5).prop_map(Change::ReplaceServices),
        5 => any_service().prop_map(Change::ApplyService),
        2 => any_service().prop_map(|service| Change::DeleteService(service.name)),
        1 => vec(any_slice(), 0..5).prop_map(Change::ReplaceSlices),
        5 => any_slice().prop_map(Change::ApplySlice),
        2 => any_slice().prop_map(|slice| Change::DeleteSlice(slice.name)),
        1 => option::of(select(&["a", "b"][..]))
            .prop_map(|zone| Change::ApplyNode(Node { zone: zone.map(Into::into), ips: Vec::new() })),
    ]
}

fn includes(touched: &Touched, keys: &Touched) -> bool {
    keys.virtual_servers.is_subset(&touched.virtual_servers)
        && keys.vips.is_subset(&touched.vips)
        && keys.elements.is_subset(&touched.elements)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_order_of_events_does_not_matter(
        (one, other) in vec(any_change(), 0..20)
            .prop_map(|changes| Inputs::after(&changes).changes())
            .prop_flat_map(|changes| (Just(changes.clone()), Just(changes).prop_shuffle()))
    ) {
        prop_assert_eq!(wanted(&applied(&one)), wanted(&applied(&other)));
    }

    #[test]
    fn history_leaves_no_trace(changes in vec(any_change(), 0..40)) {
        let (lived, fresh) = (applied(&changes), Inputs::after(&changes).state());
        prop_assert_eq!(wanted(&lived), wanted(&fresh));
        prop_assert_eq!(lived.conflicts().collect::<Vec<_>>(), fresh.conflicts().collect::<Vec<_>>());
        for server in fresh.virtual_servers() {
            prop_assert_eq!(lived.urgency(&server.address), fresh.urgency(&server.address));
            prop_assert_eq!(lived.vip_urgency(&server.address.ip), fresh.vip_urgency(&server.address.ip));
        }
    }

    #[test]
    fn what_differs_afterwards_is_touched(changes in vec(any_change(), 0..40)) {
        let mut state = state();
        for change in changes {
            let before = wanted(&state);
            let touched = state.apply(change.clone());
            let different = difference(&before, &wanted(&state));
            prop_assert!(includes(&touched, &different), "{:?}: {:?} lacks of {:?}", change, touched, different);
            // A list can hand an address from one Service to the next; nothing else touches in vain.
            let list = matches!(change, Change::ReplaceServices(_));
            if list {
                prop_assert_eq!((&touched.vips, &touched.elements), (&different.vips, &different.elements));
            } else {
                prop_assert_eq!(touched, different);
            }
        }
    }

    #[test]
    fn the_same_change_twice_touches_nothing_the_second_time(changes in vec(any_change(), 0..40)) {
        let mut state = state();
        for change in changes {
            state.apply(change.clone());
            let again = state.apply(change);
            prop_assert!(again.is_empty(), "{:?}", again);
        }
    }

    #[test]
    fn everything_wanted_belongs_together(changes in vec(any_change(), 0..40)) {
        let state = applied(&changes);
        let wanted = wanted(&state);
        for (at, server) in &wanted.virtual_servers {
            prop_assert!(state.wants_vip(&at.ip));
            prop_assert!(state.wants_element(&netfilter::Element::ClusterIp(*at)));
            prop_assert_eq!(server.config.id, ipvs::Id::Address(*at));
            let addresses: Vec<_> = server.real_servers.iter().map(|real| real.address).collect();
            prop_assert!(addresses.is_sorted_by(|a, b| a < b), "{:?}", addresses);
            prop_assert!(addresses.iter().all(|real| real.ip.is_ipv4() == at.ip.is_ipv4()));
        }
        for vip in &wanted.vips {
            prop_assert!(wanted.virtual_servers.keys().any(|at| at.ip == *vip));
        }
    }
}
