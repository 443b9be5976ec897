//! Services.

mod addresses;
mod balancing;
mod ports;

use service::{ObjectName, Service, ServiceKind, TrafficPolicy};

use self::{addresses::RawStatus, ports::RawPort};
use super::{
    Decoded, Kind, Problems, View,
    field::{Field, List, Quoted, Text, object},
    metadata::{Metadata, RawMetadata, nameless},
    values::optional_port,
};

object! {
    /// A Service as it is sent.
    pub(crate) struct RawService<'a> {
        1 => metadata: Field<RawMetadata<'a>>,
        2 => spec: Field<RawSpec<'a>>,
        3 => status: Field<RawStatus<'a>>,
    }

    struct RawSpec<'a> {
        1 => ports: List<RawPort<'a>>,
        #[serde(rename = "clusterIP")]
        3 unless is_empty => cluster_ip: Field<Text<'a>>,
        #[serde(rename = "type")]
        4 unless is_empty => kind: Field<Text<'a>>,
        #[serde(rename = "externalIPs")]
        5 => external_ips: List<Text<'a>>,
        7 unless is_empty => session_affinity: Field<Text<'a>>,
        9 => load_balancer_source_ranges: List<Text<'a>>,
        11 unless is_empty => external_traffic_policy: Field<Text<'a>>,
        12 unless is_empty => health_check_node_port: Field<i64>,
        14 => session_affinity_config: Field<RawAffinityConfig>,
        #[serde(rename = "clusterIPs")]
        18 => cluster_ips: List<Text<'a>>,
        19 => ip_families: List<Text<'a>>,
        22 => internal_traffic_policy: Field<Text<'a>>,
    }

    /// `spec.sessionAffinityConfig` as it is sent.
    struct RawAffinityConfig {
        #[serde(rename = "clientIP")]
        1 => client_ip: Field<RawClientIp>,
    }

    struct RawClientIp {
        1 => timeout_seconds: Field<i64>,
    }
}

impl Kind for Service {
    const KIND: &'static str = "Service";
    const GROUP: &'static str = "";
    const PLURAL: &'static str = "services";
    const ALWAYS_SOME: bool = true;

    type Raw<'a> = RawService<'a>;

    fn read(raw: RawService<'_>) -> View<Self> {
        let mut problems = Problems::default();
        let mut metadata = Metadata::read(raw.metadata, &mut problems);
        let decoded = match metadata.object_name() {
            None => Decoded::Unusable(nameless(problems)),
            Some(name) => {
                let spec = raw.spec.read("spec", &mut problems).unwrap_or_default();
                let mut service = service(name, &mut metadata, spec, raw.status, &mut problems);
                service.unserved().into_iter().for_each(|(at, why)| problems.add(at, why));
                service.problems = problems.into_vec();
                Decoded::Object(service)
            }
        };
        metadata.view(decoded)
    }

    fn problems(&self) -> &[String] {
        &self.problems
    }
}

/// A Service with everything but its problems.
fn service(
    name: ObjectName,
    metadata: &mut Metadata<'_>,
    spec: RawSpec<'_>,
    status: Field<RawStatus<'_>>,
    problems: &mut Problems,
) -> Service {
    Service {
        name,
        load_balancer_ips: addresses::load_balancer_ips(status, problems),
        load_balancer_source_ranges: addresses::source_ranges(spec.load_balancer_source_ranges, problems),
        created: metadata.created,
        kind: kind(spec.kind, problems),
        cluster_ips: addresses::cluster_ips(spec.cluster_ip, spec.cluster_ips, spec.ip_families, problems),
        external_ips: addresses::external_ips(spec.external_ips, problems),
        ports: ports::ports(spec.ports, problems),
        session_affinity: affinity(spec.session_affinity, spec.session_affinity_config, problems),
        internal_traffic_policy: policy(spec.internal_traffic_policy, "spec.internalTrafficPolicy", problems),
        external_traffic_policy: policy(spec.external_traffic_policy, "spec.externalTrafficPolicy", problems),
        health_check_node_port: optional_port(
            spec.health_check_node_port,
            "spec.healthCheckNodePort",
            problems,
        ),
        balancing: balancing::balancing(metadata, problems),
        // Any value counts, even the empty one: only the label's presence matters.
        other_proxy: metadata.has_label("service.kubernetes.io/service-proxy-name"),
        problems: Vec::new(),
    }
}

fn kind(field: Field<Text<'_>>, problems: &mut Problems) -> ServiceKind {
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

/// The default of the API server: three hours.
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;
/// The most that the API server accepts: a day.
const LONGEST_AFFINITY_SECONDS: u32 = 86_400;

/// How many seconds a client keeps its endpoint.
fn affinity(
    field: Field<Text<'_>>,
    config: Field<RawAffinityConfig>,
    problems: &mut Problems,
) -> Option<u32> {
    const AT: &str = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    match field.read("spec.sessionAffinity", problems).as_deref() {
        None | Some("None") => return None,
        Some("ClientIP") => {}
        Some(other) => {
            problems.add("spec.sessionAffinity", format_args!("{} is not None or ClientIP", Quoted(other)));
            return None;
        }
    }
    let seconds = config
        .read("spec.sessionAffinityConfig", problems)
        .and_then(|config| config.client_ip.read("spec.sessionAffinityConfig.clientIP", problems))
        .and_then(|client_ip| client_ip.timeout_seconds.read(AT, problems));
    let Some(seconds) = seconds else { return Some(DEFAULT_AFFINITY_SECONDS) };

    let clamped = seconds.clamp(1, LONGEST_AFFINITY_SECONDS.into());
    if clamped != seconds {
        problems.add(
            AT,
            format_args!("{seconds} is not between 1 and {LONGEST_AFFINITY_SECONDS}; {clamped} is used"),
        );
    }
    Some(u32::try_from(clamped).unwrap_or(LONGEST_AFFINITY_SECONDS))
}

/// A traffic policy; Cluster where none is given.
fn policy(field: Field<Text<'_>>, at: &'static str, problems: &mut Problems) -> TrafficPolicy {
    match field.read(at, problems).as_deref() {
        None | Some("Cluster") => TrafficPolicy::Cluster,
        Some("Local") => TrafficPolicy::Local,
        Some(other) => {
            problems.add(at, format_args!("{} is not Cluster or Local; taken as Cluster", Quoted(other)));
            TrafficPolicy::Cluster
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
}
