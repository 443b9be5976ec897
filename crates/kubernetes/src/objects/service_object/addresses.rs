//! The addresses at which a Service is served, apart from the node's own, and the clients that may reach those of a load
//! balancer.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use ipnet::IpNet;
use ipvs::Family;
use service::MAX_ADDRESSES;

use crate::objects::{
    Problems,
    field::{Field, List, Quoted, Text, object},
    values::{self, ip, range},
};

object! {
    /// `status` as it is sent.
    pub(super) struct RawStatus<'a> {
        1 => load_balancer: Field<RawLoadBalancer<'a>>,
    }

    struct RawLoadBalancer<'a> {
        1 => ingress: List<RawIngress<'a>>,
    }

    struct RawIngress<'a> {
        1 unless is_empty => ip: Field<Text<'a>>,
        3 => ip_mode: Field<Text<'a>>,
    }
}

/// The `clusterIP` of a headless Service.
const NONE: &str = "None";

/// The ClusterIPs, at most one per family.
///
/// Objects from before dual stack have `clusterIP` alone, without `clusterIPs` and `ipFamilies`: its
/// own family counts. Where there is `ipFamilies`, `clusterIPs[i]` is of `ipFamilies[i]`.
pub(super) fn cluster_ips(
    first: Field<Text<'_>>,
    list: List<Text<'_>>,
    families: List<Text<'_>>,
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
        let family = Family::from(ip);
        if declared.is_some_and(|declared| *declared != *family.to_string()) {
            problems.add(at, format_args!("{ip} is not of the family in spec.ipFamilies[{i}]"));
        } else if found.iter().any(|other| Family::from(*other) == family) {
            problems.add(at, format_args!("{ip} is a second {family} address"));
        } else {
            found.push(ip);
        }
    }
    found
}

fn cluster_ip(text: &str, at: fmt::Arguments<'_>, problems: &mut Problems) -> Option<IpAddr> {
    if text == NONE { None } else { values::cluster_ip(text, at, problems) }
}

/// The addresses in `spec.externalIPs`.
pub(super) fn external_ips(list: List<Text<'_>>, problems: &mut Problems) -> Vec<IpAddr> {
    let field = "spec.externalIPs";
    let ips = list.read_each(field, problems, |text, at, problems| ip(&text, at, problems));
    first_of(ips, field, problems)
}

/// The addresses of a load balancer that leaves packets as they were sent.
pub(super) fn load_balancer_ips(status: Field<RawStatus<'_>>, problems: &mut Problems) -> Vec<IpAddr> {
    let load_balancer = status
        .read("status", problems)
        .and_then(|status| status.load_balancer.read("status.loadBalancer", problems))
        .unwrap_or_default();
    let field = "status.loadBalancer.ingress";
    first_of(load_balancer.ingress.read_each(field, problems, load_balancer_ip), field, problems)
}

fn load_balancer_ip(raw: RawIngress<'_>, at: fmt::Arguments<'_>, problems: &mut Problems) -> Option<IpAddr> {
    // A load balancer that has only a host name sends to a NodePort: nothing arrives at its own address.
    let text = raw.ip.read(format_args!("{at}.ip"), problems).filter(|text| !text.is_empty())?;
    if raw.ip_mode.is_present() {
        let at = format_args!("{at}.ipMode");
        match &*raw.ip_mode.read(at, problems)? {
            "VIP" => {}
            // This load balancer sends to a NodePort as well (KEP-1860).
            "Proxy" => return None,
            other => {
                problems.add(at, format_args!("{} is not VIP or Proxy", Quoted(other)));
                return None;
            }
        }
    }
    ip(&text, format_args!("{at}.ip"), problems)
}

/// Sorts the addresses, keeps each once, and no more than a Service may have. Their order means nothing, so another order
/// is not a change.
fn first_of(ips: Vec<IpAddr>, field: &str, problems: &mut Problems) -> Vec<IpAddr> {
    let ips = BTreeSet::from_iter(ips);
    if ips.len() > MAX_ADDRESSES {
        problems.add(
            field,
            format_args!("of {} addresses the first {MAX_ADDRESSES} by number are used", ips.len()),
        );
    }
    ips.into_iter().take(MAX_ADDRESSES).collect()
}

/// The ranges in `spec.loadBalancerSourceRanges`; `None` lets every client in. Where something is given and
/// nothing of it can be used, no client is let in: its author wanted to keep some clients out. (Upstream
/// lets all of them in then.)
///
/// The annotation `service.beta.kubernetes.io/load-balancer-source-ranges`, older than the field, means
/// something to cloud controllers only.
pub(super) fn source_ranges(list: List<Text<'_>>, problems: &mut Problems) -> Option<Vec<IpNet>> {
    const AT: &str = "spec.loadBalancerSourceRanges";
    match &list {
        Field::Absent => return None,
        Field::Is(texts) if texts.is_empty() => return None,
        Field::Is(_) | Field::Wrong(_) => {}
    }
    let ranges = list.read_each(AT, problems, |text, at, problems| range(text.trim(), at, problems));
    if ranges.is_empty() {
        problems.add(AT, "none can be used; no client is let in");
    }
    // Sorted, and each range once: their order means nothing, so another order is not a change.
    Some(BTreeSet::from_iter(ranges).into_iter().collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use service::Service;

    use super::super::tests::{decoded, with, with_spec};
    use super::*;
    use crate::objects::Decoded;

    fn texts(ips: &[IpAddr]) -> Vec<String> {
        ips.iter().map(ToString::to_string).collect()
    }

    fn addresses(service: &Service) -> Vec<String> {
        texts(&service.cluster_ips)
    }

    /// The load-balancer addresses, and the problems.
    fn load_balancer(ingress: &Value) -> (Vec<String>, Vec<String>) {
        let service = with(json!({}), json!({"loadBalancer": {"ingress": ingress}}));
        (texts(&service.load_balancer_ips), service.problems)
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
    fn an_external_address_that_is_none_is_left_out_alone() {
        let service = with_spec(json!({
            "externalIPs": ["198.51.100.7", "", "gateway", 7, "198.51.100.300", null, "2001:db8::7"]
        }));
        assert_eq!(texts(&service.external_ips), ["198.51.100.7", "2001:db8::7"]);
        assert_eq!(
            service.problems,
            [
                "spec.externalIPs[2]: \"gateway\" is not an IP address",
                "spec.externalIPs[3]: 7 is not a string",
                "spec.externalIPs[4]: \"198.51.100.300\" is not an IP address",
            ]
        );
    }

    #[test]
    fn an_external_address_counts_once_however_it_is_written() {
        let service = with_spec(json!({
            "externalIPs": ["2001:DB8::7", "198.51.100.007", "198.51.100.7", "2001:db8:0::7"]
        }));
        assert_eq!(texts(&service.external_ips), ["198.51.100.7", "2001:db8::7"]);
        assert_eq!(service.problems, Vec::<String>::new());
    }

    #[test]
    fn of_more_addresses_than_a_service_may_have_the_first_are_used() {
        let ips: Vec<_> = (0..3_000).map(|i| format!("198.18.{}.{}", i / 256, i % 256)).collect();
        let service = with(
            json!({"externalIPs": ips}),
            json!({"loadBalancer": {"ingress": ips.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>()}}),
        );
        for found in [&service.external_ips, &service.load_balancer_ips] {
            assert_eq!((found.len(), found.last()), (1_024, Some(&[198, 18, 3, 255].into())));
        }
        let used = "of 3000 addresses the first 1024 by number are used";
        assert_eq!(
            service.problems,
            [format!("status.loadBalancer.ingress: {used}"), format!("spec.externalIPs: {used}")]
        );
    }

    #[test]
    fn the_order_of_external_addresses_means_nothing() {
        let in_order = |ips: [&str; 2]| with_spec(json!({"externalIPs": ips}));
        assert_eq!(in_order(["198.51.100.7", "198.51.100.8"]), in_order(["198.51.100.8", "198.51.100.7"]));
    }

    #[test]
    fn a_load_balancer_that_sends_to_node_ports_has_no_address_here() {
        let (ips, problems) = load_balancer(&json!([
            {"ip": "192.0.2.1"},
            {"ip": "192.0.2.2", "ipMode": "VIP"},
            {"ip": "192.0.2.3", "ipMode": "Proxy"},
            {"ip": "no address", "ipMode": "Proxy"},
            {"ip": "2001:db8::4", "ipMode": null, "hostname": "lb.example"},
            {"ip": "192.0.2.2"},
        ]));
        assert_eq!(ips, ["192.0.2.1", "192.0.2.2", "2001:db8::4"]);
        assert_eq!(problems, Vec::<String>::new());
    }

    #[test]
    fn a_load_balancer_known_by_its_host_name_only_has_no_address() {
        let hostnames = json!([{"hostname": "lb.example"}, {"hostname": "lb.example", "ip": ""}]);
        assert_eq!(load_balancer(&hostnames), (vec![], vec![]));
    }

    #[test]
    fn a_load_balancer_of_unknown_mode_is_left_out_and_named() {
        let (ips, problems) = load_balancer(&json!([
            {"ip": "192.0.2.1", "ipMode": "Tunnel"},
            {"ip": "192.0.2.2", "ipMode": ["VIP"]},
            {"ip": "192.0.2.3", "ipMode": ""},
            {"ip": "nowhere"},
            "192.0.2.4",
            {"ip": "192.0.2.5"},
        ]));
        assert_eq!(ips, ["192.0.2.5"]);
        assert_eq!(
            problems,
            [
                "status.loadBalancer.ingress[0].ipMode: \"Tunnel\" is not VIP or Proxy",
                "status.loadBalancer.ingress[1].ipMode: [\"VIP\"] is not a string",
                "status.loadBalancer.ingress[2].ipMode: \"\" is not VIP or Proxy",
                "status.loadBalancer.ingress[3].ip: \"nowhere\" is not an IP address",
                "status.loadBalancer.ingress[4]: \"192.0.2.4\" is not an object",
            ]
        );
    }

    #[test]
    fn a_load_balancer_status_left_over_is_read_whatever_the_type() {
        let status = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
        assert_eq!(texts(&with(json!({"type": "ClusterIP"}), status).load_balancer_ips), ["192.0.2.1"]);
    }

    #[test]
    fn a_cluster_ip_that_would_break_the_node_is_left_out() {
        let service = with_spec(json!({"clusterIPs": ["127.0.0.1", "::"]}));
        assert_eq!(addresses(&service), Vec::<String>::new());
        assert_eq!(
            service.problems,
            [
                "spec.clusterIPs[0]: 127.0.0.1 is a loopback address, which cannot be served",
                "spec.clusterIPs[1]: :: is the unspecified address, which cannot be served",
            ]
        );
    }

    #[test]
    fn which_external_addresses_are_served_is_decided_later_for_all_of_them() {
        let service = with(
            json!({"clusterIPs": ["10.96.0.1", "fd00::1"], "externalIPs": ["127.0.0.1"]}),
            json!({"loadBalancer": {"ingress": [{"ip": "fe80::1"}]}}),
        );
        assert_eq!(texts(&service.external_ips), ["127.0.0.1"]);
        assert_eq!(texts(&service.load_balancer_ips), ["fe80::1"]);
        assert_eq!(service.problems, [""; 0]);
    }

    /// The ranges as text, and the problems.
    fn read_ranges(ranges: &Value) -> (String, Vec<String>) {
        let service = with_spec(json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ranges}));
        let words = match service.load_balancer_source_ranges.as_deref() {
            None => "every client".to_owned(),
            Some([]) => "no client".to_owned(),
            Some(ranges) => ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        (words, service.problems)
    }

    fn without_problem(words: &str) -> (String, Vec<String>) {
        (words.to_owned(), Vec::new())
    }

    #[test]
    fn without_ranges_everybody_is_let_in() {
        for none in [json!(null), json!([])] {
            assert_eq!(read_ranges(&none), without_problem("every client"));
        }
    }

    #[test]
    fn ranges_are_trimmed_and_may_have_host_bits() {
        let ranges = json!([" 10.1.2.3/8\n", "\t2001:db8::1/32", "192.0.2.1/32"]);
        assert_eq!(read_ranges(&ranges), without_problem("10.0.0.0/8, 192.0.2.1/32, 2001:db8::/32"));
    }

    #[test]
    fn a_range_counts_once_however_it_is_written_and_their_order_means_nothing() {
        for ranges in [
            json!(["10.1.0.0/16", "10.0.0.0/8", "10.9.9.9/8"]),
            json!(["10.0.0.0/8", "010.1.0.0/16", "::ffff:10.1.0.0/112"]),
        ] {
            assert_eq!(read_ranges(&ranges), without_problem("10.0.0.0/8, 10.1.0.0/16"));
        }
    }

    #[test]
    fn a_range_that_cannot_be_read_is_named_and_left_out_alone() {
        let (ranges, problems) = read_ranges(&json!(["10.0.0.0", "10.0.0.0/8", 7, "", null, "office"]));
        assert_eq!(ranges, "10.0.0.0/8");
        assert_eq!(
            problems,
            [
                "spec.loadBalancerSourceRanges[0]: \"10.0.0.0\" is not a CIDR",
                "spec.loadBalancerSourceRanges[2]: 7 is not a string",
                "spec.loadBalancerSourceRanges[3]: \"\" is not a CIDR",
                "spec.loadBalancerSourceRanges[5]: \"office\" is not a CIDR",
            ]
        );
    }

    #[test]
    fn ranges_of_which_none_can_be_read_admit_no_client() {
        const NO_CLIENT: &str = "spec.loadBalancerSourceRanges: none can be used; no client is let in";
        for unreadable in [json!(["office"]), json!([null]), json!("10.0.0.0/8"), json!({})] {
            let (ranges, problems) = read_ranges(&unreadable);
            assert_eq!(ranges, "no client", "{unreadable}");
            assert_eq!(problems.last().map(String::as_str), Some(NO_CLIENT), "{unreadable}");
        }
    }

    #[test]
    fn the_former_annotation_restricts_no_client() {
        let annotations = json!({"service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8"});
        let metadata = json!({"name": "web", "namespace": "shop", "annotations": annotations});
        let Decoded::Object(service) = decoded(json!({"metadata": metadata})) else { panic!("not decoded") };
        assert_eq!(service.load_balancer_source_ranges, None);
    }
}
