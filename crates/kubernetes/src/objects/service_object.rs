//! Services.

mod addresses;
mod balancing;

#[cfg(test)]
mod tests;

use std::fmt;

use service::{ObjectName, Service, ServiceKind, ServicePort, TrafficPolicy};

use self::addresses::RawStatus;
use super::{
    Decoded, Kind, Problems, View,
    field::{Field, List, Quoted, Text, object, owned},
    metadata::{Metadata, RawMetadata, nameless},
    values::{optional_port, port, protocol},
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

    /// A port as it is sent.
    struct RawPort<'a> {
        1 unless is_empty => name: Field<Text<'a>>,
        2 unless is_empty => protocol: Field<Text<'a>>,
        3 unless is_empty => port: Field<i64>,
        5 unless is_empty => node_port: Field<i64>,
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
        ports: ports(spec.ports, problems),
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

/// The ports of the Service. No two of one protocol have the same number or the same name.
fn ports(list: List<RawPort<'_>>, problems: &mut Problems) -> Vec<ServicePort> {
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
        let ServicePort { name, protocol, port: number, .. } = &port;
        match ports.iter().find(twin) {
            Some(other) if other.port == *number => {
                problems.add(at, format_args!("{protocol} {number} is taken by an earlier port"));
            }
            Some(_) => {
                let name = Quoted(name);
                problems.add(at, format_args!("the {protocol} port name {name} is taken by an earlier port"));
            }
            None => ports.push(port),
        }
    }
    ports
}

fn service_port(raw: RawPort<'_>, at: fmt::Arguments<'_>, problems: &mut Problems) -> Option<ServicePort> {
    // All are read, so that all are reported.
    let name = raw.name.read(format_args!("{at}.name"), problems).unwrap_or_default();
    let protocol = protocol(raw.protocol, format_args!("{at}.protocol"), problems);
    let number = port(raw.port, format_args!("{at}.port"), problems);
    let node_port = optional_port(raw.node_port, format_args!("{at}.nodePort"), problems);
    Some(ServicePort { name: owned(name), protocol: protocol?, port: number?, node_port })
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
