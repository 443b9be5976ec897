//! What a Service asks for and does not get, although it asks for it in a valid way.

use std::net::IpAddr;

use ipnet::IpNet;
use ipvs::Family;
use service::Service;

use crate::objects::Problems;

/// Adds to the problems what is not served.
pub(super) fn note(service: &Service, problems: &mut Problems) {
    addresses(service, "spec.externalIPs", &service.external_ips, problems);
    addresses(service, "status.loadBalancer.ingress", &service.load_balancer_ips, problems);
    source_ranges(service, problems);
}

/// Names the load-balancer addresses of a family without source ranges: ranges of one family restrict nobody
/// in the other, as upstream has it.
fn source_ranges(service: &Service, problems: &mut Problems) {
    // Without a single range, nobody is let in.
    let Some(ranges @ [_, ..]) = service.load_balancer_source_ranges.as_deref() else { return };
    let restricts = |range: &IpNet, ip: &IpAddr| Family::from(range.addr()) == Family::from(*ip);
    for ip in service.load_balancer_ips.iter().filter(|ip| serves_family_of(service, ip)) {
        if !ranges.iter().any(|range| restricts(range, ip)) {
            let family = Family::from(*ip);
            problems.add(
                "spec.loadBalancerSourceRanges",
                format_args!("none is of {family}; every client is let in at {ip}"),
            );
        }
    }
}

fn serves_family_of(service: &Service, ip: &IpAddr) -> bool {
    service.cluster_ips.iter().any(|other| Family::from(*other) == Family::from(*ip))
}

/// Names the external addresses of a family without ClusterIP, which is not served. A Service without any
/// ClusterIP is headless, and none of ours.
fn addresses(service: &Service, at: &'static str, ips: &[IpAddr], problems: &mut Problems) {
    let unserved = |ip: &&IpAddr| !service.cluster_ips.is_empty() && !serves_family_of(service, ip);
    for ip in ips.iter().filter(unserved) {
        let family = Family::from(*ip);
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
