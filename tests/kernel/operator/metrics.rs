//! The metrics of a daemon that serves Services from a directory.

use anyhow::ensure;
use serde_json::{Value, json};
use testkit::{daemon::eventually, lab::Host, metrics::value};

use crate::support::cluster::{self, Cluster, NO_PERIOD, Service, V4, V6, at, page};

/// Waits until the metric has this value, and returns the page on which it has.
fn shows(node: &Host, metric: &str, wanted: f64) -> String {
    eventually("the metric has its value", || {
        let page = page(node, "/metrics")?;
        let found = value(&page, metric)?;
        ensure!((found - wanted).abs() < f64::EPSILON, "{metric} is {found}, not {wanted}");
        Ok(page)
    })
    .unwrap()
}

/// Waits until the metric, which may go on growing, is as large as this.
fn grows_to(node: &Host, metric: &str, least: f64) {
    eventually("the metric has grown", || {
        let found = value(&page(node, "/metrics")?, metric)?;
        ensure!(found >= least, "{metric} is {found}, not {least} or more");
        Ok(())
    })
    .unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn metrics_count_changes_and_syncs() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let node = &cluster.lab.node;
    let web = [V4, V6].map(Service::tcp);
    for service in &web {
        cluster.apply(&service.clone().endpoints([1]));
    }
    let before = page(node, "/metrics").unwrap();
    cluster.apply(&web[0].clone().endpoints([1, 2]));
    // The kernel has it a moment before the sync has ended.
    shows(node, "kubeproxy_sync_proxy_rules_endpoint_changes_pending", 0.0);
    shows(node, "kubeproxy_sync_proxy_rules_service_changes_pending", 0.0);
    let after = page(node, "/metrics").unwrap();
    let [old, new] = [&before, &after]
        .map(|page| move |metric: &str| value(page, &format!("kubeproxy_{metric}")).unwrap());
    for family in ["IPv4", "IPv6"] {
        let with = |name: &str| format!("{name}{{ip_family=\"{family}\"}}");
        for grows in [
            "sync_proxy_rules_duration_seconds_count",
            "sync_proxy_rules_duration_seconds_sum",
            "sync_proxy_rules_last_timestamp_seconds",
            "sync_proxy_rules_last_queued_timestamp_seconds",
        ] {
            assert!(new(&with(grows)) > old(&with(grows)), "{grows} of {family}\n{after}");
        }
        let failures = with("sync_proxy_rules_iptables_restore_failures_total");
        assert!(new(&failures).abs() < f64::EPSILON, "{after}");
    }
    let endpoint_changes = "sync_proxy_rules_endpoint_changes_total";
    assert!(new(endpoint_changes) > old(endpoint_changes), "{after}");
    assert!(new("sync_proxy_rules_service_changes_total") >= 2.0, "{after}");
    for (programmed, count) in [("virtual_servers", 2.0), ("real_servers", 3.0), ("vips", 2.0)] {
        shows(node, &format!("kube_ipvs_{programmed}"), count);
    }
    let memory = value(&after, "process_resident_memory_bytes").unwrap();
    assert!(memory > 1e6, "{memory} bytes");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_service_whose_endpoints_are_all_elsewhere_is_counted_under_its_policy() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let node = &cluster.lab.node;
    let node_port = json!({ "type": "NodePort", "ports": [{ "port": 80, "nodePort": 30_080 }] });
    let web = Service::tcp(V4).patch(&json!({ "spec": node_port }));
    let count = |policy: &str| {
        format!(
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total{{traffic_policy=\"{policy}\",ip_family=\"IPv4\"}}"
        )
    };
    for (policy, other) in [("internal", "external"), ("external", "internal")] {
        let local = web.clone().patch(&json!({ "spec": { format!("{policy}TrafficPolicy"): "Local" } }));
        cluster.write(&local.clone().endpoints([cluster::elsewhere(1)]));
        shows(node, &count(policy), 1.0);
        shows(node, &count(other), 0.0);
        cluster.apply(&local.endpoints([cluster::here(1)]));
        shows(node, &count(policy), 0.0);
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_udp_flow_that_leads_past_a_new_service_is_deleted_and_counted() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let node = &cluster.lab.node;
    let client = cluster.lab.client.ipv4.to_string();
    node.run(
        "conntrack",
        &[
            &["-I", "-p", "udp", "-t", "300"][..],
            &["-s", &client, "-d", V4, "--sport", "4000", "--dport", "80"],
            &["-r", V4, "-q", &client, "--reply-port-src", "80", "--reply-port-dst", "4000"],
        ]
        .concat(),
    )
    .unwrap();
    let ports = [json!({ "name": "dns", "protocol": "UDP", "port": 80 })];
    cluster.apply(&Service::new("dns", &json!({ "clusterIPs": [V4], "ports": ports })).endpoints([1]));
    let of = |metric: &str, family: &str| {
        format!("kubeproxy_conntrack_reconciler_{metric}{{ip_family=\"{family}\"}}")
    };
    shows(node, &of("deleted_entries_total", "IPv4"), 1.0);
    shows(node, &of("deleted_entries_total", "IPv6"), 0.0);
    shows(node, &of("sync_duration_seconds_count", "IPv4"), 1.0);
    shows(node, &of("sync_duration_seconds_count", "IPv6"), 0.0);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_a_service_and_its_endpoints_carry_is_shown_when_it_is_asked_for() {
    const CONNECTIONS: u32 = 7;
    let cluster = Cluster::start(1, &[NO_PERIOD, "--service-metrics=endpoint"]);
    let node = &cluster.lab.node;
    cluster.apply(&Service::tcp(V4).endpoints([1]));
    for _ in 0..CONNECTIONS {
        cluster.lab.client.ask(at(V4, 80)).unwrap();
    }
    let service = format!(
        "svc_namespace=\"default\",service_name=\"web4\",service_vip=\"{V4}\",protocol=\"tcp\",port=\"80\""
    );
    let pod = cluster.pod_address(1, V4.parse().unwrap());
    let endpoint = format!("{service},endpoint_ip=\"{}\",endpoint_port=\"{}\"", pod.ip(), pod.port());
    // IPVS adds its counters up every two seconds, and a reading is good for five.
    shows(node, &format!("kube_router_service_total_connections{{{service}}}"), CONNECTIONS.into());
    shows(node, &format!("kube_ipvs_endpoint_connections_total{{{endpoint}}}"), CONNECTIONS.into());
    let metrics = page(node, "/metrics").unwrap();
    let of_service =
        |name: &str| value(&metrics, &format!("kube_router_service_{name}{{{service}}}")).unwrap();
    for direction in ["in", "out"] {
        let packets = of_service(&format!("packets_{direction}"));
        assert!(packets >= 3.0 * f64::from(CONNECTIONS), "{metrics}");
        assert!(of_service(&format!("bytes_{direction}")) >= packets * 40.0, "{metrics}");
    }
    assert!(value(&metrics, "kube_ipvs_service_metrics_read_seconds").unwrap() > 0.0, "{metrics}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_is_asked_of_the_kernel_is_counted_and_how_long_the_first_sync_took() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let node = &cluster.lab.node;
    cluster.apply(&Service::tcp(V4).endpoints([1, 2]));
    let metrics = page(node, "/metrics").unwrap();
    let shown = |metric: &str| value(&metrics, metric).unwrap();
    let first_sync = shown("kube_ipvs_time_to_first_sync_seconds");
    assert!(first_sync > 0.0 && first_sync < 60.0, "{first_sync} s");
    for subsystem in ["ipvs", "nf_tables", "links"] {
        for calls in ["reads", "writes"] {
            assert!(
                shown(&format!("kube_ipvs_kernel_{calls}_total{{subsystem=\"{subsystem}\"}}")) > 0.0,
                "{metrics}"
            );
        }
    }
    assert!(shown("kube_ipvs_conntrack_entries_limit") > 0.0, "{metrics}");
    assert!(shown("kube_ipvs_conntrack_entries") >= 0.0, "{metrics}");
    let ipvs = "kube_ipvs_kernel_writes_total{subsystem=\"ipvs\"}";
    cluster.apply(&Service::tcp(V4).endpoints([1]));
    // Weight 0 first, and then it goes.
    shows(node, ipvs, shown(ipvs) + 2.0);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_real_server_that_drains_is_counted_until_its_last_connection_has_ended() {
    let cluster = Cluster::start(2, &[NO_PERIOD, "--drain-timeout=3s"]);
    let node = &cluster.lab.node;
    let web = Service::tcp(V4);
    cluster.apply(&web.clone().endpoints([1]));
    let _connection = cluster.lab.client.connect(at(V4, 80)).unwrap();
    cluster.write(&web.endpoints([2]));
    let metrics = shows(node, "kube_ipvs_draining_real_servers", 1.0);
    let age = value(&metrics, "kube_ipvs_oldest_drain_seconds").unwrap();
    assert!(age > 0.0 && age < 20.0, "{age} s");
    shows(node, "kube_ipvs_drains_started_total", 1.0);
    shows(node, "kube_ipvs_drains_ended_total", 1.0);
    shows(node, "kube_ipvs_drain_connections_cut_off_total", 1.0);
    shows(node, "kube_ipvs_draining_real_servers", 0.0);
    shows(node, "kube_ipvs_oldest_drain_seconds", 0.0);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_the_kernel_refuses_is_counted_as_a_failure_each_time() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let node = &cluster.lab.node;
    cluster.apply(&Service::tcp(V4).endpoints([1]));
    let refused = "kube_ipvs_sync_failures_total{subsystem=\"links\",cause=\"refused\"}";
    shows(node, refused, 0.0);
    // With less than 1280 bytes a device has no IPv6.
    let mtu = |bytes: &str| node.run("ip", &["link", "set", "kube-ipvs0", "mtu", bytes]).unwrap();
    mtu("1000");
    let web = Service::new("web6", &json!({ "clusterIPs": [V6], "ports": [{ "port": 80 }] })).endpoints([1]);
    cluster.write(&web);
    grows_to(node, refused, 1.0);
    // It is tried again.
    grows_to(node, refused, 2.0);
    mtu("1500");
    cluster.is_bound(V6.parse().unwrap(), true);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_other_pages_are_those_of_kube_proxy() {
    let cluster = Cluster::start(1, &["--ipvs-scheduler=wrr"]);
    let node = &cluster.lab.node;
    eventually("the metrics server listens", || page(node, "/healthz")).unwrap();
    assert_eq!(page(node, "/healthz").unwrap(), "ok");
    assert_eq!(page(node, "/proxyMode").unwrap(), "ipvs");
    let configuration: Value = serde_json::from_str(&page(node, "/configz").unwrap()).unwrap();
    let configuration = configuration.get("kubeproxy.config.k8s.io").unwrap();
    let says = |path: &str| configuration.pointer(path).unwrap().clone();
    assert_eq!(says("/kind"), "KubeProxyConfiguration");
    assert_eq!(says("/apiVersion"), "kubeproxy.config.k8s.io/v1alpha1");
    assert_eq!(says("/mode"), "ipvs");
    assert_eq!(says("/ipvs/scheduler"), "wrr", "what was given");
    assert_eq!(says("/metricsBindAddress"), "127.0.0.1:10249", "what was not");
    assert!(page(node, "/metrics/slis").unwrap().contains("kubernetes_healthchecks_total{"));
    for missing in ["/debug/pprof/", "/nothing"] {
        assert!(page(node, missing).is_err(), "{missing}");
    }
}
