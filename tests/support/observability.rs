//! manifests/monitoring, and a page of metrics with everything that kube-ipvs can show.

use std::{
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ::http::Method;
use ipvs::{Family, Protocol};
use kube_ipvs::{
    config::ServiceMetrics,
    logging::LineLimit,
    serve::{
        health::{Health, UnknownNode},
        http::Pages as _,
        liveness::EndpointAnswers,
        metrics::{Metrics, MetricsPages, TrafficMetrics},
    },
};
use kubernetes::api::Watches;
use netfilter::PacketCounts;
use reconciler::{Callbacks, Timing};
use serde_json::{Value, json};
use service::{
    Change, Endpoint, EndpointPort, EndpointSlice, Event, ObjectName, Options, Service, ServicePort, State,
};
use testkit::FakeKernel;
use watcher::{Foreign, Kernel, Ownership};

fn monitoring() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("manifests/monitoring")
}

/// What is below `spec` of the PrometheusRule: a file of rules.
pub(crate) fn rules() -> Value {
    let alerts = fs::read_to_string(monitoring().join("alerts.yaml")).unwrap();
    let alerts: Value = serde_saphyr::from_str(&alerts).unwrap();
    alerts["spec"].clone()
}

/// Every alert.
pub(crate) fn alerts() -> Vec<Value> {
    let groups = rules()["groups"].as_array().unwrap().clone();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

pub(crate) fn dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(monitoring().join("dashboard.json")).unwrap()).unwrap()
}

/// The panels that show something.
pub(crate) fn panels() -> Vec<Value> {
    let mut panels = dashboard()["panels"].as_array().unwrap().clone();
    panels.retain(|panel| panel["type"] != "row");
    panels
}

/// What the dashboard marks in all panels, as expressions.
pub(crate) fn annotations() -> Vec<String> {
    let annotations = dashboard()["annotations"]["list"].clone();
    let annotations = annotations.as_array().unwrap().iter();
    annotations.map(|annotation| annotation["expr"].as_str().unwrap().to_owned()).collect()
}

/// What a panel asks Prometheus for.
pub(crate) fn expressions(panel: &Value) -> Vec<String> {
    let targets = panel["targets"].as_array().unwrap().iter();
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// The page of a daemon that serves one Service and shows all it can.
pub(crate) fn page() -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let kernel = FakeKernel::new();
    let traffic = TrafficMetrics::default();
    let root = tempfile::tempdir().unwrap();
    let conntrack = root.path().join("proc/sys/net/netfilter");
    fs::create_dir_all(&conntrack).unwrap();
    fs::write(conntrack.join("nf_conntrack_count"), "7\n").unwrap();
    fs::write(conntrack.join("nf_conntrack_max"), "262144\n").unwrap();
    fs::create_dir_all(root.path().join("proc/net")).unwrap();
    fs::write(root.path().join("proc/net/ip_vs_status"), "Conns:\t7\n").unwrap();
    fs::create_dir_all(root.path().join("proc/sys/net/ipv4/vs")).unwrap();
    fs::write(root.path().join("proc/sys/net/ipv4/vs/conn_max"), "1073741824\n").unwrap();
    let metrics = Metrics::new(
        &Family::BOTH.into(),
        SystemTime::now(),
        &Health::new(Family::BOTH.into(), Duration::from_secs(30), UnknownNode::Eligible),
        [("AllowServiceExternalIPs", true)],
        Some(Watches::default()),
        root.path(),
    )
    .with_advice(Vec::new)
    .with_answers(EndpointAnswers::default())
    .with_log(LineLimit::default())
    .with_packets(Family::BOTH.into(), PacketCounts::default);
    let (ipvs, netfilter, dummy_interface) = kernel.subsystems();
    let timing = Timing {
        sync_period: Duration::from_secs(3600),
        min_sync_period: Duration::ZERO,
        drain_timeout: None,
        tcp_timeout: Timing::TCP_TIMEOUT,
    };
    let (handle, _) = reconciler::start(
        State::new(Options::new("node")),
        metrics.kernel_calls().counted(Kernel { ipvs, netfilter, dummy_interface }),
        Ownership { families: Family::BOTH.into(), exclude: Vec::new(), foreign: Foreign::Delete },
        timing,
        Callbacks { observers: metrics.observers().into(), ..Callbacks::none() },
    )
    .unwrap();
    let (service, slice) = web();
    handle.change(Change::Services(Event::Replace(vec![service])));
    handle.change(Change::Slices(Event::Replace(vec![slice])));
    handle.resync().unwrap();
    traffic.start(ServiceMetrics::Endpoint, || Ok(kernel), handle).unwrap();
    let pages = MetricsPages::new(Arc::new(metrics), traffic, &json!({})).unwrap();
    runtime.block_on(async {
        let traffic = pages.appendix("/metrics").await;
        pages.page(&Method::GET, "/metrics").into_body() + str::from_utf8(&traffic).unwrap()
    })
}

fn web() -> (Service, EndpointSlice) {
    let name = ObjectName::new("shop", "web");
    let service = Service {
        cluster_ips: vec!["10.96.0.1".parse().unwrap()],
        ports: vec![ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None }],
        ..Service::new(name.clone())
    };
    let endpoint = Endpoint::new("10.244.0.1".parse().unwrap());
    let slice = EndpointSlice {
        ports: vec![EndpointPort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: vec![endpoint],
        ..EndpointSlice::new(name.clone(), name, Family::V4)
    };
    (service, slice)
}
