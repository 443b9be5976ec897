//! The tier **cluster**: a whole cluster is started, used and stopped, by the commands that a developer has.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use guest::workspace;

use super::summary::Report;

/// Of Kubernetes' own tests: what kube-ipvs is most likely to break.
const TESTS: &str = "should serve a basic endpoint from pods|\
    should be able to create a functioning NodePort service|\
    should have session affinity work for service with type clusterIP|\
    fallback to local terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Local|\
    preserve UDP traffic when server pod cycles for a NodePort service";

/// Each of them fails if something is not as it should be.
const STEPS: [&[&str]; 4] = [&["up"], &["e2e", TESTS], &["try", "rollout"], &["status"]];

/// Runs them in order, up to the first that fails. The cluster of a failure stays, to be looked at.
pub(super) fn run() -> Report {
    let mut report = Report::default();
    let done = try_steps(&mut report);
    report.extend(Report::from_result(done.map(|()| Report::default())));
    report
}

fn try_steps(report: &mut Report) -> Result<()> {
    let program = workspace::cluster()?;
    for step in STEPS {
        cluster(&program, step)?;
        report.passed += 1;
    }
    cluster(&program, &["down"])?;
    let remains = Command::new("pgrep").args(["--full", "systemd.hostname=worker-"]).status();
    ensure!(!remains.context("starting pgrep")?.success(), "cargo xtask cluster down left a node running");
    report.passed += 1;
    Ok(())
}

fn cluster(program: &Path, words: &[&str]) -> Result<()> {
    println!("--- cargo xtask cluster {}", words.join(" "));
    let status = Command::new(program).args(words).status().context("starting the program cluster")?;
    ensure!(status.success(), "cargo xtask cluster {} failed", words.join(" "));
    Ok(())
}
