//! `metadata`: the object's name, and the labels and annotations that matter.

pub(super) mod protobuf;

use jiff::Timestamp;
use serde::Deserialize;
use service::ObjectName;

use super::{
    Decoded, Problems, View,
    field::{Field, Object, Text},
};

/// `metadata` as the API server sends it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RawMetadata {
    name: Field<Text>,
    namespace: Field<Text>,
    resource_version: Field<Text>,
    creation_timestamp: Field<Timestamp>,
    deletion_timestamp: Field<Timestamp>,
    labels: Field<Box<Labels>>,
    annotations: Field<Box<Annotations>>,
}

impl Object for RawMetadata {}

/// The labels that mean something to a node proxy.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Labels {
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub(super) service_proxy_name: Field<Text>,
    #[serde(rename = "service.kubernetes.io/headless")]
    pub(super) headless: Field<Text>,
    #[serde(rename = "kubernetes.io/service-name")]
    pub(super) service_name: Field<Text>,
    #[serde(rename = "topology.kubernetes.io/zone")]
    pub(super) zone: Field<Text>,
}

// An object is moved some times until it is read.
impl Object for Box<Labels> {}

/// The annotations that mean something to a node proxy.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Annotations {
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    pub(super) last_change_trigger_time: Field<Timestamp>,
    #[serde(rename = "kube-ipvs.io/scheduler")]
    pub(super) scheduler: Field<Text>,
    #[serde(rename = "kube-ipvs.io/scheduler-flags")]
    pub(super) scheduler_flags: Field<Text>,
    #[serde(rename = "kube-router.io/service.scheduler")]
    pub(super) kube_router_scheduler: Field<Text>,
    #[serde(rename = "kube-router.io/service.schedflags")]
    pub(super) kube_router_scheduler_flags: Field<Text>,
    #[serde(rename = "kube-ipvs.io/weights-by-node")]
    pub(super) weights_by_node: Field<Text>,
    #[serde(rename = "kube-ipvs.io/weights-by-zone")]
    pub(super) weights_by_zone: Field<Text>,
    #[serde(rename = "kube-ipvs.io/weight")]
    pub(super) weight: Field<Text>,
    #[serde(rename = "kube-ipvs.io/max-connections")]
    pub(super) max_connections: Field<Text>,
    #[serde(rename = "kube-ipvs.io/resume-below")]
    pub(super) resume_below: Field<Text>,
    #[serde(rename = "kube-ipvs.io/forwarding-method")]
    pub(super) forwarding_method: Field<Text>,
    #[serde(rename = "kube-router.io/service.dsr")]
    pub(super) kube_router_dsr: Field<Text>,
    /// Of Nodes: the addresses that network plugins give them in an overlay.
    #[serde(rename = "projectcalico.org/IPv4IPIPTunnelAddr")]
    pub(super) calico_ipip: Field<Text>,
    #[serde(rename = "projectcalico.org/IPv4VXLANTunnelAddr")]
    pub(super) calico_vxlan_v4: Field<Text>,
    #[serde(rename = "projectcalico.org/IPv6VXLANTunnelAddr")]
    pub(super) calico_vxlan_v6: Field<Text>,
    #[serde(rename = "projectcalico.org/IPv4WireguardInterfaceAddr")]
    pub(super) calico_wireguard_v4: Field<Text>,
    #[serde(rename = "projectcalico.org/IPv6WireguardInterfaceAddr")]
    pub(super) calico_wireguard_v6: Field<Text>,
    #[serde(rename = "network.cilium.io/ipv4-cilium-host")]
    pub(super) cilium_host_v4: Field<Text>,
    #[serde(rename = "network.cilium.io/ipv6-cilium-host")]
    pub(super) cilium_host_v6: Field<Text>,
}

impl Object for Box<Annotations> {}

/// `metadata` after it was read.
pub(super) struct Metadata {
    /// Without a namespace if the object is cluster-wide; empty where it cannot be read.
    pub(super) name: ObjectName,
    pub(super) version: Option<Text>,
    /// The time of creation, in seconds since 1970.
    pub(super) created: Option<i64>,
    /// Whether the object is being deleted.
    pub(super) leaving: bool,
    pub(super) labels: Box<Labels>,
    pub(super) annotations: Box<Annotations>,
}

impl Metadata {
    pub(super) fn read(raw: Field<RawMetadata>, problems: &mut Problems) -> Self {
        let raw = raw.read("metadata", problems).unwrap_or_default();
        let name = raw.name.read("metadata.name", problems).unwrap_or_default();
        let namespace = raw.namespace.read("metadata.namespace", problems).unwrap_or_default();
        Self {
            name: ObjectName::new(&*namespace, &*name),
            version: raw
                .resource_version
                .read("metadata.resourceVersion", problems)
                .filter(|version| !version.is_empty()),
            created: raw
                .creation_timestamp
                .read("metadata.creationTimestamp", problems)
                .map(Timestamp::as_second),
            leaving: raw.deletion_timestamp.is_present(),
            labels: raw.labels.read("metadata.labels", problems).unwrap_or_default(),
            annotations: raw.annotations.read("metadata.annotations", problems).unwrap_or_default(),
        }
    }

    /// The object's name, if it has one and a namespace.
    pub(super) fn object_name(&self) -> Option<ObjectName> {
        let (namespace, name) = self.name.parts();
        (!name.is_empty() && !name.contains('/') && !namespace.is_empty()).then(|| self.name.clone())
    }

    /// The object, with what was read of it.
    pub(super) fn view<T>(self, decoded: Decoded<T>) -> View<T> {
        View { name: self.name, version: self.version, decoded }
    }
}

/// Why an object without [`Metadata::object_name`] cannot be used.
pub(super) fn nameless(problems: Problems) -> String {
    let mut words = problems.into_vec();
    words.push("it has no valid name or namespace".to_owned());
    words.join("; ")
}
