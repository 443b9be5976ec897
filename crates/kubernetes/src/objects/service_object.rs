//! Services.

mod addresses;
mod balancing;
mod policies;
mod ports;
mod source_ranges;

use serde::Deserialize;
use service::{ObjectName, Service, ServiceKind};

use self::{addresses::RawStatus, policies::RawAffinityConfig, ports::RawPort};
use super::{
    Decoded, Kind, Problems, View,
    field::{Field, List, Quoted, Text, object},
    metadata::{Metadata, RawMetadata, nameless},
    values::optional_port,
};

/// A Service as it is sent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawService {
    metadata: Field<RawMetadata>,
    spec: Field<RawSpec>,
    status: Field<RawStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawSpec {
    #[serde(rename = "type")]
    kind: Field<Text>,
    #[serde(rename = "clusterIP")]
    cluster_ip: Field<Text>,
    #[serde(rename = "clusterIPs")]
    cluster_ips: List<Text>,
    ip_families: List<Text>,
    #[serde(rename = "externalIPs")]
    external_ips: List<Text>,
    ports: List<RawPort>,
    session_affinity: Field<Text>,
    session_affinity_config: Field<RawAffinityConfig>,
    internal_traffic_policy: Field<Text>,
    external_traffic_policy: Field<Text>,
    load_balancer_source_ranges: List<Text>,
    health_check_node_port: Field<i64>,
}

object!(RawService { 1 => metadata, 2 => spec, 3 => status });
object!(RawSpec {
    1 => ports,
    3 => cluster_ip unless is_empty,
    4 => kind unless is_empty,
    5 => external_ips,
    7 => session_affinity unless is_empty,
    9 => load_balancer_source_ranges,
    11 => external_traffic_policy unless is_empty,
    12 => health_check_node_port unless is_empty,
    14 => session_affinity_config,
    18 => cluster_ips,
    19 => ip_families,
    22 => internal_traffic_policy,
});

impl Kind for Service {
    const KIND: &'static str = "Service";
    const GROUP: &'static str = "";
    const PLURAL: &'static str = "services";
    const ALWAYS_SOME: bool = true;

    type Raw = RawService;

    fn read(raw: RawService) -> View<Self> {
        let mut problems = Problems::default();
        let mut metadata = Metadata::read(raw.metadata, &mut problems);
        let decoded = match metadata.object_name() {
            None => Decoded::Unusable(nameless(problems)),
            Some(name) => {
                let spec = raw.spec.read("spec", &mut problems).unwrap_or_default();
                Decoded::Object(service(name, &mut metadata, spec, raw.status, problems))
            }
        };
        metadata.view(decoded)
    }

    fn problems(&self) -> &[String] {
        &self.problems
    }
}

fn service(
    name: ObjectName,
    metadata: &mut Metadata,
    spec: RawSpec,
    status: Field<RawStatus>,
    mut problems: Problems,
) -> Service {
    let load_balancer_ips = addresses::load_balancer_ips(status, &mut problems);
    let load_balancer_source_ranges =
        source_ranges::source_ranges(spec.load_balancer_source_ranges, &mut problems);
    let mut service = Service {
        name,
        created: metadata.created,
        kind: kind(spec.kind, &mut problems),
        cluster_ips: addresses::cluster_ips(
            spec.cluster_ip,
            spec.cluster_ips,
            spec.ip_families,
            &mut problems,
        ),
        external_ips: addresses::external_ips(spec.external_ips, &mut problems),
        load_balancer_ips,
        load_balancer_source_ranges,
        ports: ports::ports(spec.ports, &mut problems),
        session_affinity: policies::affinity(
            spec.session_affinity,
            spec.session_affinity_config,
            &mut problems,
        ),
        internal_traffic_policy: policies::traffic(
            spec.internal_traffic_policy,
            "spec.internalTrafficPolicy",
            &mut problems,
        ),
        external_traffic_policy: policies::traffic(
            spec.external_traffic_policy,
            "spec.externalTrafficPolicy",
            &mut problems,
        ),
        health_check_node_port: optional_port(
            spec.health_check_node_port,
            "spec.healthCheckNodePort",
            &mut problems,
        ),
        balancing: balancing::balancing(metadata, &mut problems),
        // Any value counts, even the empty one: only the label's presence matters.
        other_proxy: metadata.has_label("service.kubernetes.io/service-proxy-name"),
        problems: Vec::new(),
    };
    service.unserved().into_iter().for_each(|(at, why)| problems.add(at, why));
    service.problems = problems.into_vec();
    service
}

fn kind(field: Field<Text>, problems: &mut Problems) -> ServiceKind {
    match field.read("spec.type", problems).as_deref() {
        None | Some("ClusterIP") => ServiceKind::ClusterIp,
        Some("NodePort") => ServiceKind::NodePort,
        Some("LoadBalancer") => ServiceKind::LoadBalancer,
        Some("ExternalName") => ServiceKind::ExternalName,
        Some(other) => {
            problems.add("spec.type", format_args!("{} is unknown; taken as ClusterIP", Quoted(other)));
            ServiceKind::ClusterIp
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, num::NonZero};

    use ipvs::Protocol;
    use serde_json::{Value, json};
    use service::{ServicePort, TrafficPolicy};

    use super::super::View;
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
                "spec.loadBalancerSourceRanges: none is of IPv6; every client is let in at 2001:db8::7",
                "spec.loadBalancerSourceRanges: none is of IPv6; every client is let in at 2001:db8::8",
            ]
        );
        assert_eq!(
            problems(&dual, &["fd00::/8"]),
            ["spec.loadBalancerSourceRanges: none is of IPv4; every client is let in at 192.0.2.7"]
        );
        for ranges in [&[][..], &["10.0.0.0/8", "fd00::/8"], &["0.0.0.0/0", "::/0"]] {
            assert_eq!(problems(&dual, ranges), [""; 0], "{ranges:?}");
        }
        // Nobody is let in where nothing is served.
        let single = problems(&dual[..1], &["10.0.0.0/8"]);
        assert!(single.iter().all(|problem| problem.contains("is not served")), "{single:?}");
    }
}
