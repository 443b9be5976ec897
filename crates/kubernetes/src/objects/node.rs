//! Nodes.

pub(super) mod protobuf;

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use ipvs::Family;
use rustc_hash::FxHashSet;
use serde::Deserialize;
use service::{Change, Node, ObjectName};
use tracing::warn;

use super::{
    Decoded, Kind, Problems, View, address,
    field::{Field, List, Object, Quoted, Text, owned},
    metadata::{Metadata, RawMetadata},
};

/// A Node as the API server sends it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawNode {
    pub(super) metadata: Field<RawMetadata>,
    pub(super) spec: Field<RawSpec>,
    pub(super) status: Field<RawStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawSpec {
    #[serde(rename = "podCIDR")]
    pod_cidr: Field<Text>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: List<Text>,
    taints: List<RawTaint>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawTaint {
    key: Field<Text>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawStatus {
    pub(super) addresses: List<RawAddress>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawAddress {
    #[serde(rename = "type")]
    kind: Field<Text>,
    address: Field<Text>,
}

impl Object for RawNode {}
impl Object for RawSpec {}
impl Object for RawTaint {}
impl Object for RawStatus {}
impl Object for RawAddress {}

impl Kind for Node {
    const KIND: &'static str = "Node";
    const GROUP: &'static str = "";
    const PLURAL: &'static str = "nodes";
    const ALWAYS_SOME: bool = false;

    type Raw = RawNode;
    type Message = protobuf::Node;

    fn read(raw: RawNode) -> View<Self> {
        let mut problems = Problems::default();
        let mut metadata = Metadata::read(raw.metadata, &mut problems);
        let zone = std::mem::take(&mut metadata.labels.zone)
            .read("metadata.labels[topology.kubernetes.io/zone]", &mut problems);
        // A zone that is not a string cannot be matched by any hint: the same as none.
        let mut spec = raw.spec.read("spec", &mut problems).unwrap_or_default();
        let taints = std::mem::take(&mut spec.taints);
        let status = raw.status.read("status", &mut problems).unwrap_or_default();
        let node = Self {
            zone: zone.map(owned),
            ips: ips(status.addresses, &mut problems),
            pod_cidrs: pod_cidrs(spec, &mut problems),
            leaving: metadata.leaving || is_given_up(taints, &mut problems),
            problems: problems.into_vec(),
        };
        metadata.view(Decoded::Object(node))
    }

    fn problems(&self) -> &[String] {
        &self.problems
    }

    fn init_apply(nodes: Vec<Self>) -> Option<Change> {
        nodes.into_iter().next_back().map(Change::ApplyNode)
    }

    fn init_done(names: FxHashSet<ObjectName>) -> Option<Change> {
        names.is_empty().then(no_node)
    }

    fn replace(nodes: Vec<Self>) -> Change {
        nodes.into_iter().next_back().map_or_else(no_node, Change::ApplyNode)
    }

    fn apply(self) -> Change {
        Change::ApplyNode(self)
    }

    fn delete(name: ObjectName) -> Change {
        warn!("the Node {} was deleted; its last zone, addresses and pod CIDRs stay in use", name.name());
        Change::DeleteNode
    }
}

fn no_node() -> Change {
    warn!(
        "no Node has this node's name (--hostname-override): unless it was known before, zone hints are not used, \
         and nodePortAddresses \"primary\" serves no NodePort"
    );
    Change::DeleteNode
}

/// The taint of a node that the cluster autoscaler will delete. Load balancers must learn of it before.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

fn is_given_up(taints: List<RawTaint>, problems: &mut Problems) -> bool {
    let keys = taints.read_each("spec.taints", problems, |raw, at, problems| {
        raw.key.read(format_args!("{at}.key"), problems)
    });
    keys.iter().any(|key| **key == *TO_BE_DELETED)
}

/// The node IPs: the internal ones, then the external ones, each in the order of the list, which has the
/// primary one first. Host names are left out, and whatever else is no address.
pub(super) fn ips(addresses: List<RawAddress>, problems: &mut Problems) -> Vec<IpAddr> {
    let addresses = addresses.read_each("status.addresses", problems, |raw, at, problems| {
        let kind = raw.kind.read(format_args!("{at}.type"), problems)?;
        let text = raw.address.read(format_args!("{at}.address"), problems)?;
        Some((kind, address::parse(&text)?))
    });
    let of =
        |kind: &'static str| addresses.iter().filter(move |(other, _)| **other == *kind).map(|(_, ip)| *ip);
    of("InternalIP").chain(of("ExternalIP")).collect()
}

/// The first pod CIDR of each family, as with kube-proxy. A Node from before dual stack has its only one in
/// `spec.podCIDR`.
pub(super) fn pod_cidrs(spec: RawSpec, problems: &mut Problems) -> Vec<IpNet> {
    let mut given =
        spec.pod_cidrs.read_each("spec.podCIDRs", problems, |text, at, problems| range(&text, at, problems));
    let only = spec.pod_cidr.read("spec.podCIDR", problems).filter(|text| !text.is_empty());
    if let Some(text) = only
        && given.is_empty()
    {
        given.extend(range(&text, format_args!("spec.podCIDR"), problems));
    }
    let mut used: Vec<IpNet> = Vec::new();
    for range in given {
        match used.iter().find(|used| Family::from(used.addr()) == Family::from(range.addr())) {
            Some(first) => problems.add("spec.podCIDRs", format_args!("{range} is not used beside {first}")),
            None => used.push(range),
        }
    }
    used
}

fn range(text: &str, at: fmt::Arguments<'_>, problems: &mut Problems) -> Option<IpNet> {
    let range = address::parse_range(text);
    if range.is_none() {
        problems.add(at, format_args!("{} is not a CIDR", Quoted(text)));
    }
    range
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
            zone: Some("z1".into()),
            ips: vec!["192.0.2.1".parse().unwrap()],
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
        assert_eq!(node(json!({"metadata": {"name": "n1"}})), Node::default());
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
                "spec.podCIDRs: 10.244.2.0/24 is not used beside 10.244.1.0/24",
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
}
