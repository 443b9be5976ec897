//! The real kube-proxy's metrics are all here. Both pages are read by Prometheus' own parser.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testkit::{
    control_plane::ControlPlane,
    daemon::{Daemon, eventually_within},
    kube_proxy::KubeProxy,
    lab::{Host, Lab},
};

use crate::support::peer::PATIENCE;

/// What is read of a metric: its type, and the sets of label names that it comes with.
type Metrics = BTreeMap<String, (String, BTreeSet<Vec<String>>)>;

/// What Prometheus' parser makes of a page.
fn parsed(page: &str) -> Result<Metrics> {
    let program = std::env::var_os("PROM2JSON_BIN").map(PathBuf::from).unwrap();
    let mut running = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    running.stdin.take().unwrap().write_all(page.as_bytes())?;
    let output = running.wait_with_output()?;
    ensure!(output.status.success(), "the parser refuses\n{page}");
    let families: Vec<Value> = serde_json::from_slice(&output.stdout)?;
    let text = |value: &Value, field: &str| value[field].as_str().unwrap().to_owned();
    Ok(families
        .iter()
        .map(|family| {
            let labels = family["metrics"].as_array().unwrap().iter().map(|metric| {
                metric["labels"]
                    .as_object()
                    .map(|labels| labels.keys().cloned().collect())
                    .unwrap_or_default()
            });
            (text(family, "name"), (text(family, "type"), labels.collect()))
        })
        .collect())
}

fn page(node: &Host, port: u16, path: &str) -> Result<String> {
    node.run("curl", &["--silent", "--show-error", &format!("http://127.0.0.1:{port}{path}")])
}

/// The metrics of a proxy that has served the Service and was asked for its health.
fn metrics(node: &Host) -> Result<Metrics> {
    page(node, 10256, "/healthz")?;
    page(node, 10256, "/livez")?;
    parsed(&page(node, 10249, "/metrics")?)
}

/// Writes a UDP Service with this endpoint, so that every part of a proxy has something to do.
fn serve(server: &ControlPlane, endpoint: &str) {
    let port = |number: u16| json!([{ "name": "dns", "protocol": "UDP", "port": number }]);
    server
        .apply(&json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "namespace": "default", "name": "metrics" },
            "spec": { "clusterIP": "10.96.3.3", "ports": port(53) },
        }))
        .unwrap();
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "default",
            "name": "metrics",
            "labels": { "kubernetes.io/service-name": "metrics" },
            "annotations": { "endpoints.kubernetes.io/last-change-trigger-time": now },
        },
        "addressType": "IPv4",
        "ports": port(8053),
        "endpoints": [{ "addresses": [endpoint] }],
    });
    server.apply(&slice).unwrap();
}

fn leads_to(node: &Host, endpoint: &str) {
    eventually_within(PATIENCE, "the Service leads to its endpoint", || {
        let table = node.run("ipvsadm", &["-Ln"])?;
        ensure!(table.contains("10.96.3.3:53") && table.contains(endpoint), "{table}");
        Ok(())
    })
    .unwrap();
}

#[test]
#[ignore = "needs root, ip_vs, kube-apiserver and kube-proxy: cargo xtask test --tier peer"]
fn every_metric_of_kube_proxy_is_here_with_its_type_and_its_labels() {
    if testkit::kube_proxy::binary().is_none() || std::env::var_os("PROM2JSON_BIN").is_none() {
        println!("SKIP: no kube-proxy or no parser: KUBE_PROXY_BIN or PROM2JSON_BIN is not set");
        return;
    }
    let Some(server) = ControlPlane::from_env_or_skip().unwrap() else { return };
    let labs = [Lab::new(1, 8080).unwrap(), Lab::new(1, 8080).unwrap()];
    let nodes = labs.each_ref().map(|lab| &lab.node);
    for node in nodes {
        node.reach(server.address().unwrap()).unwrap();
    }
    let [theirs, ours] = nodes;
    server.create_node("node", &[ours.ipv4.into(), ours.ipv6.into()], None, &[]).unwrap();
    serve(&server, "10.244.9.1");
    let kubeconfig = server.proxy_kubeconfig();
    let arguments = ["--kubeconfig", &kubeconfig.to_string_lossy()];
    let _kube_proxy = KubeProxy::start_without_filter(theirs, &arguments).unwrap();
    let _daemon = Daemon::start(ours, &arguments).unwrap();
    for endpoint in ["10.244.9.1", "10.244.9.2"] {
        serve(&server, endpoint);
        for node in nodes {
            leads_to(node, endpoint);
        }
    }

    // Most of kube-proxy's appear when there is something to tell; the latency and conntrack come last.
    let theirs = eventually_within(PATIENCE, "kube-proxy tells of all it does", || {
        let metrics = metrics(theirs)?;
        for name in ["network_programming_duration_seconds", "conntrack_reconciler_sync_duration_seconds"] {
            ensure!(metrics.contains_key(&format!("kubeproxy_{name}")), "{name} is not in {metrics:#?}");
        }
        Ok(metrics)
    })
    .unwrap();
    let ours = metrics(ours).unwrap();
    let kept = |name: &str| {
        name.starts_with("kubeproxy_")
            || (name.starts_with("process_") && !name.starts_with("process_network_"))
    };
    let kept: BTreeMap<_, _> = theirs.iter().filter(|(name, _)| kept(name)).collect();
    assert!(kept.len() >= 20, "{:?}", kept.keys());
    let differ: Vec<_> = kept
        .iter()
        .filter(|(name, metric)| ours.get(**name) != Some(metric))
        .map(|(name, metric)| format!("{name}: {metric:?}, and here {:?}", ours.get(*name)))
        .collect();
    assert!(differ.is_empty(), "{differ:#?}");
    // Besides, there is nothing that could be taken for one of kube-proxy's. Failures it shows from the first on.
    let failures = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total";
    let more: Vec<_> = ours
        .keys()
        .filter(|name| name.starts_with("kubeproxy_") && !theirs.contains_key(*name) && *name != failures)
        .collect();
    assert!(more.is_empty(), "{more:?}");
}
