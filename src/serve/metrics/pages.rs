//! The pages of the metrics server.
//!
//! Anyone who reaches the address is answered; it is the node's own (127.0.0.1) unless configured otherwise. So no
//! page costs much or changes anything: no profiles and no log level, whatever `enableProfiling` says. The traffic of
//! Services, which is costly to read, is read at most every few seconds, and all clients share its text.

use std::sync::Arc;

use ::http::{Method, StatusCode};
use hyper::body::Bytes;
use serde::Serialize;

use super::{
    Metrics, TrafficMetrics,
    text::{CONTENT_TYPE, Registry, Total, labels},
};
use crate::serve::http::{Page, Pages, not_found, page};

const TEXT: &str = "text/plain; charset=utf-8";

/// The pages at `metricsBindAddress`.
#[derive(Debug)]
pub struct MetricsPages {
    metrics: Arc<Metrics>,
    traffic: TrafficMetrics,
    /// The configuration in use, as JSON.
    configuration: String,
    healthz: Healthz,
}

impl MetricsPages {
    /// Creates the pages. `/configz` shows the configuration in use.
    pub fn new(
        metrics: Arc<Metrics>,
        traffic: TrafficMetrics,
        configuration: &impl Serialize,
    ) -> Result<Self, serde_json::Error> {
        let configuration = serde_json::to_value(configuration)?;
        let configuration = serde_json::json!({ "kubeproxy.config.k8s.io": configuration }).to_string();
        Ok(Self { metrics, traffic, configuration, healthz: Healthz::new() })
    }

    /// The configuration in use, as JSON.
    pub(crate) fn configuration(&self) -> &str {
        &self.configuration
    }

    /// All metrics but the traffic of Services.
    pub(crate) fn metrics(&self) -> String {
        self.metrics.text()
    }
}

impl Pages for MetricsPages {
    async fn appendix(&self, path: &str) -> Bytes {
        if path == "/metrics" { self.traffic.text().await } else { Bytes::new() }
    }

    fn page(&self, _: &Method, path: &str) -> Page {
        let shown = |content_type, body| page(StatusCode::OK, content_type, body);
        match path {
            "/metrics" => shown(CONTENT_TYPE, self.metrics.text()),
            "/metrics/slis" => shown(CONTENT_TYPE, self.healthz.registry.text()),
            "/healthz" => {
                self.healthz.answered.add(1);
                shown(TEXT, "ok".to_owned())
            }
            "/healthz/ping" => shown(TEXT, "ok".to_owned()),
            // Tools read the proxy's mode here.
            "/proxyMode" => shown(TEXT, "ipvs".to_owned()),
            "/configz" => shown("application/json", self.configuration.clone()),
            _ => not_found(),
        }
    }
}

/// The count of requests of `/healthz`, in Kubernetes' words. It only says that the server answers;
/// `healthzBindAddress` has the health of the proxy.
#[derive(Debug)]
struct Healthz {
    registry: Registry,
    answered: Total,
}

impl Healthz {
    fn new() -> Self {
        let mut registry = Registry::default();
        let answered = Total::default();
        let check = labels([("name", "ping"), ("type", "healthz")]);
        registry.register_labelled(
            "kubernetes_healthcheck",
            "This metric records the result of a single healthcheck",
            [(check.clone(), 1)],
        );
        registry.register_labelled(
            "kubernetes_healthchecks_total",
            "This metric records the results of all healthcheck",
            [(format!("{check},{}", labels([("status", "success")])), answered.clone())],
        );
        Self { registry, answered }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        path::Path,
        time::{Duration, SystemTime},
    };

    use ::http::header;
    use serde_json::json;

    use super::*;
    use crate::serve::health::{Health, UnknownNode};

    fn pages() -> MetricsPages {
        let health = Health::new(BTreeSet::new(), Duration::ZERO, UnknownNode::Eligible);
        let metrics = Metrics::new(&BTreeSet::new(), SystemTime::now(), &health, [], None, Path::new("/"));
        let configuration = json!({ "kind": "KubeProxyConfiguration", "mode": "ipvs" });
        MetricsPages::new(Arc::new(metrics), TrafficMetrics::default(), &configuration).unwrap()
    }

    /// Status, content type and body.
    fn ask(pages: &MetricsPages, path: &str) -> (u16, String, String) {
        let page = pages.page(&Method::GET, path);
        let content_type = page.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
        assert_eq!(page.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        (page.status().as_u16(), content_type, page.into_body())
    }

    #[test]
    fn tools_learn_that_the_mode_is_ipvs_and_nothing_else() {
        assert_eq!(ask(&pages(), "/proxyMode"), (200, TEXT.to_owned(), "ipvs".to_owned()));
    }

    #[test]
    fn the_configuration_in_use_is_shown_under_its_api_group() {
        let (status, content_type, body) = ask(&pages(), "/configz");
        assert_eq!((status, content_type.as_str()), (200, "application/json"));
        let expected =
            json!({ "kubeproxy.config.k8s.io": { "kind": "KubeProxyConfiguration", "mode": "ipvs" } });
        assert_eq!(serde_json::from_str::<serde_json::Value>(&body).unwrap(), expected);
    }

    #[test]
    fn healthz_is_answered_and_counted() {
        let pages = pages();
        assert_eq!(ask(&pages, "/healthz"), (200, TEXT.to_owned(), "ok".to_owned()));
        assert_eq!(ask(&pages, "/healthz").2, "ok");
        let slis = ask(&pages, "/metrics/slis").2;
        assert!(slis.contains("kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1\n"), "{slis}");
        let counted = "kubernetes_healthchecks_total{name=\"ping\",type=\"healthz\",status=\"success\"} 2\n";
        assert!(slis.contains(counted), "{slis}");
    }

    #[test]
    fn metrics_say_which_version_of_the_format_they_have() {
        let (status, content_type, body) = ask(&pages(), "/metrics");
        assert_eq!((status, content_type.as_str()), (200, "text/plain; version=0.0.4; charset=utf-8"));
        assert!(body.starts_with("# HELP ") && body.ends_with('\n'), "{body}");
    }

    #[test]
    fn there_are_no_profiles_and_nothing_to_set() {
        for path in
            ["/debug/pprof/", "/debug/pprof/heap", "/debug/flags/v", "/", "/metrics/", "/flagz", "/statusz"]
        {
            assert_eq!(ask(&pages(), path).0, 404, "{path}");
        }
    }
}
