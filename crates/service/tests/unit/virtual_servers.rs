//! What a Service's virtual servers, VIPs and elements look like.

use crate::common::*;
use ipvs::{Forwarding, Protocol, Scheduler, ServiceFlags, Tunnel, VirtualServerId};
use service::{Change, EndpointSlice, Event, Options, Service, State, Urgency};

fn with_scheduler(scheduler: Scheduler) -> State {
    let mut state = state_with(Options { scheduler, ..options() }, &[], &[]);
    state.apply(Change::Services(Event::Apply(service("web", "10.96.0.1"))));
    state
}

#[test]
fn a_cluster_ip_has_the_configured_scheduler_and_no_flags() {
    let dual = Service { cluster_ips: vec![ip("10.96.0.1"), ip("fd00::1")], ..service("web", "10.96.0.1") };
    let mut state = state_with(Options { scheduler: Scheduler::WLC, ..options() }, &[], &[]);
    state.apply(Change::Services(Event::Apply(dual)));
    for (at, bits) in [("10.96.0.1:80", 32), ("[fd00::1]:80", 128)] {
        let config = config(&state, at);
        assert_eq!(config.id, VirtualServerId::Address(tcp(at)));
        assert_eq!(config.scheduler, Scheduler::WLC);
        assert_eq!(config.flags, ServiceFlags::empty());
        assert_eq!((config.timeout, config.prefix_length), (0, bits));
    }
}

#[test]
fn a_dual_stack_service_has_virtual_servers_at_both_cluster_ips() {
    let dual = Service { cluster_ips: vec![ip("fd00::1"), ip("10.96.0.1")], ..service("web", "10.96.0.1") };
    let state = state_of(
        &[dual],
        &[slice("web-4", "web", &[ready("10.1.0.1")]), slice("web-6", "web", &[ready("fd01::1")])],
    );
    assert_eq!(virtual_servers(&state), ["TCP 10.96.0.1:80", "TCP [fd00::1]:80"]);
    assert_eq!(vips(&state), ["10.96.0.1", "fd00::1"]);
    assert_eq!(real_servers(&state, "10.96.0.1:80"), ["10.1.0.1:8080"]);
    assert_eq!(real_servers(&state, "[fd00::1]:80"), ["[fd01::1]:8080"]);
}

#[test]
fn a_single_stack_service_has_nothing_in_the_other_family() {
    let state = state_of(&[service("web", "fd00::1")], &[slice("web-4", "web", &[ready("10.1.0.1").here()])]);
    assert_eq!(virtual_servers(&state), ["TCP [fd00::1]:80"]);
    assert_eq!(vips(&state), ["fd00::1"]);
    assert_eq!(elements(&state), ["cluster-ips TCP [fd00::1]:80"]);
}

#[test]
fn a_service_without_endpoints_has_a_virtual_server_without_real_servers() {
    let state = state_of(&[service("web", "10.96.0.1")], &[]);
    assert!(real_servers(&state, "10.96.0.1:80").is_empty());
    assert!(state.wants_vip(&ip("10.96.0.1")));
}

#[test]
fn one_name_and_number_for_tcp_and_udp_and_sctp_makes_three_virtual_servers() {
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let dns = Service {
        ports: protocols.map(|protocol| port("dns", protocol, 53)).into(),
        ..service("dns", "10.96.0.10")
    };
    let serves = EndpointSlice {
        ports: vec![listening("dns", Protocol::Tcp, 1053), listening("dns", Protocol::Udp, 2053)],
        ..slice("dns-1", "dns", &[ready("10.1.0.1")])
    };
    let state = state_of(&[dns], &[serves]);
    let at = |protocol| real_servers_of(&state, address(protocol, "10.96.0.10:53"));
    assert_eq!(at(Protocol::Tcp), ["10.1.0.1:1053"]);
    assert_eq!(at(Protocol::Udp), ["10.1.0.1:2053"]);
    assert!(at(Protocol::Sctp).is_empty());
    assert_eq!(vips(&state), ["10.96.0.10"]);
}

#[test]
fn a_port_listed_twice_is_served_once_as_the_first() {
    let twice = Service {
        ports: vec![port("first", Protocol::Tcp, 80), port("second", Protocol::Tcp, 80)],
        ..service("web", "10.96.0.1")
    };
    let both = EndpointSlice {
        ports: vec![listening("second", Protocol::Tcp, 2), listening("first", Protocol::Tcp, 1)],
        ..slice("web-1", "web", &[ready("10.1.0.1").here()])
    };
    let state = state_of(&[twice], &[both]);
    assert_eq!(real_servers(&state, "10.96.0.1:80"), ["10.1.0.1:1"]);
    assert_eq!(elements(&state), ["cluster-ips TCP 10.96.0.1:80", "hairpin TCP 10.1.0.1:1"]);
}

#[test]
fn a_real_server_is_masqueraded_with_weight_one() {
    let state = state_of(&[service("web", "10.96.0.1")], &[slice("web-1", "web", &[ready("10.1.0.1")])]);
    let [real] = *state.virtual_server(&tcp("10.96.0.1:80")).unwrap().real_servers else {
        panic!("one real server expected")
    };
    assert_eq!((real.forwarding, real.weight), (Forwarding::Masquerade, 1));
    assert_eq!((real.upper_threshold, real.lower_threshold, real.tunnel), (0, 0, Tunnel::default()));
}

#[test]
fn session_affinity_makes_the_virtual_server_persistent_and_its_end_clears_that() {
    let plain = service("web", "10.96.0.1");
    let mut state = state_of(std::slice::from_ref(&plain), &[]);
    for (affinity, flags, timeout) in [
        (Some(10_800), ServiceFlags::PERSISTENT, 10_800),
        (Some(60), ServiceFlags::PERSISTENT, 60),
        (None, ServiceFlags::empty(), 0),
    ] {
        let touched = state
            .apply(Change::Services(Event::Apply(Service { session_affinity: affinity, ..plain.clone() })));
        let config = config(&state, "10.96.0.1:80");
        assert_eq!((config.flags, config.timeout), (flags, timeout));
        assert_eq!(touched.virtual_servers, [tcp("10.96.0.1:80")].into());
        assert!(touched.vips.is_empty() && touched.elements.is_empty());
    }
}

#[test]
fn maglev_hashes_the_port_and_falls_back_from_draining_real_servers() {
    let flags = config(&with_scheduler(Scheduler::MH), "10.96.0.1:80").flags;
    assert_eq!(flags, ServiceFlags::SCHEDULER_1 | ServiceFlags::SCHEDULER_2);
}

#[test]
fn source_hashing_skips_draining_real_servers_and_hashes_the_address_only() {
    assert_eq!(config(&with_scheduler(Scheduler::SH), "10.96.0.1:80").flags, ServiceFlags::SCHEDULER_1);
}

#[test]
fn no_other_scheduler_has_flags() {
    let hashing = [Scheduler::SH, Scheduler::MH];
    for scheduler in Scheduler::ALL.into_iter().filter(|it| !hashing.contains(it)) {
        assert_eq!(config(&with_scheduler(scheduler), "10.96.0.1:80").flags, ServiceFlags::empty());
    }
}

#[test]
fn a_new_port_replaces_the_virtual_server_and_keeps_the_vip() {
    let web = service("web", "10.96.0.1");
    let mut state = state_of(std::slice::from_ref(&web), &[]);
    let touched = state
        .apply(Change::Services(Event::Apply(Service { ports: vec![port("", Protocol::Tcp, 81)], ..web })));
    assert_eq!(virtual_servers(&state), ["TCP 10.96.0.1:81"]);
    assert_eq!(touched.virtual_servers, [tcp("10.96.0.1:80"), tcp("10.96.0.1:81")].into());
    assert!(touched.vips.is_empty());
}

#[test]
fn every_cluster_ip_is_in_the_set_of_cluster_ips() {
    let dual = Service {
        cluster_ips: vec![ip("10.96.0.1"), ip("fd00::1")],
        ports: vec![port("a", Protocol::Tcp, 80), port("b", Protocol::Udp, 53)],
        ..service("web", "10.96.0.1")
    };
    assert_eq!(
        elements(&state_of(&[dual], &[])),
        [
            "cluster-ips TCP 10.96.0.1:80",
            "cluster-ips TCP [fd00::1]:80",
            "cluster-ips UDP 10.96.0.1:53",
            "cluster-ips UDP [fd00::1]:53",
        ]
    );
}

#[test]
fn a_pod_of_this_node_has_a_hairpin_while_it_is_a_real_server() {
    let mut state = state_of(
        &[service("web", "10.96.0.1")],
        &[slice("web-1", "web", &[ready("10.1.0.1").here(), ready("10.1.0.2"), unready("10.1.0.3").here()])],
    );
    assert_eq!(elements(&state), ["cluster-ips TCP 10.96.0.1:80", "hairpin TCP 10.1.0.1:8080"]);
    state.apply(Change::Slices(Event::Apply(slice("web-1", "web", &[draining("10.1.0.1").here()]))));
    assert_eq!(elements(&state), ["cluster-ips TCP 10.96.0.1:80", "hairpin TCP 10.1.0.1:8080"]);
    state.apply(Change::Slices(Event::Apply(slice("web-1", "web", &[unready("10.1.0.1").here()]))));
    assert_eq!(elements(&state), ["cluster-ips TCP 10.96.0.1:80"]);
}

#[test]
fn the_api_server_and_cluster_dns_are_urgent() {
    let dns = |text: &str, at: &str| Service {
        ports: vec![port("metrics", Protocol::Tcp, 9153), port("dns", Protocol::Udp, 53)],
        ..service(text, at)
    };
    let state = state_of(
        &[
            service("default/kubernetes", "10.96.0.1"),
            dns("kube-system/rke2-coredns", "10.96.0.10"),
            service("kube-system/metrics-server", "10.96.0.11"),
            dns("default/my-dns", "10.96.0.12"),
            service("other/kubernetes", "10.96.0.13"),
        ],
        &[],
    );
    for (vip, urgency) in [
        ("10.96.0.1", Urgency::First),
        ("10.96.0.10", Urgency::First),
        ("10.96.0.11", Urgency::Normal),
        ("10.96.0.12", Urgency::Normal),
        ("10.96.0.13", Urgency::Normal),
        ("10.96.0.99", Urgency::Normal),
    ] {
        assert_eq!(state.urgency(&ip(vip)), urgency, "{vip}");
    }
}

#[test]
fn an_address_is_no_longer_urgent_when_the_urgent_service_is_gone() {
    let mut state = state_of(&[service("default/kubernetes", "10.96.0.1")], &[]);
    state.apply(Change::Services(Event::Delete(name("default/kubernetes"))));
    state.apply(Change::Services(Event::Apply(service("web", "10.96.0.1"))));
    assert_eq!(state.urgency(&ip("10.96.0.1")), Urgency::Normal);
}
