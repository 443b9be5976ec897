//! The response to a load balancer.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use ::http::{HeaderValue, Method, StatusCode};
use serde::Serialize;
use serde_json::ser::PrettyFormatter;
use service::ObjectName;

use crate::serve::{
    health::Health,
    http::{Page, Pages, page},
};

/// The header with this node's weight among the nodes.
const WEIGHT: &str = "x-load-balancing-endpoint-weight";

/// Answers for one Service in one family, for any path and method, as in kube-proxy.
pub(super) struct PortAnswer {
    pub(super) service: ObjectName,
    pub(super) ready: Arc<AtomicUsize>,
    pub(super) health: Health,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    service: Name<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct Name<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl Pages for PortAnswer {
    /// The response at a Service's port. A leaving node does not count here: `/healthz` says that.
    fn page(&self, _: &Method, _: &str) -> Page {
        let local_endpoints = self.ready.load(Ordering::Relaxed);
        let service_proxy_healthy = self.health.is_healthy();
        let (namespace, name) = self.service.parts();
        let service = Name { namespace, name };
        let body = indented(&Body { service, local_endpoints, service_proxy_healthy });
        let ok = local_endpoints > 0 && service_proxy_healthy;
        let status = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let mut page = page(status, "application/json", body);
        page.headers_mut().insert(WEIGHT, HeaderValue::from(local_endpoints));
        page
    }
}

/// The body as JSON, indented with tabs as kube-proxy has it.
fn indented(body: &Body<'_>) -> String {
    let mut text = Vec::new();
    let mut serializer =
        serde_json::Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(b"\t"));
    // Strings and numbers, into memory.
    _ = body.serialize(&mut serializer);
    String::from_utf8(text).unwrap_or_default()
}
