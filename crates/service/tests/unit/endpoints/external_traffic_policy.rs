//! The external traffic policy, and how it meets the internal one.

use std::sync::Arc;

use crate::common::*;
use ipvs::{Protocol, ServiceAddress};
use netfilter::Element;
use service::{
    Change, Dirty, Endpoint, EndpointSlice, Event, Service, ServiceKind, State, Traffic, TrafficPolicy,
};

const CLUSTER_IP: &str = "10.96.0.1:80";
/// Where traffic comes in from outside: an external IP, a load balancer's address, a NodePort.
const EXTERNAL: [&str; 3] = ["198.51.100.1:80", "203.0.113.1:80", "192.0.2.1:30080"];

/// A Service that is exposed in every way.
fn exposed() -> Service {
    Service {
        kind: ServiceKind::LoadBalancer,
        external_ips: ips(&["198.51.100.1"]),
        load_balancer_ips: ips(&["203.0.113.1"]),
        ports: vec![with_node_port(port("", Protocol::Tcp, 80), 30080)],
        ..service("web", "10.96.0.1")
    }
}

fn external_local() -> Service {
    Service { external_traffic_policy: TrafficPolicy::Local, ..exposed() }
}

fn on_node(web: Service, slices: &[EndpointSlice]) -> State {
    let mut state = state_of(&[web], slices);
    state.apply(node_addresses(&["192.0.2.1"]));
    state.apply(in_zone("a"));
    state
}

fn state_with_endpoints(web: Service, endpoints: &[Endpoint]) -> State {
    on_node(web, &[slice("web-1", "web", endpoints)])
}

/// What every external address has in common; panics if they differ.
fn used_externally(state: &State) -> Vec<String> {
    let [one, two, three] = EXTERNAL.map(|at| real_servers(state, at));
    assert!(one == two && two == three, "{one:?} {two:?} {three:?}");
    one
}

#[test]
fn local_uses_the_local_ready_endpoints_at_every_external_address() {
    let endpoints = [ready("10.1.0.1"), ready("10.1.0.2").here(), draining("10.1.0.3").here()];
    let state = state_with_endpoints(external_local(), &endpoints);
    assert_eq!(used_externally(&state), ["10.1.0.2:8080"]);
}

#[test]
fn local_falls_back_to_local_endpoints_that_terminate_and_serve() {
    let endpoints =
        [ready("10.1.0.1"), draining("10.1.0.2").here(), unready("10.1.0.3").here(), draining("10.1.0.4")];
    let state = state_with_endpoints(external_local(), &endpoints);
    assert_eq!(used_externally(&state), ["10.1.0.2:8080"]);
}

#[test]
fn local_without_a_local_endpoint_uses_those_of_the_cluster() {
    let state = state_with_endpoints(external_local(), &[ready("10.1.0.1"), unready("10.1.0.2").here()]);
    assert_eq!(used_externally(&state), ["10.1.0.1:8080"]);
    assert_eq!(without_local_endpoint(&state, Traffic::External), [1, 0]);
}

#[test]
fn that_fallback_prefers_as_hints_say_and_takes_terminating_ones_last() {
    let ours = ready("10.1.0.1").for_zones(&["a"]);
    let theirs = ready("10.1.0.2").for_zones(&["b"]);
    let state = state_with_endpoints(external_local(), &[ours, theirs]);
    assert_eq!(used_externally(&state), ["10.1.0.1:8080"]);
    let state = state_with_endpoints(external_local(), &[draining("10.1.0.1"), unready("10.1.0.2")]);
    assert_eq!(used_externally(&state), ["10.1.0.1:8080"]);
}

#[test]
fn the_external_policy_means_nothing_at_the_cluster_ip() {
    let endpoints = [ready("10.1.0.1"), ready("10.1.0.2").here()];
    let state = state_with_endpoints(external_local(), &endpoints);
    assert_eq!(real_servers(&state, CLUSTER_IP), ["10.1.0.1:8080", "10.1.0.2:8080"]);
    assert!(state.wants_element(&Element::ClusterIp(tcp(CLUSTER_IP))));
}

#[test]
fn the_internal_policy_means_nothing_at_external_addresses() {
    let web = Service { internal_traffic_policy: TrafficPolicy::Local, ..exposed() };
    let state = state_with_endpoints(web, &[ready("10.1.0.1"), ready("10.1.0.2").here()]);
    assert_eq!(used_externally(&state), ["10.1.0.1:8080", "10.1.0.2:8080"]);
    assert_eq!(real_servers(&state, CLUSTER_IP), ["10.1.0.2:8080"]);
}

#[test]
fn internal_policy_local_of_an_exposed_service_has_only_local_real_servers() {
    for external_traffic_policy in [TrafficPolicy::Cluster, TrafficPolicy::Local] {
        let web =
            Service { internal_traffic_policy: TrafficPolicy::Local, external_traffic_policy, ..exposed() };
        let state = state_with_endpoints(web, &[ready("10.1.0.1")]);
        assert!(real_servers(&state, CLUSTER_IP).is_empty());
        assert_eq!(used_externally(&state), ["10.1.0.1:8080"]);
    }
}

#[test]
fn terminating_endpoints_are_a_last_resort_for_each_policy_by_itself() {
    // Here only terminating ones, elsewhere a ready one.
    let web = Service { internal_traffic_policy: TrafficPolicy::Local, ..exposed() };
    let state = state_with_endpoints(web, &[ready("10.1.0.1"), draining("10.1.0.2").here()]);
    assert_eq!(real_servers(&state, CLUSTER_IP), ["10.1.0.2:8080"]);
    assert_eq!(used_externally(&state), ["10.1.0.1:8080"]);
}

#[test]
fn hints_do_not_narrow_local() {
    let state = state_with_endpoints(
        external_local(),
        &[
            ready("10.1.0.1").here().for_zones(&["a"]).for_nodes(&[NODE]),
            ready("10.1.0.2").here().for_zones(&["b"]).for_nodes(&["node-b"]),
        ],
    );
    assert_eq!(used_externally(&state), ["10.1.0.1:8080", "10.1.0.2:8080"]);
    assert_eq!(real_servers(&state, CLUSTER_IP), ["10.1.0.1:8080"]);
}

#[test]
fn local_keeps_the_client_s_address_even_where_it_falls_back() {
    for endpoint in [ready("10.1.0.1").here(), ready("10.1.0.1")] {
        let mut state = state_with_endpoints(external_local(), std::slice::from_ref(&endpoint));
        let in_set = |state: &State, set: fn(ServiceAddress) -> Element| {
            EXTERNAL.map(|at| state.wants_element(&set(tcp(at))))
        };
        let sets = |state: &State| [Element::External, Element::ExternalLocal].map(|set| in_set(state, set));
        assert_eq!(sets(&state), [[false; 3], [true; 3]]);
        state.apply(Change::Services(Event::Apply(exposed())));
        assert_eq!(sets(&state), [[true; 3], [false; 3]]);
        state.apply(Change::Services(Event::Apply(external_local())));
        assert_eq!(sets(&state), [[false; 3], [true; 3]]);
    }
}

#[test]
fn only_where_local_falls_back_clients_of_other_nodes_are_kept_away() {
    let kept_away = |state: &State| {
        let wants = |at| state.wants_element(&Element::LocalClientsOnly(tcp(at)));
        assert!(!wants(CLUSTER_IP));
        EXTERNAL.map(wants)
    };
    let both = Service { internal_traffic_policy: TrafficPolicy::Local, ..external_local() };
    let mut state = state_with_endpoints(both.clone(), &[ready("10.1.0.1")]);
    assert_eq!(kept_away(&state), [true; 3]);

    // An endpoint comes, and terminates.
    for here in [ready("10.1.0.2").here(), draining("10.1.0.2").here()] {
        state.apply(Change::Slices(Event::Apply(slice("web-1", "web", &[ready("10.1.0.1"), here]))));
        assert_eq!(kept_away(&state), [false; 3]);
    }
    let touched = state.apply(Change::Slices(Event::Apply(slice("web-1", "web", &[draining("10.1.0.1")]))));
    assert_eq!(kept_away(&state), [true; 3]);
    let at = EXTERNAL.map(|at| Element::LocalClientsOnly(tcp(at)));
    assert!(touched.elements.is_superset(&at.into()));

    state.apply(Change::Slices(Event::Apply(slice("web-1", "web", &[unready("10.1.0.1")]))));
    assert_eq!(kept_away(&state), [false; 3], "there is nothing to keep them from");
    let exposed = Service { external_traffic_policy: TrafficPolicy::Cluster, ..both };
    assert_eq!(kept_away(&state_with_endpoints(exposed, &[ready("10.1.0.1")])), [false; 3]);
}

#[test]
fn a_pod_that_is_used_at_an_external_address_alone_has_a_hairpin() {
    // The hints send what comes in at the ClusterIP to another node.
    let endpoints = [
        ready("10.1.0.1").for_zones(&["a"]),
        ready("10.1.0.2").here().for_zones(&["b"]),
        unready("10.1.0.3").here(),
    ];
    let hairpins = |web| {
        let elements = elements(&state_with_endpoints(web, &endpoints));
        elements.into_iter().filter(|element| element.starts_with("hairpin")).collect::<Vec<_>>()
    };
    assert_eq!(hairpins(external_local()), ["hairpin TCP 10.1.0.2:8080"]);
    assert!(hairpins(exposed()).is_empty());
}

#[test]
fn the_policy_counts_for_node_ports_and_load_balancers() {
    let endpoints = [ready("10.1.0.1"), ready("10.1.0.2").here()];
    for kind in [ServiceKind::NodePort, ServiceKind::LoadBalancer] {
        let web = Service { kind, external_ips: Vec::new(), ..external_local() };
        let state = state_with_endpoints(web, &endpoints);
        assert_eq!(real_servers(&state, EXTERNAL[2]), ["10.1.0.2:8080"], "{kind:?}");
    }
}

#[test]
fn the_policy_counts_for_a_cluster_ip_service_with_external_ips() {
    let web = Service {
        external_ips: ips(&["198.51.100.1"]),
        external_traffic_policy: TrafficPolicy::Local,
        ..service("web", "10.96.0.1")
    };
    let endpoints = [slice("web-1", "web", &[ready("10.1.0.1"), ready("10.1.0.2").here()])];
    let state = on_node(web.clone(), &endpoints);
    assert_eq!(real_servers(&state, EXTERNAL[0]), ["10.1.0.2:8080"]);

    // External IPs that are switched off do not expose it: an address left over is served for everybody.
    let left_over = Service { load_balancer_ips: ips(&["203.0.113.1"]), ..web };
    let options = service::Options { external_ips: service::ExternalIps::Off, ..options() };
    let state = state_with(options, &[left_over], &endpoints);
    assert_eq!(real_servers(&state, EXTERNAL[1]), ["10.1.0.1:8080", "10.1.0.2:8080"]);
}

#[test]
fn services_without_local_endpoint_are_counted_by_policy_and_family() {
    let internal = |state: &State| without_local_endpoint(state, Traffic::Internal);
    let external = |state: &State| without_local_endpoint(state, Traffic::External);
    let both = Service {
        internal_traffic_policy: TrafficPolicy::Local,
        cluster_ips: ips(&["10.96.0.1", "fd00::1"]),
        ..external_local()
    };
    let far =
        [slice("web-4", "web", &[ready("10.1.0.1")]), slice("web-6", "web", &[ready("fd01::1").here()])];
    let mut state = on_node(both.clone(), &far);
    assert_eq!((internal(&state), external(&state)), ([1, 0], [1, 0]));

    // A second Service, without a policy of that kind at its external side.
    let other = Service {
        name: name("other"),
        external_traffic_policy: TrafficPolicy::Cluster,
        cluster_ips: ips(&["10.96.0.2"]),
        ..both.clone()
    };
    state.apply(Change::Services(Event::Apply(other)));
    state.apply(Change::Slices(Event::Apply(slice("other-4", "other", &[draining("10.1.0.9")]))));
    assert_eq!((internal(&state), external(&state)), ([2, 0], [1, 0]));

    // A local endpoint that terminates is one.
    state.apply(Change::Slices(Event::Apply(slice(
        "web-4",
        "web",
        &[ready("10.1.0.1"), draining("10.1.0.2").here()],
    ))));
    assert_eq!((internal(&state), external(&state)), ([1, 0], [0, 0]));
    state.apply(Change::Services(Event::Delete(name("other"))));
    assert_eq!((internal(&state), external(&state)), ([0, 0], [0, 0]));
}

#[test]
fn a_service_lacks_endpoints_if_no_port_has_one_unless_the_policy_is_the_reason() {
    let lacking = |state: &State| {
        let names: Vec<_> = state.reports().lacking_endpoints().iter().map(ToString::to_string).collect();
        (state.reports().served(), names.join(" "))
    };
    let web = service("web", "10.96.0.1");
    let far = || Change::Slices(Event::Apply(slice("web-1", "web", &[ready("10.1.0.1")])));
    let mut state = state_of(std::slice::from_ref(&web), &[]);
    assert_eq!(lacking(&state), (1, "default/web".to_owned()));
    state.apply(far());
    assert_eq!(lacking(&state), (1, String::new()));

    let local = Service { internal_traffic_policy: TrafficPolicy::Local, ..web };
    state.apply(Change::Services(Event::Apply(local)));
    assert_eq!(lacking(&state), (1, String::new()), "another node has the endpoint");
    state.apply(Change::Slices(Event::Apply(slice("web-1", "web", &[]))));
    assert_eq!(lacking(&state), (1, "default/web".to_owned()), "no node has one");
    state.apply(Change::Services(Event::Delete(name("web"))));
    assert_eq!(lacking(&state), (0, String::new()));
}

#[test]
fn a_changed_count_alone_touches_the_reports() {
    let local = Service { internal_traffic_policy: TrafficPolicy::Local, ..service("web", "10.96.0.1") };
    let mut state = state_of(&[local], &[]);
    let touched = state.apply(Change::Slices(Event::Apply(slice("web-1", "web", &[ready("10.1.0.1")]))));
    assert_eq!(
        touched,
        Dirty { reports: true, ..Dirty::default() },
        "an endpoint on another node serves no client here"
    );
    assert_eq!(without_local_endpoint(&state, Traffic::Internal), [1, 0]);
}

#[test]
fn a_service_of_several_ports_without_local_endpoint_is_counted_once() {
    let web = Service {
        internal_traffic_policy: TrafficPolicy::Local,
        ports: vec![port("a", Protocol::Tcp, 80), port("b", Protocol::Tcp, 81), port("c", Protocol::Tcp, 82)],
        ..service("web", "10.96.0.1")
    };
    let serves = EndpointSlice {
        ports: vec![listening("a", Protocol::Tcp, 1), listening("b", Protocol::Tcp, 2)],
        ..slice("web-1", "web", &[ready("10.1.0.1")])
    };
    let state = state_of(&[web], &[serves]);
    assert_eq!(without_local_endpoint(&state, Traffic::Internal), [1, 0]);
    assert_eq!(without_local_endpoint(&state, Traffic::External), [0, 0]);
}

#[test]
fn a_service_without_any_endpoint_is_not_counted() {
    let both = Service { internal_traffic_policy: TrafficPolicy::Local, ..external_local() };
    for endpoints in [&[][..], &[unready("10.1.0.1")]] {
        let state = state_with_endpoints(both.clone(), endpoints);
        assert_eq!(without_local_endpoint(&state, Traffic::Internal), [0, 0]);
        assert_eq!(without_local_endpoint(&state, Traffic::External), [0, 0]);
    }
}

#[test]
fn an_external_policy_without_external_address_is_not_counted() {
    // A load balancer that has no address yet, without NodePorts.
    let pending = Service {
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        ports: vec![port("", Protocol::Tcp, 80)],
        ..external_local()
    };
    let state = state_with_endpoints(pending, &[ready("10.1.0.1")]);
    assert_eq!(without_local_endpoint(&state, Traffic::External), [0, 0]);
}

#[test]
fn virtual_servers_with_the_same_endpoints_share_one_list_of_them() {
    let lists = |web: Service, endpoints: &[Endpoint]| {
        // The other family comes between them.
        let dual = Service { cluster_ips: ips(&["10.96.0.1", "fd00::1"]), ..web };
        let other = slice("web-6", "web", &[ready("fd01::1")]);
        let state = on_node(dual, &[slice("web-4", "web", endpoints), other]);
        [CLUSTER_IP, EXTERNAL[0], EXTERNAL[2]]
            .map(|at| state.virtual_server(&tcp(at)).unwrap().real_servers.clone())
    };
    let [cluster_ip, external, node_port] = lists(exposed(), &[ready("10.1.0.1"), ready("10.1.0.2").here()]);
    assert!(Arc::ptr_eq(&cluster_ip, &external) && Arc::ptr_eq(&external, &node_port));
    // By two different policies the same.
    let [cluster_ip, external, _] = lists(external_local(), &[ready("10.1.0.2").here()]);
    assert!(Arc::ptr_eq(&cluster_ip, &external));
    let [cluster_ip, external, node_port] =
        lists(external_local(), &[ready("10.1.0.1"), ready("10.1.0.2").here()]);
    assert_ne!(cluster_ip, external);
    assert!(Arc::ptr_eq(&external, &node_port));
}
