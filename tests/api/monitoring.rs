//! Checks the metrics and the alerts with promtool, Prometheus' own tool.

use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

use crate::support::observability::{alerts, annotations, expressions, page, panels, rules};

/// `None`, said as a skip, where there is none.
fn promtool() -> Option<PathBuf> {
    let program = std::env::var_os("PROMTOOL_BIN").map(PathBuf::from);
    if program.is_none() {
        println!("SKIP: no promtool: PROMTOOL_BIN is not set");
    }
    program
}

/// Runs it in a directory.
fn run(program: &Path, directory: &Path, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// What it has to say, which must be good.
fn succeeds(output: &Output) {
    let said = [&output.stdout[..], &output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

/// JSON is YAML too.
fn check_rules(program: &Path, rules: &Value) {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("rules.yaml"), rules.to_string()).unwrap();
    succeeds(&run(
        program,
        directory.path(),
        &["check", "rules", "--lint=all", "--lint-fatal", "rules.yaml"],
        "",
    ));
}

#[test]
#[ignore = "needs promtool: cargo xtask test --tier api"]
fn prometheus_takes_the_alerts() {
    let Some(promtool) = promtool() else { return };
    check_rules(&promtool, &rules());
}

#[test]
#[ignore = "needs promtool: cargo xtask test --tier api"]
fn each_alert_fires_when_it_should_and_not_before() {
    let Some(promtool) = promtool() else { return };
    let text = include_str!("../prometheus/alerts_test.yaml");
    let mut rules = rules();
    for rule in rules["groups"][0]["rules"].as_array_mut().unwrap() {
        // promtool compares annotations to the letter.
        rule["annotations"].as_object_mut().unwrap().retain(|name, _| name == "summary");
    }
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("rules.yaml"), rules.to_string()).unwrap();
    fs::write(directory.path().join("alerts_test.yaml"), text).unwrap();
    succeeds(&run(&promtool, directory.path(), &["test", "rules", "alerts_test.yaml"], ""));

    let tests: Value = serde_saphyr::from_str(text).unwrap();
    let cases = tests["tests"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|test| test["alert_rule_test"].as_array().unwrap());
    let tested: BTreeSet<_> = cases
        .map(|case| (case["alertname"].as_str().unwrap().to_owned(), case["exp_alerts"] != json!([])))
        .collect();
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        for fires in [true, false] {
            assert!(
                tested.contains(&(name.to_owned(), fires)),
                "{name} is not tested where it fires: {fires}"
            );
        }
    }
}

/// As rules that record something: promtool has no other stable command that reads an expression.
#[test]
#[ignore = "needs promtool: cargo xtask test --tier api"]
fn every_expression_of_the_dashboard_is_one() {
    let Some(promtool) = promtool() else { return };
    let all = panels();
    let rules =
        all.iter().flat_map(expressions).chain(annotations()).enumerate().map(|(number, expression)| {
            let expression =
                expression.replace("$__rate_interval", "5m").replace("$job", ".+").replace("$instance", ".+");
            json!({ "record": format!("panel:{number}"), "expr": expression })
        });
    check_rules(&promtool, &json!({ "groups": [{ "name": "panels", "rules": rules.collect::<Value>() }] }));
}

#[test]
#[ignore = "needs promtool: cargo xtask test --tier api"]
fn the_page_is_what_prometheus_reads_and_our_own_names_are_as_it_wants_them() {
    let Some(promtool) = promtool() else { return };
    let output = run(&promtool, Path::new("/"), &["check", "metrics"], &page());
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    // 3: what it would have called otherwise. kube-proxy's and kube-router's names are theirs.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{said}");
    let ours: Vec<_> = said.lines().filter(|line| line.starts_with("kube_ipvs_")).collect();
    assert_eq!(ours, [""; 0], "{said}");
}
