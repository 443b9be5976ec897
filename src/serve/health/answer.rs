//! The response, in the fields and the order of `ProxyHealth` in kube-proxy's pkg/proxy/healthcheck.

use std::collections::BTreeMap;

use ipvs::Family;
use k8s_openapi::jiff::Timestamp;
use serde::{Serialize, Serializer};

/// The requested page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HealthPage {
    /// Should load balancers send traffic here?
    Healthz,
    /// Does the proxy work?
    Livez,
    /// Does it work, and has it programmed enough to replace another proxy?
    Readyz,
}

/// The response.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HealthAnswer {
    pub(super) last_updated: GoTime,
    pub(super) current_time: GoTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node_eligible: Option<bool>,
    pub(super) healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) status: BTreeMap<Family, FamilyStatus>,
}

/// The status of a family. One sync serves all families, so they do not differ.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FamilyStatus {
    pub(super) last_updated: GoTime,
    pub(super) healthy: bool,
}

/// A time as programs in Go write it: RFC 3339, in nanoseconds without the zeros at the end.
#[derive(Clone, Copy, Debug)]
pub(super) struct GoTime(pub(super) Option<Timestamp>);

impl Serialize for GoTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(time) => serializer.collect_str(&time),
            // What Go has for no time.
            None => serializer.serialize_str("0001-01-01T00:00:00Z"),
        }
    }
}
