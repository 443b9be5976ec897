//! `cargo xtask e2e`: Kubernetes' own tests, against the cluster that is up.
//!
//! A test that fails is repeated once, alone: on two processors, what has a fixed time for something may fail beside
//! others. What passes then counts as a flake.

mod junit;
mod selection;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use guest::go::{clients, cluster};
use guest::workspace;
use serde::{Deserialize, Serialize};

use crate::load_balancer::LoadBalancer;
use crate::network;
use crate::state::{self, Cluster, named};
use junit::Outcome;
use selection::Selection;

/// How many tests run at a time: as many as two processors can have without most of them being late.
const PROCS: u8 = 8;

/// The command line of `cargo xtask e2e`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only tests whose name matches this regular expression [default: all that look at the network, but for what
    /// crates/cluster/src/e2e/left-out.txt names]
    focus: Option<String>,
    /// How many tests run at a time; those that may not run beside others follow one by one
    #[arg(long, default_value_t = PROCS)]
    procs: u8,
    /// Print what was found so far for every proxy, as in docs/conformance.md, and run nothing
    #[arg(long)]
    table: bool,
}

/// What came of the tests with one proxy, as it is kept from one command to the next.
#[derive(Default, Serialize, Deserialize)]
struct Results {
    /// By name.
    tests: BTreeMap<String, Test>,
    /// How long all of it took, in seconds.
    seconds: f64,
}

/// What came of one test.
#[derive(Clone, Serialize, Deserialize)]
struct Test {
    outcome: Outcome,
    seconds: f64,
    /// Why it failed or was skipped.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
}

/// Runs the tests and prints what came of them. Fails if one does.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.table {
        print!("{}", table::table(&directory())?);
        return Ok(());
    }
    let cluster = Arc::new(Cluster::open()?);
    let _balancer = LoadBalancer::start(&cluster);
    let place = directory().join(cluster.proxy.name());
    let started = Instant::now();
    let mut results = Results::default();
    for (name, labels, procs) in
        [("all", selection::NOT_DISRUPTIVE, args.procs), ("disruptive", selection::DISRUPTIVE, 1)]
    {
        let selection = Selection::new(args.focus.as_deref(), labels)?;
        results.tests.extend(ginkgo(&cluster, &place.join(name), procs, &selection)?);
    }
    let failed: BTreeSet<String> = failures(&results).map(str::to_owned).collect();
    let failed_again = repeated(&cluster, &failed)?;
    for name in failed.iter().filter(|name| !failed_again.contains(name)) {
        if let Some(test) = results.tests.get_mut(name) {
            test.outcome = Outcome::Flaked;
        }
    }
    results.seconds = started.elapsed().as_secs_f64();
    if args.focus.is_none() {
        let path = place.join("results.json");
        fs::write(&path, serde_json::to_vec_pretty(&results)?).with_context(named(&path))?;
    }
    print!("{}", table::summary(&results));
    let failed: Vec<&str> = failures(&results).collect();
    ensure!(
        failed.is_empty(),
        "{} of {} tests failed: {}",
        failed.len(),
        results.tests.len(),
        failed.join("; ")
    );
    let ran = results.tests.values().filter(|test| test.outcome != Outcome::Skipped).count();
    ensure!(ran > 0, "no test ran");
    Ok(())
}

/// Runs the tests that may run beside others; the names of those that failed.
pub(crate) fn round(cluster: &Cluster, name: &str, focus: Option<&str>) -> Result<BTreeSet<String>> {
    let selection = Selection::new(focus, selection::PARALLEL)?;
    let place = directory().join(cluster.proxy.name()).join(name);
    let results = Results { tests: ginkgo(cluster, &place, PROCS, &selection)?, seconds: 0.0 };
    print!("{}", table::summary(&results));
    Ok(failures(&results).map(str::to_owned).collect())
}

/// Runs each test alone; the names of those that fail.
pub(crate) fn repeated(cluster: &Cluster, names: &BTreeSet<String>) -> Result<Vec<String>> {
    let place = directory().join(cluster.proxy.name());
    let mut failed = Vec::new();
    for (number, name) in names.iter().enumerate() {
        println!("repeated alone: {name}");
        let alone = Selection::only(name);
        let again = ginkgo(cluster, &place.join(format!("again-{}", number + 1)), 1, &alone)?;
        if again.get(name).is_none_or(|test| test.outcome != Outcome::Passed) {
            failed.push(name.clone());
        }
    }
    Ok(failed)
}

fn failures(results: &Results) -> impl Iterator<Item = &str> {
    results.tests.iter().filter(|(_, test)| test.outcome == Outcome::Failed).map(|(name, _)| name.as_str())
}

/// Where reports and logs are kept.
fn directory() -> PathBuf {
    workspace::root().join("target/e2e")
}

/// Runs the tests selected, with the report and the log in `place`.
fn ginkgo(
    cluster: &Cluster,
    place: &Path,
    procs: u8,
    selection: &Selection,
) -> Result<BTreeMap<String, Test>> {
    if place.exists() {
        fs::remove_dir_all(place).with_context(named(place))?;
    }
    fs::create_dir_all(place).with_context(named(place))?;
    let programs = cluster::MODULE.built()?;
    let log = fs::File::create(place.join("log")).context("creating a log")?;
    let mut ginkgo = network::inside(programs.join("ginkgo"));
    ginkgo
        .args(["--no-color", "-v", "--timeout=4h", "--seed=1"])
        .arg(format!("--procs={procs}"))
        .arg(format!("--focus={}", selection.focus))
        .arg(format!("--label-filter={}", selection.labels));
    if !selection.skip.is_empty() {
        ginkgo.arg(format!("--skip={}", selection.skip));
    }
    let kubectl = clients::MODULE.built()?.join("kubectl");
    ginkgo
        .arg(programs.join("e2e.test"))
        .args(["--", "--provider=local", "--disable-log-dump", "--dump-logs-on-failure=false"])
        .arg(format!("--kubeconfig={}", state::kubeconfig().display()))
        .arg(format!("--kubectl-path={}", kubectl.display()))
        .arg(format!("--num-nodes={}", cluster.workers().len()))
        .arg(format!("--report-dir={}", place.display()))
        .env("KUBECONFIG", state::kubeconfig())
        // For the tests that do something on a node.
        .env("LOCAL_SSH_KEY", cluster.disk.join("key"))
        .env("KUBE_SSH_USER", "root")
        .current_dir(place)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    // Its exit code says that a test failed; so does the report, and which.
    ginkgo.status().context("starting ginkgo")?;
    junit::read(place).with_context(|| format!("no report; see {}", place.join("log").display()))
}
