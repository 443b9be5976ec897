use std::{net::IpAddr, num::NonZero};

use ipvs::Protocol;
use serde_json::{Value, json};
use service::{ServicePort, TrafficPolicy};

use super::*;

pub(super) fn decoded(value: Value) -> Decoded<Service> {
    serde_json::from_value::<View<Service>>(value).unwrap().decoded
}

/// The Service with this spec and this status.
pub(super) fn with(spec: Value, status: Value) -> Service {
    let metadata = json!({"name": "web", "namespace": "shop", "managedFields": [{"manager": "kubectl"}]});
    let object = Value::from_iter([("metadata", metadata), ("spec", spec), ("status", status)]);
    let Decoded::Object(service) = decoded(object) else { panic!("not decoded") };
    service
}

pub(super) fn with_spec(spec: Value) -> Service {
    with(spec, Value::Null)
}

#[test]
fn a_service_is_read_whole() {
    let Decoded::Object(service) = decoded(json!({
        "metadata": {
            "name": "web", "namespace": "shop", "creationTimestamp": "2026-01-02T03:04:05Z",
            "labels": {"service.kubernetes.io/service-proxy-name": ""}
        },
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00::7"],
            "ipFamilies": ["IPv4", "IPv6"], "externalIPs": ["198.51.100.7"],
            "ports": [
                {"name": "dns", "protocol": "UDP", "port": 53, "nodePort": 30053},
                {"name": "dns", "protocol": "TCP", "port": 53, "nodePort": 30053},
                {"name": "s", "protocol": "SCTP", "port": 99, "appProtocol": "x"}
            ],
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local",
            "loadBalancerSourceRanges": ["192.0.2.0/24"],
            "healthCheckNodePort": 30099, "allocateLoadBalancerNodePorts": true
        },
        "status": {
            "loadBalancer": {"ingress": [{"ip": "192.0.2.7", "ipMode": "VIP", "ports": []}]},
            "conditions": []
        }
    })) else {
        panic!("not decoded")
    };
    let port = |name: &str, protocol, port, node_port| ServicePort {
        name: name.into(),
        protocol,
        port,
        node_port: NonZero::new(node_port),
    };
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(
        service,
        Service {
            name: ObjectName::new("shop", "web"),
            created: Some(1_767_323_045),
            kind: ServiceKind::LoadBalancer,
            cluster_ips: vec![ip("10.96.0.7"), ip("fd00::7")],
            external_ips: vec![ip("198.51.100.7")],
            load_balancer_ips: vec![ip("192.0.2.7")],
            load_balancer_source_ranges: Some(vec!["192.0.2.0/24".parse().unwrap()]),
            ports: vec![
                port("dns", Protocol::Udp, 53, 30053),
                port("dns", Protocol::Tcp, 53, 30053),
                port("s", Protocol::Sctp, 99, 0)
            ],
            session_affinity: Some(60),
            internal_traffic_policy: TrafficPolicy::Local,
            external_traffic_policy: TrafficPolicy::Local,
            balancing: None,
            health_check_node_port: NonZero::new(30099),
            other_proxy: true,
            problems: Vec::new(),
        }
    );
}

#[test]
fn a_service_whose_every_field_is_wrong_is_still_a_service() {
    let service = with(
        json!({
            "type": 1, "clusterIP": {}, "clusterIPs": "x", "ipFamilies": 7, "externalIPs": true,
            "ports": {"a": 1}, "sessionAffinity": [], "sessionAffinityConfig": 1,
            "internalTrafficPolicy": "Nearby", "externalTrafficPolicy": 2, "healthCheckNodePort": "x",
            "loadBalancerSourceRanges": "all",
        }),
        json!({"loadBalancer": []}),
    );
    let problems = [
        "status.loadBalancer: [] is not an object",
        "spec.loadBalancerSourceRanges: \"all\" is not a list",
        "spec.loadBalancerSourceRanges: none can be used; no client is let in",
        "spec.type: 1 is not a string",
        "spec.clusterIP: {} is not a string",
        "spec.clusterIPs: \"x\" is not a list",
        "spec.ipFamilies: 7 is not a list",
        "spec.externalIPs: true is not a list",
        "spec.ports: {\"a\":1} is not a list",
        "spec.sessionAffinity: [] is not a string",
        "spec.internalTrafficPolicy: \"Nearby\" is not Cluster or Local; taken as Cluster",
        "spec.externalTrafficPolicy: 2 is not a string",
        "spec.healthCheckNodePort: \"x\" is not an integer",
    ];
    let nothing = Service {
        load_balancer_source_ranges: Some(Vec::new()),
        ..Service::new(ObjectName::new("shop", "web"))
    };
    assert_eq!(service, Service { problems: problems.map(String::from).into(), ..nothing });
}

#[test]
fn a_health_check_port_of_0_is_none_and_one_out_of_range_is_reported() {
    assert_eq!(with_spec(json!({"healthCheckNodePort": 0})).problems, Vec::<String>::new());
    let service = with_spec(json!({"healthCheckNodePort": 65_536}));
    assert_eq!(service.health_check_node_port, None);
    assert_eq!(service.problems, ["spec.healthCheckNodePort: 65536 is not between 1 and 65535"]);
}

#[test]
fn an_object_without_a_name_cannot_be_used() {
    assert!(matches!(decoded(json!({"metadata": {"namespace": "shop"}})), Decoded::Unusable(_)));
    assert_eq!(decoded(json!(5)), Decoded::Unusable("Service: 5 is not an object".into()));
}

#[test]
fn an_address_of_a_family_without_cluster_ip_is_named() {
    let service = with(
        json!({"clusterIP": "10.96.0.7", "externalIPs": ["2001:db8::1", "198.51.100.7"]}),
        json!({"loadBalancer": {"ingress": [{"ip": "2001:db8::2"}]}}),
    );
    assert_eq!(
        service.problems,
        [
            "spec.externalIPs: 2001:db8::1 is not served: the Service has no IPv6 ClusterIP",
            "status.loadBalancer.ingress: 2001:db8::2 is not served: the Service has no IPv6 ClusterIP",
        ]
    );
    assert_eq!(with(json!({"externalIPs": ["2001:db8::1"]}), json!({})).problems, [""; 0]);
}

#[test]
fn a_load_balancers_address_that_ranges_of_the_other_family_leave_open_is_named() {
    let problems = |cluster_ips: &[&str], ranges: &[&str]| {
        let spec = json!({"clusterIPs": cluster_ips, "loadBalancerSourceRanges": ranges});
        let ingress = json!([{"ip": "192.0.2.7"}, {"ip": "2001:db8::7"}, {"ip": "2001:db8::8"}]);
        with(spec, json!({"loadBalancer": {"ingress": ingress}})).problems
    };
    let dual = ["10.96.0.7", "fd00::7"];
    assert_eq!(
        problems(&dual, &["10.0.0.0/8"]),
        [
            "spec.loadBalancerSourceRanges: none is IPv6; every client is let in at 2001:db8::7",
            "spec.loadBalancerSourceRanges: none is IPv6; every client is let in at 2001:db8::8",
        ]
    );
    assert_eq!(
        problems(&dual, &["fd00::/8"]),
        ["spec.loadBalancerSourceRanges: none is IPv4; every client is let in at 192.0.2.7"]
    );
    for ranges in [&[][..], &["10.0.0.0/8", "fd00::/8"], &["0.0.0.0/0", "::/0"]] {
        assert_eq!(problems(&dual, ranges), [""; 0], "{ranges:?}");
    }
    // Where nothing is served, no client is let in.
    let single = problems(&dual[..1], &["10.0.0.0/8"]);
    assert!(single.iter().all(|problem| problem.contains("is not served")), "{single:?}");
}

#[test]
fn a_bad_port_is_left_out_and_named() {
    let service = with_spec(json!({"clusterIP": "10.0.0.1", "ports": [
        {"port": 80},
        {"name": "icmp", "port": 1, "protocol": "ICMP"},
        "http",
        {"name": "zero", "port": 0},
        {"name": "text", "port": "80"},
        {"name": "none"},
        {"name": "again", "port": 80},
        {"name": "", "port": 81},
    ]}));
    assert_eq!(service.ports.iter().map(|port| port.port).collect::<Vec<_>>(), [80]);
    assert_eq!(
        service.problems,
        [
            "spec.ports[1].protocol: \"ICMP\" is not TCP, UDP or SCTP",
            "spec.ports[2]: \"http\" is not an object",
            "spec.ports[3].port: 0 is not between 1 and 65535",
            "spec.ports[4].port: \"80\" is not an integer",
            "spec.ports[5].port: not set",
            "spec.ports[6]: TCP 80 is taken by an earlier port",
            "spec.ports[7]: the TCP port name \"\" is taken by an earlier port",
        ]
    );
}

#[test]
fn a_port_without_a_node_port_or_with_a_bad_one_is_served_all_the_same() {
    let service = with_spec(json!({"ports": [
        {"name": "a", "port": 80, "nodePort": 30080},
        {"name": "b", "port": 81},
        {"name": "c", "port": 82, "nodePort": 0},
        {"name": "d", "port": 83, "nodePort": 65536},
        {"name": "e", "port": 84, "nodePort": -1},
        {"name": "f", "port": 85, "nodePort": "30085"},
    ]}));
    let ports = service.ports.iter().map(|port| (port.port, port.node_port.map_or(0, NonZero::get)));
    assert_eq!(ports.collect::<Vec<_>>(), [(80, 30080), (81, 0), (82, 0), (83, 0), (84, 0), (85, 0)]);
    assert_eq!(
        service.problems,
        [
            "spec.ports[3].nodePort: 65536 is not between 1 and 65535",
            "spec.ports[4].nodePort: -1 is not between 1 and 65535",
            "spec.ports[5].nodePort: \"30085\" is not an integer",
        ]
    );
}

#[test]
fn client_affinity_without_a_timeout_lasts_three_hours() {
    assert_eq!(with_spec(json!({"sessionAffinity": "ClientIP"})).session_affinity, Some(10_800));
    assert_eq!(with_spec(json!({"sessionAffinity": "None"})).session_affinity, None);
}

#[test]
fn an_affinity_timeout_out_of_range_is_clamped_and_reported() {
    for (asked, given) in [(0, 1), (-5, 1), (86_401, 86_400), (i64::MAX, 86_400)] {
        let service = with_spec(json!({
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": asked}},
        }));
        assert_eq!(service.session_affinity, Some(given));
        assert_eq!(service.problems.len(), 1);
    }
}

#[test]
fn the_two_traffic_policies_are_read_apart() {
    let policies = |spec| {
        let service = with_spec(spec);
        (service.internal_traffic_policy, service.external_traffic_policy)
    };
    let (cluster, local) = (TrafficPolicy::Cluster, TrafficPolicy::Local);
    assert_eq!(policies(json!({})), (cluster, cluster));
    assert_eq!(policies(json!({"internalTrafficPolicy": "Local"})), (local, cluster));
    assert_eq!(policies(json!({"externalTrafficPolicy": "Local"})), (cluster, local));
}

#[test]
fn an_unknown_external_policy_is_taken_as_cluster() {
    let service = with_spec(json!({"externalTrafficPolicy": "Nearby"}));
    assert_eq!(service.external_traffic_policy, TrafficPolicy::Cluster);
    assert_eq!(
        service.problems,
        ["spec.externalTrafficPolicy: \"Nearby\" is not Cluster or Local; taken as Cluster"]
    );
}
