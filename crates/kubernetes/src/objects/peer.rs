//! Nodes as peers: the other nodes of the cluster.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rustc_hash::FxHashSet;
use service::{Change, ObjectName, Peer};

use super::{
    Decoded, Kind, Problems, View,
    metadata::Metadata,
    node::{RawNode, ips, pod_cidrs, protobuf},
};

/// The addresses that a node may have in an overlay: network plugins take one of the first two of its range of pods
/// (Flannel the first, Antrea the second).
fn overlay_ips(range: IpNet) -> impl Iterator<Item = IpAddr> {
    let first = range.network();
    let second = match first {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits().saturating_add(1)).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits().saturating_add(1)).into(),
    };
    [first, second].into_iter()
}

impl Kind for Peer {
    const KIND: &'static str = "Node";
    const GROUP: &'static str = "";
    const PLURAL: &'static str = "nodes";
    const WATCHED_AS: &'static str = "nodes (others)";
    const ALWAYS_SOME: bool = false;

    type Raw = RawNode;
    type Message = protobuf::Node;

    fn read(raw: RawNode) -> View<Self> {
        let mut problems = Problems::default();
        let metadata = Metadata::read(raw.metadata, &mut problems);
        let status = raw.status.read("status", &mut problems).unwrap_or_default();
        let spec = raw.spec.read("spec", &mut problems).unwrap_or_default();
        let pod_cidrs = pod_cidrs(spec, &mut problems);
        let peer = Self {
            name: (metadata.name.name()).into(),
            ips: ips(status.addresses, &mut problems),
            overlay_ips: pod_cidrs.iter().copied().flat_map(overlay_ips).collect(),
            pod_cidrs,
            problems: problems.into_vec(),
        };
        metadata.view(Decoded::Object(peer))
    }

    fn problems(&self) -> &[String] {
        &self.problems
    }

    fn init_apply(peers: Vec<Self>) -> Option<Change> {
        Some(Change::InitApplyPeers(peers))
    }

    fn init_done(names: FxHashSet<ObjectName>) -> Option<Change> {
        Some(Change::InitDonePeers(names))
    }

    fn replace(peers: Vec<Self>) -> Change {
        Change::ReplacePeers(peers)
    }

    fn apply(self) -> Change {
        Change::ApplyPeer(self)
    }

    fn delete(name: ObjectName) -> Change {
        Change::DeletePeer(name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::View;
    use super::*;

    #[test]
    fn a_peer_is_its_name_and_its_addresses() {
        let addresses = json!([
            {"type": "Hostname", "address": "node-b"},
            {"type": "ExternalIP", "address": "203.0.113.2"},
            {"type": "InternalIP", "address": "192.0.2.2"},
            {"type": "InternalIP", "address": "2001:db8::2"},
        ]);
        let object = json!({"metadata": {"name": "node-b"}, "status": {"addresses": addresses},
            "spec": {"podCIDRs": ["10.244.3.0/24", "fd00:10:244:3::/64"]}});
        let view: View<Peer> = serde_json::from_value(object).unwrap();
        let all = |ips: &[&str]| ips.iter().map(|ip| ip.parse().unwrap()).collect();
        let expected = Peer {
            name: "node-b".into(),
            ips: all(&["192.0.2.2", "2001:db8::2", "203.0.113.2"]),
            overlay_ips: all(&["10.244.3.0", "10.244.3.1", "fd00:10:244:3::", "fd00:10:244:3::1"]),
            pod_cidrs: ["10.244.3.0/24", "fd00:10:244:3::/64"].map(|range| range.parse().unwrap()).into(),
            problems: Vec::new(),
        };
        assert_eq!(view.decoded, Decoded::Object(expected));
    }
}
