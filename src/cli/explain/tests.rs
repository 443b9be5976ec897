use std::{collections::BTreeSet, num::NonZero, time::Duration};

use ipvs::{Family, ObservedRealServer, Protocol, RealServer, RealServerAddress, Scheduler, ServiceAddress};
use operator::explain;
use service::{
    AddressExplanation, AddressKind, AddressOwner, AddressRefusal, AddressUse, Admission, Change,
    EndpointPath, EndpointReason, EndpointScope, EndpointSelection, EndpointSlice, EndpointUse, Event,
    ExplainedBalancing, ExplainedClient, ExplainedEndpoint, ExplainedPart, HealthCheck, HintsIgnored,
    Options, RefusedAddress, Service, ServicePort, SourceAddress, SpecialAddress, State, TrafficPolicy,
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
            untracked: false,
            owner: None,
            held_by: Some("default/older".parse().unwrap()),
            allowed_sources: Some(vec![([192, 0, 2, 0].into(), [192, 0, 2, 255].into())]),
            source_ranges: Some(vec!["192.0.2.0/24".parse().unwrap()]),
            client: Some(ExplainedClient {
                ip: [192, 0, 2, 9].into(),
                admission: Admission::SourceRange("192.0.2.0/24".parse().unwrap()),
                source: SourceAddress::PolicyCluster,
                may_reach_itself: false,
            }),
        }],
        endpoints: vec![ExplainedEndpoint {
            address: real_server.address,
            slice: slice.clone(),
            reason: EndpointReason::NotReady,
            weight: 1,
            weight_parts: None,
            way: Some(EndpointPath::Tunnel),
            answering: Some(Answering {
                liveness: Liveness::Silent,
                age: Duration::from_secs(12),
                failed_connections: 5,
            }),
        }],
        slices_without_port: vec![slice.clone()],
        empty_slices: vec![slice.clone()],
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
        hints: vec!["did you mean default/web?".to_owned()],
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
    let said = "session affinity of 119 s: IPVS keeps a TCP client at its endpoint for at least 120 s after \
                its last connection\n";
    assert!(text(Some(119)).contains(said), "{}", text(Some(119)));
    for other in [Some(120), Some(10_800), None] {
        assert!(!text(other).contains("affinity"), "{}", text(other));
    }
}

fn address_answer() -> AddressAnswer {
    let ip: IpAddr = [192, 0, 2, 11].into();
    let address = ServiceAddress { protocol: Protocol::Tcp, ip, port: 80 };
    let service: ObjectName = "kube-system/traefik".parse().unwrap();
    let why = AddressRefusal::NodeIp;
    let refused = RefusedAddress { ip, kind: AddressKind::ExternalIp, why };
    let web: ObjectName = "default/web".parse().unwrap();
    let endpoint = EndpointUse {
        service: web.clone(),
        slice: "default/web-1".parse().unwrap(),
        address: RealServerAddress { ip, port: 8080 },
        verdict: Some(EndpointReason::Used),
        not_served: Some(NotServed::NoClusterIp),
    };
    AddressAnswer {
        explanation: AddressExplanation {
            ip: Some(ip),
            owner: Some(AddressOwner::OtherNode),
            vip: false,
            uses: vec![AddressUse { address, kind: AddressKind::LoadBalancer, service }],
            refused: vec![(web.clone(), refused)],
            port: Some(80),
            served: Vec::new(),
            endpoint_of: vec![endpoint],
            asked_by: [web.clone()].into(),
            node_port_of: [web].into(),
            node_port_addresses: vec![ip],
        },
        kernel: Some(Vec::new()),
    }
}

#[test]
fn the_json_of_an_address_is_documented() {
    let printed = output::json(&address_answer()).unwrap();
    assert_explained("`kube-ipvs explain 192.0.2.11`", "explain-address", &printed);
}

/// The text for an address in a state with one Service, `default/web`.
fn address_text(change: impl FnOnce(&mut AddressExplanation)) -> String {
    let mut answer = address_answer();
    let it = &mut answer.explanation;
    (it.endpoint_of, it.asked_by, it.node_port_of) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    change(it);
    answer.to_string()
}

const OWNER: &str = "192.0.2.11: an IP of another node; not bound as a VIP\n";
const USE: &str = "  TCP 192.0.2.11:80  load balancer of kube-system/traefik\n";
const REFUSED: &str = "refused: default/web: spec.externalIPs: 192.0.2.11 is not served: it is a node's IP, which \
                       --external-ip-policy does not allow\n";

#[test]
fn the_text_of_an_address_names_the_owner_what_is_served_and_what_is_refused() {
    assert_eq!(address_text(|it| it.port = None), [OWNER, USE, REFUSED].concat());
}

#[test]
fn the_text_of_a_port_of_no_service_names_those_that_there_are() {
    let missing = "no Service is served at port 81 there; there are\n";
    assert_eq!(address_text(|it| it.port = Some(81)), [OWNER, missing, USE, REFUSED].concat());
}

#[test]
fn the_text_of_a_node_port_names_the_addresses_that_serve_it() {
    let text = address_text(|it| {
        (it.owner, it.uses, it.refused) = (Some(AddressOwner::Interface), Vec::new(), Vec::new());
        (it.port, it.node_port_of) = (Some(30_081), ["default/web".parse().unwrap()].into());
        it.node_port_addresses = vec![[192, 0, 2, 1].into()];
    });
    assert_eq!(
        text,
        "192.0.2.11: an address of an interface of this node; not bound as a VIP\n\
         no Service is served at port 30081 there\n\
         30081 is the NodePort of default/web: --nodeport-addresses leaves the address out; this node serves \
         NodePorts at 192.0.2.1\n"
    );
    let number = |node_port_of: &[&str]| {
        address_text(|it| {
            (it.ip, it.owner, it.uses, it.refused) = (None, None, Vec::new(), Vec::new());
            it.port = Some(30_081);
            it.node_port_of = node_port_of.iter().map(|name| name.parse().unwrap()).collect();
            it.node_port_addresses = Vec::new();
        })
    };
    assert_eq!(number(&[]), "no Service has the NodePort 30081\n");
    assert_eq!(
        number(&["default/web"]),
        "30081 is the NodePort of default/web; this node serves NodePorts at no address\n"
    );
}

#[test]
fn the_text_of_a_pods_address_names_its_services() {
    let text = address_text(|it| {
        (it.owner, it.uses, it.refused) = (Some(AddressOwner::PodRange), Vec::new(), Vec::new());
        it.port = None;
        it.endpoint_of = address_answer().explanation.endpoint_of;
        it.endpoint_of[0].not_served = None;
    });
    assert_eq!(
        text,
        "192.0.2.11: in the range of a node's pods; not bound as a VIP\n\
         endpoint: 192.0.2.11:8080 of default/web, default/web-1: used\n"
    );
}

#[test]
fn a_service_without_endpoints_names_the_next_command() {
    let text = |slices: Vec<EndpointSlice>| {
        let mut state = State::new(Options::new("node"));
        state.apply(Change::Slices(Event::Replace(slices)));
        let ports = vec![ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None }];
        let cluster_ips = vec![[10, 96, 0, 10].into()];
        let service = Service { cluster_ips, ports, ..Service::new(ObjectName::new("default", "web")) };
        state.apply(Change::Services(Event::Apply(service)));
        let explanation = state.explain(&ObjectName::new("default", "web"));
        Answer { explanation, kernel: None }.to_string()
    };
    let none = "  no EndpointSlice of IPv4 belongs to the Service: kubectl -n default get endpointslices -l \
                kubernetes.io/service-name=web\n";
    assert!(text(Vec::new()).contains(none), "{}", text(Vec::new()));
    let empty = EndpointSlice::new(
        ObjectName::new("default", "web-1"),
        ObjectName::new("default", "web"),
        Family::V4,
    );
    let named = "  EndpointSlice default/web-1 has no endpoint: no pod matches spec.selector, or none has an address: \
                 kubectl -n default describe service web\n";
    assert!(text(vec![empty.clone()]).contains(named), "{}", text(vec![empty]));
}

#[test]
fn the_text_of_a_client_stands_below_the_address_with_the_source_ranges_as_written() {
    let text = answer().to_string();
    assert!(text.contains(", only from 192.0.2.0/24"), "{text}");
    let client = "\n                     192.0.2.9 is let in by the source range 192.0.2.0/24; masqueraded: \
         externalTrafficPolicy is Cluster\n";
    assert!(text.contains(client), "{text}");
}
