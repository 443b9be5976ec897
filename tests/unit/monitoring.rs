//! The dashboard and the alerts of manifests/monitoring ask for what there is, and docs/alerts.md is written from the latter.
//! tests/api/monitoring.rs has Prometheus' own tool look at them.

use std::collections::BTreeSet;

use serde_json::Value;
use testkit::documented::assert_generated;

use crate::support::observability::{alerts, annotations, dashboard, expressions, page, panels};

/// The names in an expression that could be ours.
fn metrics(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let prefixes = ["kube_ipvs_", "kubeproxy_", "kube_router_", "process_"];
    words.filter(|word| prefixes.iter().any(|prefix| word.starts_with(prefix))).collect()
}

/// The metrics of a page with their types.
fn shown(page: &str) -> Vec<(&str, &str)> {
    page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect()
}

/// Whether a page has a metric of this name, or the series of a histogram.
fn has(page: &str, name: &str) -> bool {
    let series = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
    shown(page).iter().any(|(metric, kind)| {
        *metric == name || (*kind == "histogram" && series.is_some_and(|series| series == *metric))
    })
}

#[test]
fn whatever_the_dashboard_and_the_alerts_ask_for_is_on_the_page() {
    let page = page();
    let of_alerts = alerts().iter().map(|alert| alert["expr"].as_str().unwrap().to_owned()).collect();
    let of_panels = panels();
    let of_panels = of_panels.iter().map(expressions);
    let expressions: Vec<String> = of_panels.chain([of_alerts, annotations()]).flatten().collect();
    assert!(expressions.len() > 40, "{expressions:#?}");
    for expression in &expressions {
        for metric in metrics(expression) {
            assert!(has(&page, metric), "{metric} of {expression} is not on the page");
        }
    }
}

/// Where the page of the alerts is read.
const ALERTS_URL: &str = "https://github.com/kube-ipvs/kube-ipvs/blob/main/docs/alerts.md";

/// A section of docs/alerts.md, whose heading `runbook_url` names.
fn section(alert: &Value) -> String {
    let text = |name: &str| alert["annotations"][name].as_str().unwrap();
    let [name, pending] = ["alert", "for"].map(|field| alert[field].as_str().unwrap());
    format!(
        "## {name}\n\n**{severity}**, after {pending}: {summary}\n\n{description}\n\n**Do:** {runbook}\n",
        severity = alert["labels"]["severity"].as_str().unwrap(),
        summary = with_placeholders(text("summary")),
        description = text("description"),
        runbook = text("runbook"),
    )
}

/// A text with words in capitals where Prometheus puts in labels and the value.
fn with_placeholders(template: &str) -> String {
    let mut parts = template.split("{{ $");
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        let (name, after) = part.split_once(" }}").unwrap();
        let placeholder = match name.strip_prefix("labels.") {
            Some("instance") => "NODE".to_owned(),
            Some(label) => label.to_uppercase(),
            None => "N".to_owned(),
        };
        text += &placeholder;
        text += after;
    }
    text
}

#[test]
fn the_page_of_the_alerts_is_written_from_them() {
    let sections: Vec<_> = alerts().iter().map(section).collect();
    assert_generated("docs/alerts.md", &[("alerts", sections.join("\n"))]);
}

#[test]
fn every_alert_says_how_bad_it_is_and_what_to_do() {
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        let severity = alert["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning", "info"].contains(&severity), "{name}");
        for annotation in ["summary", "description", "runbook", "runbook_url"] {
            assert!(alert["annotations"][annotation].is_string(), "{name} has no {annotation}");
        }
        let page = format!("{ALERTS_URL}#{}", name.to_lowercase());
        assert_eq!(alert["annotations"]["runbook_url"], page);
        let runbook = alert["annotations"]["runbook"].as_str().unwrap();
        assert!(runbook.contains("`kube-ipvs "), "{name}: {runbook}");
    }
}

/// They ignore a kube-proxy, and report a pod scraped by two jobs once.
#[test]
fn every_alert_asks_for_the_job_of_kube_ipvs_alone() {
    for alert in alerts() {
        let expression = alert["expr"].as_str().unwrap();
        for metric in metrics(expression).into_iter().chain(["up"]) {
            for rest in expression.split(metric).skip(1).filter(|rest| rest.starts_with('{')) {
                assert!(rest.starts_with(r#"{job=~"(.+/)?kube-ipvs""#), "{metric} of {expression}");
            }
        }
        assert!(expression.contains(r#"{job=~"(.+/)?kube-ipvs""#), "{expression}");
    }
}

/// What is chosen above the panels.
const CHOSEN: &str = r#"job=~"$job", instance=~"$instance""#;

/// What Grafana's dashboard-linter asks of a dashboard, which is not on any registry: a data source, job and instance
/// to choose, used everywhere; titles, descriptions and units; rates over the interval of the panel.
#[test]
fn every_panel_can_be_read_and_asks_for_what_is_chosen() {
    let dashboard = dashboard();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let names: Vec<_> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["datasource", "job", "instance"]);
    let page = page();
    for panel in panels() {
        let title = panel["title"].as_str().unwrap();
        assert!(!title.is_empty() && !panel["description"].as_str().unwrap().is_empty(), "{title}");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title} has no unit");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        for expression in expressions(&panel) {
            for metric in metrics(&expression) {
                let labels = expression.split(metric).nth(1).unwrap().strip_prefix('{').unwrap();
                let chosen = labels.split('}').next().unwrap().ends_with(CHOSEN);
                assert!(chosen, "{title}: {expression}");
                let is_counter = shown(&page).contains(&(metric, "counter")) || metric.ends_with("_bucket");
                let changes = expression.contains("rate(") || expression.contains("increase(");
                assert_eq!(
                    is_counter,
                    changes && expression.contains("[$__rate_interval]"),
                    "{title}: {expression}"
                );
            }
        }
    }
}

#[test]
fn panels_have_numbers_of_their_own_and_do_not_overlap() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let numbers: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(numbers.len(), panels.len());
    let mut taken = BTreeSet::new();
    for panel in panels {
        let at = |side: &str| panel["gridPos"][side].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "Grafana has 24 columns: {}", panel["title"]);
        for cell in
            (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y)))
        {
            assert!(taken.insert(cell), "{} is where another panel is", panel["title"]);
        }
    }
    assert_eq!(dashboard["uid"], "kube-ipvs");
}
