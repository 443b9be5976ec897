//! `metadata`: the object's name, and the labels and annotations that matter.

use std::str::FromStr;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use service::ObjectName;

use super::{
    Problems,
    field::{Field, Object, Quoted},
};

/// `metadata` as the API server sends it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RawMetadata {
    name: Field<Box<str>>,
    namespace: Field<Box<str>>,
    resource_version: Field<Box<str>>,
    creation_timestamp: Field<Box<str>>,
    deletion_timestamp: Field<Box<str>>,
    labels: Field<Labels>,
    annotations: Field<Annotations>,
}

impl Object for RawMetadata {}

/// The labels that mean something to a node proxy.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Labels {
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub(super) service_proxy_name: Field<Box<str>>,
    #[serde(rename = "service.kubernetes.io/headless")]
    pub(super) headless: Field<Box<str>>,
    #[serde(rename = "kubernetes.io/service-name")]
    pub(super) service_name: Field<Box<str>>,
    #[serde(rename = "topology.kubernetes.io/zone")]
    pub(super) zone: Field<Box<str>>,
}

impl Object for Labels {}

/// The annotations that mean something to a node proxy.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Annotations {
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    pub(super) last_change_trigger_time: Field<Box<str>>,
    #[serde(rename = "kube-ipvs.io/scheduler")]
    pub(super) scheduler: Field<Box<str>>,
    #[serde(rename = "kube-ipvs.io/scheduler-flags")]
    pub(super) scheduler_flags: Field<Box<str>>,
    #[serde(rename = "kube-router.io/service.scheduler")]
    pub(super) kube_router_scheduler: Field<Box<str>>,
    #[serde(rename = "kube-router.io/service.schedflags")]
    pub(super) kube_router_scheduler_flags: Field<Box<str>>,
    #[serde(rename = "kube-ipvs.io/weights-by-node")]
    pub(super) weights_by_node: Field<Box<str>>,
    #[serde(rename = "kube-ipvs.io/weights-by-zone")]
    pub(super) weights_by_zone: Field<Box<str>>,
    #[serde(rename = "kube-ipvs.io/weight")]
    pub(super) weight: Field<Box<str>>,
    #[serde(rename = "kube-ipvs.io/max-connections")]
    pub(super) max_connections: Field<Box<str>>,
    #[serde(rename = "kube-ipvs.io/resume-below")]
    pub(super) resume_below: Field<Box<str>>,
    #[serde(rename = "kube-ipvs.io/forwarding-method")]
    pub(super) forwarding_method: Field<Box<str>>,
    #[serde(rename = "kube-router.io/service.dsr")]
    pub(super) kube_router_dsr: Field<Box<str>>,
}

impl Object for Annotations {}

/// `metadata` after it was read.
pub(super) struct Metadata {
    name: Box<str>,
    namespace: Box<str>,
    resource_version: Option<Box<str>>,
    /// The time of creation, in seconds since 1970.
    pub(super) created: Option<i64>,
    /// Whether the object is being deleted.
    pub(super) leaving: bool,
    pub(super) labels: Labels,
    pub(super) annotations: Annotations,
}

impl Metadata {
    pub(super) fn read(raw: Field<RawMetadata>, problems: &mut Problems) -> Self {
        let raw = raw.read("metadata", problems).unwrap_or_default();
        Self {
            name: raw.name.read("metadata.name", problems).unwrap_or_default(),
            namespace: raw.namespace.read("metadata.namespace", problems).unwrap_or_default(),
            resource_version: raw.resource_version.read("metadata.resourceVersion", problems),
            created: time(raw.creation_timestamp, "metadata.creationTimestamp", problems)
                .map(Timestamp::as_second),
            leaving: raw.deletion_timestamp.is_present(),
            labels: raw.labels.read("metadata.labels", problems).unwrap_or_default(),
            annotations: raw.annotations.read("metadata.annotations", problems).unwrap_or_default(),
        }
    }

    /// The object's name, if it has one and a namespace.
    pub(super) fn object_name(&self) -> Option<ObjectName> {
        (!self.name.is_empty() && !self.namespace.is_empty())
            .then(|| ObjectName::new(&*self.namespace, &*self.name))
    }

    /// The fields that the watch protocol needs.
    pub(super) fn object_meta(self) -> ObjectMeta {
        let text = |text: Box<str>| (!text.is_empty()).then(|| text.into_string());
        ObjectMeta {
            name: text(self.name),
            namespace: text(self.namespace),
            resource_version: self.resource_version.and_then(text),
            ..ObjectMeta::default()
        }
    }
}

/// A time, as in RFC 3339.
pub(super) fn time(field: Field<Box<str>>, at: &str, problems: &mut Problems) -> Option<Timestamp> {
    let text = field.read(at, problems)?;
    let time = Timestamp::from_str(&text).ok();
    if time.is_none() {
        problems.add(at, format_args!("{} is not a time", Quoted(&text)));
    }
    time
}

/// Why an object without [`Metadata::object_name`] cannot be used.
pub(super) fn nameless(problems: Problems) -> String {
    let mut words = problems.into_vec();
    words.push("it has no name or no namespace".to_owned());
    words.join("; ")
}
