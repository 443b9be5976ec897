use std::{num::NonZero, time::Duration};

use ipvs::{Family, ObservedRealServer, Protocol, RealServer, Scheduler, ServiceAddress};
use operator::explain;
use service::{
    AddressKind, AddressOwner, AddressRefusal, AddressUse, Change, EndpointPath, EndpointReason,
    EndpointScope, EndpointSelection, Event, ExplainedBalancing, ExplainedEndpoint, ExplainedPart,
    HealthCheck, HintsIgnored, Options, RefusedAddress, Service, SpecialAddress, State, TrafficPolicy,
    liveness::{Answering, Liveness},
};
use testkit::documented::assert_explained;

use super::{
    super::{documented_tests::assert_documented, output},
    *,
};

#[test]
fn its_json_is_documented() {
    assert_documented("explain", &answer());
}

#[test]
fn what_others_have_said_forges_no_line() {
    let text = |words: &str| {
        let mut answer = answer();
        answer.explanation.parts[0].port = words.to_owned();
        answer.explanation.parts[0].zone = Some(words.to_owned());
        answer.explanation.problems = vec![words.to_owned()];
        answer.to_string()
    };
    let forged = text("a\u{1b}[2J\nrefused: all is well");
    assert_eq!(forged.lines().count(), text("a").lines().count(), "{forged}");
    assert!(forged.contains(r"problem: a\u{1b}[2J\nrefused: all is well"), "{forged}");
}

/// An answer in which every field has a value.
fn answer() -> Answer {
    let address = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 10].into(), port: 80 };
    let real_server = RealServer::masquerade([10, 244, 1, 7].into(), 8080);
    let slice: ObjectName = "default/web-abc".parse().unwrap();
    let balancing = || ExplainedBalancing {
        scheduler: Scheduler::MH,
        scheduler_flags: vec!["mh-fallback".into()],
        max_connections: Some(100),
        resume_below: None,
    };
    let part = ExplainedPart {
        port: "http".to_owned(),
        protocol: Protocol::Tcp,
        family: Family::V4,
        selection: EndpointSelection::Ready(EndpointScope::Cluster),
        stands_in: false,
        direct_return: Some(balancing()),
        zone: Some("zone-a".to_owned()),
        hints_ignored: Some(HintsIgnored::NotOnEveryEndpoint),
        addresses: vec![ExplainedAddress {
            address,
            kind: AddressKind::LoadBalancer,
            policy: TrafficPolicy::Cluster,
            vip: true,
            owner: None,
            held_by: Some("default/older".parse().unwrap()),
            allowed_sources: Some(vec![([192, 0, 2, 0].into(), [192, 0, 2, 255].into())]),
        }],
        endpoints: vec![ExplainedEndpoint {
            address: real_server.address,
            slice: slice.clone(),
            reason: EndpointReason::NotReady,
            weight: NonZero::<u16>::MIN,
            way: Some(EndpointPath::Tunnel),
            answering: Some(Answering {
                liveness: Liveness::Silent,
                age: Duration::from_secs(12),
                failed_connections: 5,
            }),
        }],
        slices_without_port: vec![slice.clone()],
    };
    let why = AddressRefusal::Special(SpecialAddress::Loopback);
    let explanation = Explanation {
        service: "default/web".parse().unwrap(),
        not_served: None,
        balancing: Some(balancing()),
        session_affinity: Some(60),
        parts: vec![part],
        unused_slices: vec![slice],
        refused: vec![RefusedAddress { ip: [127, 0, 0, 1].into(), kind: AddressKind::ExternalIp, why }],
        health_check: NonZero::new(32_000).map(|port| HealthCheck { port, ready_v4: 1, ready_v6: 0 }),
        problems: vec!["spec.ports[1] is wrong".to_owned()],
    };
    let observed = ObservedRealServer::new(real_server).connections(2, 1);
    let (scheduler, real_servers) = (Some(Scheduler::MH), Some(vec![observed]));
    let syn_recv = Some(vec![explain::SynRecv { address: real_server.address, connections: 1 }]);
    let server = VirtualServer { address, scheduler, real_servers, syn_recv };
    Answer { explanation, kernel: Some(vec![server]) }
}

#[test]
fn an_affinity_that_ipvs_does_not_keep_so_short_is_explained_and_no_other() {
    let text = |affinity: Option<u32>| {
        let mut state = State::new(Options::new("node"));
        state.apply(Change::Slices(Event::Replace(Vec::new())));
        state.apply(Change::Services(Event::Apply(Service {
            cluster_ips: vec![[10, 96, 0, 10].into()],
            session_affinity: affinity,
            ..Service::new(ObjectName::new("default", "web"))
        })));
        let explanation = state.explain(&ObjectName::new("default", "web"));
        assert_eq!(explanation.session_affinity, affinity);
        Answer { explanation, kernel: None }.to_string()
    };
    let said = "session affinity of 119 s: IPVS keeps a client of TCP at its endpoint for 120 s at least after \
                its last connection\n";
    assert!(text(Some(119)).contains(said), "{}", text(Some(119)));
    for other in [Some(120), Some(10_800), None] {
        assert!(!text(other).contains("affinity"), "{}", text(other));
    }
}

fn address_answer() -> AddressExplanation {
    let ip: IpAddr = [192, 0, 2, 11].into();
    let address = ServiceAddress { protocol: Protocol::Tcp, ip, port: 80 };
    let service = "kube-system/traefik".parse().unwrap();
    let why = AddressRefusal::NodeIp;
    let refused = RefusedAddress { ip, kind: AddressKind::ExternalIp, why };
    AddressExplanation {
        ip,
        owner: AddressOwner::OtherNode,
        vip: false,
        uses: vec![AddressUse { address, kind: AddressKind::LoadBalancer, service }],
        refused: vec![("default/web".parse().unwrap(), refused)],
    }
}

#[test]
fn the_json_of_an_address_is_documented() {
    let printed = output::json(&address_answer()).unwrap();
    assert_explained("`kube-ipvs explain 192.0.2.11`", "explain-address", &printed);
}

#[test]
fn the_text_of_an_address_names_the_owner_what_is_served_and_what_is_refused() {
    assert_eq!(
        address_text(&address_answer()),
        "192.0.2.11: an IP of another node; not bound as a VIP\n  \
         TCP 192.0.2.11:80  load balancer of kube-system/traefik\n\
         refused: default/web: spec.externalIPs: 192.0.2.11 is not served: it is a node's IP, which \
         --external-ip-policy does not allow\n"
    );
}
