//! What is answered, in the fields and the order of `ProxyHealth` in kube-proxy's pkg/proxy/healthcheck.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use ipvs::Family;
use k8s_openapi::jiff::Timestamp;
use serde::{Serialize, Serializer};

/// How many answers were given, by page and status.
#[derive(Debug, Default)]
pub struct HealthAnswers {
    /// `/healthz`: 200.
    pub healthz_200: AtomicU64,
    /// `/healthz`: 503.
    pub healthz_503: AtomicU64,
    /// `/livez`: 200.
    pub livez_200: AtomicU64,
    /// `/livez`: 503.
    pub livez_503: AtomicU64,
}

impl HealthAnswers {
    pub(super) fn count(&self, page: Question, ok: bool) {
        let counter = match (page, ok) {
            (Question::Healthz, true) => &self.healthz_200,
            (Question::Healthz, false) => &self.healthz_503,
            (Question::Livez, true) => &self.livez_200,
            (Question::Livez, false) => &self.livez_503,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// Shall load balancers send traffic here?
    Healthz,
    /// Does the proxy work?
    Livez,
}

/// The answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer {
    pub(super) last_updated: GoTime,
    pub(super) current_time: GoTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node_eligible: Option<bool>,
    pub(super) healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) status: BTreeMap<Family, FamilyStatus>,
}

/// Of one family. One sync is for all of them, so they do not differ.
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
