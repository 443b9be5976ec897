//! The tier **cluster**: a whole cluster is started, used and stopped, by the commands that a developer has.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use guest::{files, programs::printed, workspace};
use serde_json::{Value, json};

use super::summary::Report;

/// Of Kubernetes' own tests: what kube-ipvs is most likely to break.
const TESTS: [&str; 5] = [
    "should serve a basic endpoint from pods",
    "should be able to create a functioning NodePort service",
    "should have session affinity work for service with type clusterIP",
    "fallback to local terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Local",
    "preserve UDP traffic when server pod cycles for a NodePort service",
];

/// Where their results are then.
const RESULTS: &str = "target/e2e/kube-ipvs/results-in-focus.json";

/// Runs all of it in order, up to the first that fails. The cluster of a failure stays, to be looked at.
pub(super) fn run() -> Report {
    Report::of_steps(try_steps)
}

/// Each step fails if something is not as it should be.
fn try_steps(report: &mut Report) -> Result<()> {
    let program = workspace::cluster()?;
    let mut step = |words: &[&str]| {
        cluster(&program, words)?;
        report.passed += 1;
        anyhow::Ok(())
    };
    step(&["up"])?;
    step(&["e2e", &TESTS.join("|")])?;
    every_test_passed()?;
    step(&["try", "rollout"])?;
    step(&["status"])?;
    step(&["down"])?;
    nothing_remains()
}

/// A test that has another name in a new release of Kubernetes would not be missed otherwise.
fn every_test_passed() -> Result<()> {
    let results: Value =
        serde_json::from_str(&files::read(&workspace::root().join(RESULTS))?).context(RESULTS)?;
    let tests = results.pointer("/tests").and_then(Value::as_object).context("results without tests")?;
    for part in TESTS {
        let mut there = tests.iter().filter(|(name, _)| name.contains(part));
        let has_run = there.any(|(_, test)| test.pointer("/outcome") != Some(&json!("skipped")));
        ensure!(has_run, "no test {part:?} has run");
    }
    Ok(())
}

fn nothing_remains() -> Result<()> {
    let disks = workspace::root().join("target/cluster");
    let nodes = Command::new("pgrep").arg("--full").arg(format!("ubd0={}", disks.display())).status();
    ensure!(!nodes.context("starting pgrep")?.success(), "cargo xtask cluster down left a node running");
    let namespaces = printed(Command::new("ip").args(["netns", "list"]))?;
    ensure!(!namespaces.contains("kube-ipvs-cluster"), "cargo xtask cluster down left its namespace");
    ensure!(!disks.exists(), "cargo xtask cluster down left its files");
    Ok(())
}

fn cluster(program: &Path, words: &[&str]) -> Result<()> {
    println!("--- cargo xtask cluster {}", words.join(" "));
    let status = Command::new(program).args(words).status().context("starting the program cluster")?;
    ensure!(status.success(), "cargo xtask cluster {} failed", words.join(" "));
    Ok(())
}
