//! Service.

use std::{fmt, net::IpAddr};

use ipvs::Family;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use service::{Change, ObjectName, Service, ServiceKind, ServicePort, TrafficPolicy};

use super::{
    Decoded, Kind, News, Problems, address,
    field::{Field, List, Object},
    metadata::{Metadata, RawMetadata, nameless},
    port,
};

/// A Service as it comes.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawService {
    metadata: Field<RawMetadata>,
    spec: Field<RawSpec>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawSpec {
    #[serde(rename = "type")]
    kind: Field<Box<str>>,
    #[serde(rename = "clusterIP")]
    cluster_ip: Field<Box<str>>,
    #[serde(rename = "clusterIPs")]
    cluster_ips: List<Box<str>>,
    #[serde(rename = "ipFamilies")]
    ip_families: List<Box<str>>,
    ports: List<RawPort>,
    #[serde(rename = "sessionAffinity")]
    session_affinity: Field<Box<str>>,
    #[serde(rename = "sessionAffinityConfig")]
    session_affinity_config: Field<RawAffinityConfig>,
    #[serde(rename = "internalTrafficPolicy")]
    internal_traffic_policy: Field<Box<str>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawPort {
    name: Field<Box<str>>,
    protocol: Field<Box<str>>,
    port: Field<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawAffinityConfig {
    #[serde(rename = "clientIP")]
    client_ip: Field<RawClientIp>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawClientIp {
    #[serde(rename = "timeoutSeconds")]
    timeout_seconds: Field<i64>,
}

impl Object for RawService {}
impl Object for RawSpec {}
impl Object for RawPort {}
impl Object for RawAffinityConfig {}
impl Object for RawClientIp {}

impl Kind for Service {
    const KIND: &'static str = "Service";
    const GROUP: &'static str = "";
    const PLURAL: &'static str = "services";
    const ALWAYS_SOME: bool = true;

    type Raw = RawService;

    fn decode(raw: RawService) -> (ObjectMeta, Decoded<Self>) {
        let mut problems = Problems::default();
        let metadata = Metadata::read(raw.metadata, &mut problems);
        let decoded = match metadata.object_name() {
            None => Decoded::Unusable(nameless(problems)),
            Some(name) => {
                let spec = raw.spec.read("spec", &mut problems).unwrap_or_default();
                Decoded::Object(service(name, &metadata, spec, problems))
            }
        };
        (metadata.object_meta(), decoded)
    }

    fn problems(&self) -> &[String] {
        &self.problems
    }

    fn change(news: News<Self>) -> Option<Change> {
        Some(match news {
            News::Replace(services) => Change::ReplaceServices(services),
            News::Apply(service) => Change::ApplyService(service),
            News::Delete(name) => Change::DeleteService(name),
        })
    }
}

fn service(name: ObjectName, metadata: &Metadata, spec: RawSpec, mut problems: Problems) -> Service {
    Service {
        name,
        created: metadata.created,
        kind: kind(spec.kind, &mut problems),
        cluster_ips: cluster_ips(spec.cluster_ip, spec.cluster_ips, spec.ip_families, &mut problems),
        ports: ports(spec.ports, &mut problems),
        session_affinity: affinity(spec.session_affinity, spec.session_affinity_config, &mut problems),
        internal_traffic_policy: internal_traffic_policy(spec.internal_traffic_policy, &mut problems),
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        external_traffic_policy: TrafficPolicy::default(),
        health_check_node_port: None,
        // Any value counts, the empty one too: the label's presence says it.
        other_proxy: metadata.labels.service_proxy_name.is_present(),
        problems: problems.into_vec(),
    }
}

fn kind(field: Field<Box<str>>, problems: &mut Problems) -> ServiceKind {
    match field.read("spec.type", problems).as_deref() {
        None | Some("ClusterIP") => ServiceKind::ClusterIp,
        Some("NodePort") => ServiceKind::NodePort,
        Some("LoadBalancer") => ServiceKind::LoadBalancer,
        Some("ExternalName") => ServiceKind::ExternalName,
        Some(other) => {
            problems.add("spec.type", format_args!("{other:?} is unknown; taken as ClusterIP"));
            ServiceKind::ClusterIp
        }
    }
}

/// `clusterIP` of a headless Service.
const NONE: &str = "None";

/// The ClusterIPs, at most one per family.
///
/// Objects of before dual stack have `clusterIP` alone, without `clusterIPs` and `ipFamilies`: its
/// own family counts. Where `ipFamilies` is there, `clusterIPs[i]` is of `ipFamilies[i]`.
fn cluster_ips(
    first: Field<Box<str>>,
    list: List<Box<str>>,
    families: List<Box<str>>,
    problems: &mut Problems,
) -> Vec<IpAddr> {
    let first = first.read("spec.clusterIP", problems);
    if first.as_deref() == Some(NONE) {
        return Vec::new();
    }
    let list = list.read("spec.clusterIPs", problems).unwrap_or_default();
    let families = families.read("spec.ipFamilies", problems).unwrap_or_default();

    let mut found = Vec::with_capacity(list.len().max(1));
    if list.is_empty() {
        if let Some(ip) = first.and_then(|text| cluster_ip(&text, format_args!("spec.clusterIP"), problems)) {
            found.push(ip);
        }
        return found;
    }
    let mut families = families.into_iter();
    for (i, field) in list.into_iter().enumerate() {
        let declared =
            families.next().and_then(|family| family.read(format_args!("spec.ipFamilies[{i}]"), problems));
        let at = format_args!("spec.clusterIPs[{i}]");
        let Some(ip) = field.read(at, problems).and_then(|text| cluster_ip(&text, at, problems)) else {
            continue;
        };
        let family = Family::of(ip);
        if declared.is_some_and(|declared| *declared != *family.to_string()) {
            problems.add(at, format_args!("{ip} is not of the family in spec.ipFamilies[{i}]"));
        } else if found.iter().any(|other| Family::of(*other) == family) {
            problems.add(at, format_args!("{ip} is a second {family} address"));
        } else {
            found.push(ip);
        }
    }
    found
}

fn cluster_ip(text: &str, at: fmt::Arguments<'_>, problems: &mut Problems) -> Option<IpAddr> {
    if text.is_empty() || text == NONE {
        return None;
    }
    let ip = address::parse(text);
    if ip.is_none() {
        problems.add(at, format_args!("{text:?} is not an IP address"));
    }
    ip
}

fn ports(list: List<RawPort>, problems: &mut Problems) -> Vec<ServicePort> {
    let list = list.read("spec.ports", problems).unwrap_or_default();
    let mut ports = Vec::<ServicePort>::with_capacity(list.len());
    for (i, field) in list.into_iter().enumerate() {
        let at = format_args!("spec.ports[{i}]");
        let Some(port) = field.read(at, problems).and_then(|raw| service_port(raw, at, problems)) else {
            continue;
        };
        let twin = |other: &&ServicePort| {
            other.protocol == port.protocol && (other.port == port.port || other.name == port.name)
        };
        match ports.iter().find(twin) {
            Some(other) if other.port == port.port => {
                problems.add(at, format_args!("{} {} is there before", port.protocol, port.port));
            }
            Some(_) => problems
                .add(at, format_args!("a {} port named {:?} is there before", port.protocol, &*port.name)),
            None => ports.push(port),
        }
    }
    ports
}

fn service_port(raw: RawPort, at: fmt::Arguments<'_>, problems: &mut Problems) -> Option<ServicePort> {
    // All three are read, so that all three are reported.
    let name = raw.name.read(format_args!("{at}.name"), problems).unwrap_or_default();
    let protocol = port::protocol(raw.protocol, format_args!("{at}.protocol"), problems);
    let number = port::number(raw.port, format_args!("{at}.port"), problems);
    Some(ServicePort { name: name.into(), protocol: protocol?, port: number?, node_port: None })
}

/// Three hours, which the API server writes where nothing is said.
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;
/// A day: more is refused by the API server.
const LONGEST_AFFINITY_SECONDS: u32 = 86_400;

fn affinity(
    field: Field<Box<str>>,
    config: Field<RawAffinityConfig>,
    problems: &mut Problems,
) -> Option<u32> {
    const AT: &str = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    match field.read("spec.sessionAffinity", problems).as_deref() {
        None | Some("None") => return None,
        Some("ClientIP") => {}
        Some(other) => {
            problems.add("spec.sessionAffinity", format_args!("{other:?} is not None or ClientIP"));
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

fn internal_traffic_policy(field: Field<Box<str>>, problems: &mut Problems) -> TrafficPolicy {
    const AT: &str = "spec.internalTrafficPolicy";
    match field.read(AT, problems).as_deref() {
        None | Some("Cluster") => TrafficPolicy::Cluster,
        Some("Local") => TrafficPolicy::Local,
        Some(other) => {
            problems.add(AT, format_args!("{other:?} is not Cluster or Local; taken as Cluster"));
            TrafficPolicy::Cluster
        }
    }
}

#[cfg(test)]
mod tests {
    use ipvs::Protocol;
    use serde_json::{Value, json};

    use super::super::View;
    use super::*;

    fn decoded(value: Value) -> Decoded<Service> {
        serde_json::from_value::<View<Service>>(value).unwrap().decoded
    }

    fn with_spec(spec: Value) -> Service {
        let metadata = json!({"name": "web", "namespace": "shop", "managedFields": [{"manager": "kubectl"}]});
        let object = Value::from_iter([("metadata", metadata), ("spec", spec)]);
        let Decoded::Object(service) = decoded(object) else { panic!("not decoded") };
        service
    }

    fn addresses(service: &Service) -> Vec<String> {
        service.cluster_ips.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_service_is_read_whole() {
        let Decoded::Object(service) = decoded(json!({
            "metadata": {
                "name": "web", "namespace": "shop", "creationTimestamp": "2026-01-02T03:04:05Z",
                "labels": {"service.kubernetes.io/service-proxy-name": ""}
            },
            "spec": {
                "type": "NodePort", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00::7"],
                "ipFamilies": ["IPv4", "IPv6"],
                "ports": [
                    {"name": "dns", "protocol": "UDP", "port": 53},
                    {"name": "dns", "protocol": "TCP", "port": 53},
                    {"name": "s", "protocol": "SCTP", "port": 99, "appProtocol": "x"}
                ],
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
                "internalTrafficPolicy": "Local"
            }
        })) else {
            panic!("not decoded")
        };
        let port =
            |name: &str, protocol, port| ServicePort { name: name.into(), protocol, port, node_port: None };
        assert_eq!(
            service,
            Service {
                name: ObjectName::new("shop", "web"),
                created: Some(1_767_323_045),
                kind: ServiceKind::NodePort,
                cluster_ips: vec!["10.96.0.7".parse().unwrap(), "fd00::7".parse().unwrap()],
                ports: vec![
                    port("dns", Protocol::Udp, 53),
                    port("dns", Protocol::Tcp, 53),
                    port("s", Protocol::Sctp, 99)
                ],
                session_affinity: Some(60),
                internal_traffic_policy: TrafficPolicy::Local,
                other_proxy: true,
                problems: vec![],
            }
        );
    }

    #[test]
    fn an_old_service_without_families_is_handled_by_the_family_of_its_cluster_ip() {
        assert_eq!(addresses(&with_spec(json!({"clusterIP": "fd00::1"}))), ["fd00::1"]);
        assert_eq!(addresses(&with_spec(json!({"clusterIP": "10.0.0.1"}))), ["10.0.0.1"]);
    }

    #[test]
    fn a_headless_service_has_no_cluster_ip() {
        let headless = with_spec(json!({"clusterIP": "None", "clusterIPs": ["None"]}));
        assert_eq!((addresses(&headless), headless.problems), (vec![], vec![]));
        let list_only = with_spec(json!({"clusterIPs": ["None"]}));
        assert_eq!((addresses(&list_only), list_only.problems), (vec![], vec![]));
    }

    #[test]
    fn an_address_of_another_family_than_declared_is_left_out() {
        let service =
            with_spec(json!({"clusterIPs": ["10.0.0.1", "10.0.0.2"], "ipFamilies": ["IPv4", "IPv6"]}));
        assert_eq!(addresses(&service), ["10.0.0.1"]);
        assert_eq!(
            service.problems,
            ["spec.clusterIPs[1]: 10.0.0.2 is not of the family in spec.ipFamilies[1]"]
        );
    }

    #[test]
    fn leading_zeros_in_a_cluster_ip_are_tolerated() {
        assert_eq!(addresses(&with_spec(json!({"clusterIP": "010.096.0.1"}))), ["10.96.0.1"]);
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
                "spec.ports[6]: TCP 80 is there before",
                "spec.ports[7]: a TCP port named \"\" is there before",
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
    fn a_service_whose_every_field_is_wrong_is_still_a_service() {
        let service = with_spec(json!({
            "type": 1, "clusterIP": {}, "clusterIPs": "x", "ipFamilies": 7, "ports": {"a": 1},
            "sessionAffinity": [], "sessionAffinityConfig": 1, "internalTrafficPolicy": "Nearby",
        }));
        assert_eq!(service.cluster_ips, Vec::<IpAddr>::new());
        assert_eq!(
            service.problems,
            [
                "spec.type: 1 is not a string",
                "spec.clusterIP: {} is not a string",
                "spec.clusterIPs: \"x\" is not a list",
                "spec.ipFamilies: 7 is not a list",
                "spec.ports: {\"a\":1} is not a list",
                "spec.sessionAffinity: [] is not a string",
                "spec.internalTrafficPolicy: \"Nearby\" is not Cluster or Local; taken as Cluster",
            ]
        );
    }

    #[test]
    fn an_object_without_a_name_cannot_be_used() {
        assert!(matches!(decoded(json!({"metadata": {"namespace": "shop"}})), Decoded::Unusable(_)));
        assert_eq!(decoded(json!(5)), Decoded::Unusable("Service: 5 is not an object".into()));
    }
}
