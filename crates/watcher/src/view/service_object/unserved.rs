//! What a Service asks for and does not get, although nothing is wrong with how it says so.

use std::net::IpAddr;

use ipvs::Family;
use service::{Service, ServiceKind, TrafficPolicy};

use crate::view::Problems;

/// Names it.
pub(super) fn note(service: &Service, has_source_ranges: bool, problems: &mut Problems) {
    addresses(service, "spec.externalIPs", &service.external_ips, problems);
    addresses(service, "status.loadBalancer.ingress", &service.load_balancer_ips, problems);
    // Where there is no address that they would guard, nothing is missed.
    if has_source_ranges && !service.load_balancer_ips.is_empty() {
        problems.add("spec.loadBalancerSourceRanges", "not enforced yet; every client is let in");
    }
    let asked =
        service.kind == ServiceKind::LoadBalancer && service.external_traffic_policy == TrafficPolicy::Local;
    if asked && let Some(port) = service.health_check_node_port {
        problems.add("spec.healthCheckNodePort", format_args!("nothing answers at {port} yet"));
    }
}

/// A family without ClusterIP is not served. A Service without any is headless, and none of ours.
fn addresses(service: &Service, at: &'static str, ips: &[IpAddr], problems: &mut Problems) {
    let served = |ip: &IpAddr| service.cluster_ips.iter().any(|other| Family::of(*other) == Family::of(*ip));
    for ip in ips.iter().filter(|ip| !service.cluster_ips.is_empty() && !served(ip)) {
        let family = Family::of(*ip);
        problems.add(at, format_args!("{ip} is not served: the Service has no {family} ClusterIP"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::with;

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
    fn a_health_check_that_nobody_answers_is_named() {
        let spec = |policy| {
            json!({
                "type": "LoadBalancer", "clusterIP": "10.96.0.7",
                "externalTrafficPolicy": policy, "healthCheckNodePort": 31000,
            })
        };
        let problems = with(spec("Local"), json!({})).problems;
        assert_eq!(problems, ["spec.healthCheckNodePort: nothing answers at 31000 yet"]);
        assert_eq!(with(spec("Cluster"), json!({})).problems, [""; 0]);
    }
}
