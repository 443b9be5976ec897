//! Nodes as peers: the other nodes of the cluster.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rustc_hash::FxHashSet;
use service::{Change, ObjectName, Peer};

use super::{
    Decoded, Kind, Problems, View, address,
    metadata::{Annotations, Metadata},
    node::{RawNode, ips, pod_cidrs, protobuf},
};

/// The addresses that a node may have in an overlay.
fn overlay_ips(pod_cidrs: &[IpNet], annotations: Box<Annotations>, problems: &mut Problems) -> Vec<IpAddr> {
    let told = [
        (annotations.calico_ipip, "projectcalico.org/IPv4IPIPTunnelAddr"),
        (annotations.calico_vxlan_v4, "projectcalico.org/IPv4VXLANTunnelAddr"),
        (annotations.calico_vxlan_v6, "projectcalico.org/IPv6VXLANTunnelAddr"),
        (annotations.calico_wireguard_v4, "projectcalico.org/IPv4WireguardInterfaceAddr"),
        (annotations.calico_wireguard_v6, "projectcalico.org/IPv6WireguardInterfaceAddr"),
        (annotations.cilium_host_v4, "network.cilium.io/ipv4-cilium-host"),
        (annotations.cilium_host_v6, "network.cilium.io/ipv6-cilium-host"),
    ];
    let told = told.into_iter().filter_map(|(field, name)| {
        let text = field.read(format_args!("metadata.annotations[{name}]"), problems)?;
        address::parse(&text)
    });
    let mut ips: Vec<_> = told.collect();
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
        let mut metadata = Metadata::read(raw.metadata, &mut problems);
        let status = raw.status.read("status", &mut problems).unwrap_or_default();
        let spec = raw.spec.read("spec", &mut problems).unwrap_or_default();
        let pod_cidrs = pod_cidrs(spec, &mut problems);
        let overlay_ips = overlay_ips(&pod_cidrs, std::mem::take(&mut metadata.annotations), &mut problems);
        let peer = Self {
            name: (metadata.name.name()).into(),
            ips: ips(status.addresses, &mut problems),
            overlay_ips,
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

    #[test]
    fn network_plugins_tell_the_addresses_that_they_give_a_node_in_an_overlay() {
        let told = json!({
            "projectcalico.org/IPv4IPIPTunnelAddr": "10.244.3.64",
            "projectcalico.org/IPv4VXLANTunnelAddr": "no address",
            "projectcalico.org/IPv6VXLANTunnelAddr": "fd00:10:244::3:40",
            "projectcalico.org/IPv4WireguardInterfaceAddr": "10.244.3.65",
            "network.cilium.io/ipv4-cilium-host": "10.244.3.66",
        });
        let object = json!({"metadata": {"name": "node-b", "annotations": told}});
        let view: View<Peer> = serde_json::from_value(object).unwrap();
        let Decoded::Object(peer) = view.decoded else { panic!("{view:?}") };
        let expected = ["10.244.3.64", "fd00:10:244::3:40", "10.244.3.65", "10.244.3.66"];
        assert_eq!(peer.overlay_ips, expected.map(|ip| ip.parse::<IpAddr>().unwrap()));
        assert_eq!(peer.problems, [""; 0]);
    }
}
