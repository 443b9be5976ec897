//! Nodes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use ipvs::Family;
use service::Node;

use super::{
    Decoded, Kind, Problems, View,
    field::{Field, List, Text, object, owned},
    metadata::{Metadata, RawMetadata},
    values::{parse_ip, range},
};

object! {
    /// A Node as it is sent.
    pub(crate) struct RawNode<'a> {
        1 => metadata: Field<RawMetadata<'a>>,
        2 => spec: Field<RawSpec<'a>>,
        3 => status: Field<RawStatus<'a>>,
    }

    struct RawSpec<'a> {
        #[serde(rename = "podCIDR")]
        1 unless is_empty => pod_cidr: Field<Text<'a>>,
        5 => taints: List<RawTaint<'a>>,
        #[serde(rename = "podCIDRs")]
        7 => pod_cidrs: List<Text<'a>>,
    }

    struct RawTaint<'a> {
        1 unless is_empty => key: Field<Text<'a>>,
    }

    struct RawStatus<'a> {
        5 => addresses: List<RawAddress<'a>>,
    }

    struct RawAddress<'a> {
        #[serde(rename = "type")]
        1 unless is_empty => kind: Field<Text<'a>>,
        2 unless is_empty => address: Field<Text<'a>>,
    }
}

impl Kind for Node {
    const KIND: &'static str = "Node";
    const GROUP: &'static str = "";
    const PLURAL: &'static str = "nodes";
    const ALWAYS_SOME: bool = false;

    type Raw<'a> = RawNode<'a>;

    fn read(raw: RawNode<'_>) -> View<Self> {
        let mut problems = Problems::default();
        let mut metadata = Metadata::read(raw.metadata, &mut problems);
        let zone = metadata.label("topology.kubernetes.io/zone", &mut problems);
        // A zone that is not a string cannot be matched by any hint: the same as none.
        let mut spec = raw.spec.read("spec", &mut problems).unwrap_or_default();
        let taints = std::mem::take(&mut spec.taints);
        let status = raw.status.read("status", &mut problems).unwrap_or_default();
        let pod_cidrs = pod_cidrs(spec, &mut problems);
        let node = Self {
            name: metadata.name.name().into(),
            zone: zone.map(owned),
            ips: ips(status.addresses, &mut problems),
            overlay_ips: overlay_ips(&pod_cidrs, &mut metadata, &mut problems),
            pod_cidrs,
            leaving: metadata.leaving || is_given_up(taints, &mut problems),
            problems: problems.into_vec(),
        };
        metadata.view(Decoded::Object(node))
    }

    fn problems(&self) -> &[String] {
        &self.problems
    }
}

/// The taint of a node that the cluster autoscaler will delete. Load balancers must stop using it before.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

fn is_given_up(taints: List<RawTaint<'_>>, problems: &mut Problems) -> bool {
    let keys = taints.read_each("spec.taints", problems, |raw, at, problems| {
        raw.key.read(format_args!("{at}.key"), problems)
    });
    keys.iter().any(|key| **key == *TO_BE_DELETED)
}

/// The node IPs: the internal ones, then the external ones, each in the order of the list, which has the
/// primary one first. Host names are left out, and everything else that is not an address.
fn ips(addresses: List<RawAddress<'_>>, problems: &mut Problems) -> Vec<IpAddr> {
    let addresses = addresses.read_each("status.addresses", problems, |raw, at, problems| {
        let kind = raw.kind.read(format_args!("{at}.type"), problems)?;
        let text = raw.address.read(format_args!("{at}.address"), problems)?;
        Some((kind, parse_ip(&text)?))
    });
    let of =
        |kind: &'static str| addresses.iter().filter(move |(other, _)| **other == *kind).map(|(_, ip)| *ip);
    of("InternalIP").chain(of("ExternalIP")).collect()
}

/// The first pod CIDR of each family, as with kube-proxy. A Node from before dual stack has its only one in
/// `spec.podCIDR`.
fn pod_cidrs(spec: RawSpec<'_>, problems: &mut Problems) -> Vec<IpNet> {
    let mut given =
        spec.pod_cidrs.read_each("spec.podCIDRs", problems, |text, at, problems| range(&text, at, problems));
    let only = spec.pod_cidr.read("spec.podCIDR", problems).filter(|text| !text.is_empty());
    if let Some(text) = only
        && given.is_empty()
    {
        given.extend(range(&text, "spec.podCIDR", problems));
    }
    let mut used: Vec<IpNet> = Vec::new();
    for range in given {
        match used.iter().find(|used| Family::from(used.addr()) == Family::from(range.addr())) {
            Some(first) => problems.add("spec.podCIDRs", format_args!("{range} is ignored beside {first}")),
            None => used.push(range),
        }
    }
    used
}

/// The annotations in which network plugins note the addresses that they give a node in an overlay.
const OVERLAY_IPS: [&str; 7] = [
    "projectcalico.org/IPv4IPIPTunnelAddr",
    "projectcalico.org/IPv4VXLANTunnelAddr",
    "projectcalico.org/IPv6VXLANTunnelAddr",
    "projectcalico.org/IPv4WireguardInterfaceAddr",
    "projectcalico.org/IPv6WireguardInterfaceAddr",
    "network.cilium.io/ipv4-cilium-host",
    "network.cilium.io/ipv6-cilium-host",
];

/// The addresses that a node may have in an overlay.
fn overlay_ips(pod_cidrs: &[IpNet], metadata: &mut Metadata<'_>, problems: &mut Problems) -> Vec<IpAddr> {
    let noted = OVERLAY_IPS.into_iter().filter_map(|key| metadata.annotation(key, problems));
    let mut ips: Vec<_> = noted.filter_map(|annotation| parse_ip(&annotation.text)).collect();
    ips.extend(pod_cidrs.iter().copied().flat_map(first_two));
    ips
}

/// Network plugins take one of the first two addresses of a node's range of pods (Flannel the first, Antrea the second).
fn first_two(range: IpNet) -> impl Iterator<Item = IpAddr> {
    let first = range.network();
    let second = match first {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits().saturating_add(1)).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits().saturating_add(1)).into(),
    };
    [first, second].into_iter()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::View;
    use super::*;

    fn node(object: Value) -> Node {
        let Decoded::Object(node) = serde_json::from_value::<View<Node>>(object).unwrap().decoded else {
            panic!("not decoded")
        };
        node
    }

    fn with_addresses(addresses: &Value) -> Vec<String> {
        let node = node(json!({"metadata": {"name": "n1"}, "status": {"addresses": addresses}}));
        node.ips.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_the_zone_the_node_ips_and_the_pod_cidrs_are_kept() {
        let decoded_at = |at: &str, ready: &str| {
            node(json!({
                "metadata": {
                    "name": "n1", "resourceVersion": at,
                    "labels": {"a": "b", "topology.kubernetes.io/zone": "z1"},
                    "annotations": {"at": at},
                },
                "spec": {"podCIDR": "10.244.1.0/24"},
                "status": {
                    "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
                    "conditions": [{"type": "Ready", "status": ready, "lastHeartbeatTime": at}],
                    "images": [{"names": ["a"], "sizeBytes": 1}],
                },
            }))
        };
        let kept = Node {
            name: "n1".into(),
            zone: Some("z1".into()),
            ips: vec!["192.0.2.1".parse().unwrap()],
            overlay_ips: ["10.244.1.0", "10.244.1.1"].map(|ip| ip.parse().unwrap()).into(),
            pod_cidrs: vec!["10.244.1.0/24".parse().unwrap()],
            leaving: false,
            problems: vec![],
        };
        assert_eq!(decoded_at("2026-01-02T03:04:05Z", "True"), kept);
        assert_eq!(decoded_at("2026-01-02T03:09:05Z", "False"), kept, "a heartbeat makes no other Node");
    }

    #[test]
    fn a_node_that_is_deleted_or_is_to_be_is_leaving() {
        let leaving = |metadata: Value, taints: Value| {
            node(json!({"metadata": metadata, "spec": {"taints": taints}})).leaving
        };
        let here = || json!({"name": "n1"});
        assert!(!leaving(here(), json!(null)));
        assert!(!leaving(
            here(),
            json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}])
        ));
        assert!(leaving(here(), json!([{"key": "a"}, {"key": TO_BE_DELETED, "value": "1", "effect": "x"}])));
        let going = json!({"name": "n1", "deletionTimestamp": "2026-01-02T03:04:05Z"});
        assert!(leaving(going, json!([7, {}])));
    }

    #[test]
    fn a_node_may_have_no_zone_and_no_addresses() {
        let bare = Node { name: "n1".into(), ..Node::default() };
        assert_eq!(node(json!({"metadata": {"name": "n1"}})), bare);
    }

    /// The pod CIDRs, and the problems.
    fn with_spec(spec: &Value) -> (Vec<String>, Vec<String>) {
        let node = node(json!({"metadata": {"name": "n1"}, "spec": spec}));
        (node.pod_cidrs.iter().map(ToString::to_string).collect(), node.problems)
    }

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn the_pod_cidrs_are_the_first_of_each_family() {
        for (spec, expected) in [
            (json!({"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]}), &["10.244.1.0/24"][..]),
            (json!({"podCIDR": "10.244.1.0/24"}), &["10.244.1.0/24"]),
            (json!({"podCIDR": "10.244.1.0/24", "podCIDRs": []}), &["10.244.1.0/24"]),
            (
                json!({"podCIDR": "fd00::/64", "podCIDRs": ["fd00::/64", "10.244.1.0/24"]}),
                &["fd00::/64", "10.244.1.0/24"],
            ),
            (json!({"podCIDR": "", "podCIDRs": null}), &[]),
            (json!({}), &[]),
        ] {
            assert_eq!(with_spec(&spec), (strings(expected), vec![]), "{spec}");
        }
    }

    #[test]
    fn a_pod_cidr_that_cannot_be_used_is_named_and_the_others_are_used() {
        for (spec, expected, problem) in [
            (
                json!({"podCIDRs": ["10.244.1.0", "fd00::/64"]}),
                &["fd00::/64"][..],
                "spec.podCIDRs[0]: \"10.244.1.0\" is not a CIDR",
            ),
            (
                json!({"podCIDRs": ["10.244.1.0/24", "10.244.2.0/24"]}),
                &["10.244.1.0/24"],
                "spec.podCIDRs: 10.244.2.0/24 is ignored beside 10.244.1.0/24",
            ),
            (json!({"podCIDRs": [7]}), &[], "spec.podCIDRs[0]: 7 is not a string"),
            (json!({"podCIDR": "10.244.1.0/99"}), &[], "spec.podCIDR: \"10.244.1.0/99\" is not a CIDR"),
            (json!("10.244.1.0/24"), &[], "spec: \"10.244.1.0/24\" is not an object"),
        ] {
            assert_eq!(with_spec(&spec), (strings(expected), strings(&[problem])), "{spec}");
        }
    }

    #[test]
    fn internal_addresses_come_before_external_ones() {
        let ips = with_addresses(&json!([
            {"type": "ExternalIP", "address": "203.0.113.1"},
            {"type": "InternalIP", "address": "192.0.2.1"},
            {"type": "Hostname", "address": "192.0.2.99"},
            {"type": "ExternalIP", "address": "2001:db8:1::1"},
            {"type": "InternalIP", "address": "2001:db8::1"},
        ]));
        assert_eq!(ips, ["192.0.2.1", "2001:db8::1", "203.0.113.1", "2001:db8:1::1"]);
    }

    #[test]
    fn an_address_that_cannot_be_read_is_skipped_alone() {
        let ips = with_addresses(&json!([
            {"type": "InternalIP", "address": "n1.example"},
            {"type": "InternalIP", "address": ""},
            {"type": "InternalIP", "address": 7},
            {"type": "InternalIP"},
            {"address": "192.0.2.2"},
            "192.0.2.3",
            {"type": "InternalIP", "address": "192.0.2.04"},
        ]));
        assert_eq!(ips, ["192.0.2.4"]);
        assert_eq!(with_addresses(&json!("192.0.2.1")), Vec::<String>::new());
    }

    #[test]
    fn a_node_is_read_with_its_name_and_its_addresses() {
        let addresses = json!([
            {"type": "Hostname", "address": "node-b"},
            {"type": "ExternalIP", "address": "203.0.113.2"},
            {"type": "InternalIP", "address": "192.0.2.2"},
            {"type": "InternalIP", "address": "2001:db8::2"},
        ]);
        let object = json!({"metadata": {"name": "node-b"}, "status": {"addresses": addresses},
            "spec": {"podCIDRs": ["10.244.3.0/24", "fd00:10:244:3::/64"]}});
        let all = |ips: &[&str]| ips.iter().map(|ip| ip.parse().unwrap()).collect();
        let expected = Node {
            name: "node-b".into(),
            ips: all(&["192.0.2.2", "2001:db8::2", "203.0.113.2"]),
            overlay_ips: all(&["10.244.3.0", "10.244.3.1", "fd00:10:244:3::", "fd00:10:244:3::1"]),
            pod_cidrs: ["10.244.3.0/24", "fd00:10:244:3::/64"].map(|range| range.parse().unwrap()).into(),
            ..Node::default()
        };
        assert_eq!(node(object), expected);
    }

    #[test]
    fn network_plugins_name_the_addresses_that_they_give_a_node_in_an_overlay() {
        let annotations = json!({
            "projectcalico.org/IPv4IPIPTunnelAddr": "10.244.3.64",
            "projectcalico.org/IPv4VXLANTunnelAddr": "no address",
            "projectcalico.org/IPv6VXLANTunnelAddr": "fd00:10:244::3:40",
            "projectcalico.org/IPv4WireguardInterfaceAddr": "10.244.3.65",
            "network.cilium.io/ipv4-cilium-host": "10.244.3.66",
        });
        let object = json!({"metadata": {"name": "node-b", "annotations": annotations}});
        let node = node(object);
        let expected = ["10.244.3.64", "fd00:10:244::3:40", "10.244.3.65", "10.244.3.66"];
        assert_eq!(node.overlay_ips, expected.map(|ip| ip.parse::<IpAddr>().unwrap()));
        assert_eq!(node.problems, [""; 0]);
    }
}
