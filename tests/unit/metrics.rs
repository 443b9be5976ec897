//! docs/metrics.md: its tables are written from a page of metrics, and it says what the values of labels mean.

use std::collections::{BTreeMap, BTreeSet};

use testkit::documented::{assert_generated, table};

use crate::support::{documents, observability::page};

/// A metric as the page has it.
#[derive(Default)]
struct Metric<'page> {
    help: &'page str,
    kind: &'page str,
    /// Its labels with their values.
    labels: BTreeMap<&'page str, BTreeSet<&'page str>>,
}

/// The metrics in the order of the page.
fn metrics(page: &str) -> Vec<(&str, Metric<'_>)> {
    let mut metrics: Vec<(&str, Metric<'_>)> = Vec::new();
    for line in page.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            metrics.push((name, Metric { help, ..Metric::default() }));
            continue;
        }
        let (_, metric) = metrics.last_mut().unwrap();
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            metric.kind = rest.split_once(' ').unwrap().1;
        } else if let Some((labels, _)) = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')) {
            for label in labels.split("\",") {
                let (name, value) = label.split_once("=\"").unwrap();
                metric.labels.entry(name).or_default().insert(value.trim_end_matches('"'));
            }
        }
    }
    metrics
}

/// A table of the metrics whose name is wanted.
fn rows(metrics: &[(&str, Metric<'_>)], is_wanted: impl Fn(&str) -> bool) -> String {
    let wanted = metrics.iter().filter(|(name, _)| is_wanted(name));
    let rows = wanted.map(|(name, metric)| {
        let labels: Vec<_> = metric.labels.keys().filter(|label| **label != "le").copied().collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        // A name says the type, except some of kube-proxy's and kube-router's.
        let usual = if name.ends_with("_total") { "counter" } else { "gauge" };
        let kind = if metric.kind == usual { String::new() } else { format!(" ({})", metric.kind) };
        [format!("`{name}{labels}`{kind}"), metric.help.to_owned()]
    });
    table(["metric{labels}", "meaning"], rows)
}

/// Whether a metric is about Services, which `--service-metrics` shows.
fn is_of_traffic(name: &str) -> bool {
    ["kube_router_service_", "kube_ipvs_endpoint_", "kube_ipvs_service_metrics_"]
        .iter()
        .any(|prefix| name.starts_with(prefix) && name != "kube_ipvs_endpoint_failing_seconds")
}

#[test]
fn the_tables_of_the_page_of_metrics_are_written_from_the_program() {
    let page = page();
    let metrics = metrics(&page);
    // The usual ones of every process need no words.
    let is_of_kube_proxy = |name: &str| name.starts_with("kubeproxy_") || name.starts_with("kubernetes_");
    let is_own = |name: &str| name.starts_with("kube_ipvs_") && !is_of_traffic(name);
    assert_generated(
        "docs/metrics.md",
        &[
            ("kube-proxy", rows(&metrics, is_of_kube_proxy)),
            ("own", rows(&metrics, is_own)),
            ("traffic", rows(&metrics, is_of_traffic)),
        ],
    );
}

#[test]
fn each_value_of_a_label_is_explained() {
    let page = page();
    let document = documents::read("docs/metrics.md").text;
    // What json.md has of `advice`, and what needs no words.
    let plain = ["code", "ip_family", "le", "name", "platform", "stage", "version"];
    let mut explained = 0;
    for (name, metric) in metrics(&page).iter().filter(|(name, _)| !is_of_traffic(name)) {
        for (label, values) in metric.labels.iter().filter(|(label, _)| !plain.contains(*label)) {
            for value in values.iter().filter(|_| *name != "kube_ipvs_advice") {
                assert!(document.contains(&format!("`{value}`")), "{value}, a {label} of {name}");
                explained += 1;
            }
        }
    }
    assert!(explained > 20, "{explained}");
}
