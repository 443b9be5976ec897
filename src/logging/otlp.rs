//! Syncs and their phases as OpenTelemetry spans, sent to a collector by OTLP over HTTP.
//!
//! The environment says where, as OpenTelemetry specifies it: without `OTEL_EXPORTER_OTLP_ENDPOINT` and
//! `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` nothing is sent. By plain HTTP only: collectors run on the node. It may name the
//! sender too (`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`).

use std::env;

use opentelemetry::{KeyValue, trace::TracerProvider as _};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::{
    Resource,
    resource::{EnvResourceDetector, TelemetryResourceDetector},
    trace::SdkTracerProvider,
};
use tracing::Subscriber;
use tracing_subscriber::{Layer, filter::filter_fn, registry::LookupSpan};

/// Any of these says where the collector is.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

/// Sends spans, and when it is dropped those that still wait.
#[derive(Debug)]
pub(super) struct Exporter(SdkTracerProvider);

impl Exporter {
    /// The exporter of a node and the layer that feeds it, if the environment says where to.
    pub(super) fn from_env<S>(node_name: &str) -> Option<(impl Layer<S>, Self)>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        if ENDPOINTS.into_iter().all(|name| env::var_os(name).is_none_or(|value| value.is_empty())) {
            return None;
        }
        match SpanExporter::builder().with_http().build() {
            Ok(exporter) => {
                Some(Self::with(exporter, resource(node_name, env::var("OTEL_SERVICE_NAME").ok())))
            }
            Err(error) => {
                // The log is not there yet.
                eprintln!("kube-ipvs: spans cannot be exported: {error}");
                None
            }
        }
    }

    fn with<S>(exporter: SpanExporter, resource: Resource) -> (impl Layer<S>, Self)
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let provider = SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter);
        let provider = provider.build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer(env!("CARGO_PKG_NAME")));
        // What a plan consists of is for the log: ten thousand operations make no span readable.
        let spans = filter_fn(|metadata| metadata.is_span() && metadata.target().starts_with("reconciler"));
        (layer.with_filter(spans), Self(provider))
    }
}

/// The attributes that say who sends. What the environment says of it goes before what is known here, and
/// `OTEL_SERVICE_NAME`, if it has a value, before all else, as OpenTelemetry's specification of resources has
/// it.
fn resource(node_name: &str, service_name: Option<String>) -> Resource {
    let known = Resource::builder_empty()
        .with_service_name(env!("CARGO_PKG_NAME"))
        .with_attribute(KeyValue::new("k8s.node.name", node_name.to_owned()))
        .with_detectors(&[Box::new(TelemetryResourceDetector), Box::new(EnvResourceDetector::new())]);
    match service_name.filter(|name| !name.is_empty()) {
        Some(name) => known.with_service_name(name).build(),
        None => known.build(),
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // A collector that does not answer has missed the end; nobody else has to know.
        let _ = self.0.shutdown();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use opentelemetry_otlp::WithExportConfig as _;
    use tracing::{Level, span};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// Takes one request and returns its first line and its body.
    fn collector(listener: &TcpListener) -> (String, Vec<u8>) {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(&stream);
        let mut request = String::new();
        reader.read_line(&mut request).unwrap();
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let line = line.to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        (request, body)
    }

    #[test]
    fn the_environment_may_give_another_name_than_the_programs_own() {
        let name = |given: Option<&str>| {
            let resource = resource("node-1", given.map(ToOwned::to_owned));
            resource.get(&"service.name".into()).map(|name| name.to_string())
        };
        assert_eq!(name(None).as_deref(), Some("kube-ipvs"));
        assert_eq!(name(Some("")).as_deref(), Some("kube-ipvs"), "as if it were not there");
        assert_eq!(name(Some("proxy-of-the-shop")).as_deref(), Some("proxy-of-the-shop"));
    }

    #[test]
    fn a_sync_and_its_phases_reach_the_collector_and_what_else_is_logged_does_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let asked = thread::spawn(move || collector(&listener));
        let exporter = SpanExporter::builder().with_http().with_endpoint(endpoint).build().unwrap();
        let (layer, exporter) = Exporter::with(exporter, resource("node-1", None));
        testkit::log::listen_on_every_thread();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let sync = span!(target: "reconciler::writer", Level::DEBUG, "sync", done = 7).entered();
            span!(target: "reconciler::sync::apply", Level::DEBUG, "write").in_scope(|| {
                tracing::debug!(target: "reconciler::sync::apply", "an operation of many");
            });
            span!(target: "hyper", Level::DEBUG, "another's").in_scope(|| ());
            drop(sync);
        });
        drop(exporter);
        let (request, body) = asked.join().unwrap();
        let body = String::from_utf8_lossy(&body);
        assert_eq!(request, "POST /v1/traces HTTP/1.1\r\n");
        for exported in ["kube-ipvs", "k8s.node.name", "node-1", "sync", "done", "write"] {
            assert!(body.contains(exported), "{exported} is missing in {body}");
        }
        for kept in ["an operation of many", "another's"] {
            assert!(!body.contains(kept), "{kept} is in {body}");
        }
    }
}
