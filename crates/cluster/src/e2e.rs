//! `cargo xtask e2e`: Kubernetes' own tests, against the cluster that is up.
//!
//! A test that fails is repeated once, alone: on two processors, what has a fixed time for something may fail beside
//! others. What passes then counts as a flake.

mod results;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use guest::{
    go::{CLIENTS, CLUSTER},
    workspace,
};
use results::Outcome;
use serde::{Deserialize, Serialize};

use crate::{
    load_balancer::LoadBalancer,
    network, proxy,
    state::{self, Cluster, named},
};

/// How many tests run at a time: as many as two processors can have without most of them being late.
const PROCS: u8 = 8;

/// Where it is kept what came of all tests, and of those that a regular expression selected.
const RESULTS: &str = "results.json";
const RESULTS_IN_FOCUS: &str = "results-in-focus.json";

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
#[derive(Clone, Debug, Serialize, Deserialize)]
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
        print!("{}", results::table(&directory())?);
        return Ok(());
    }
    let cluster = Cluster::open()?;
    proxy::check(&cluster)?;
    let _balancer = LoadBalancer::start();
    let place = directory().join(cluster.proxy.name());
    let started = Instant::now();
    let mut results = Results::default();
    for (name, labels, procs) in [("all", NOT_DISRUPTIVE, args.procs), ("disruptive", DISRUPTIVE, 1)] {
        let selection = Selection::new(args.focus.as_deref(), labels)?;
        results.tests.extend(ginkgo(&cluster, &place.join(name), procs, &selection)?);
    }
    let name = if args.focus.is_none() { RESULTS } else { RESULTS_IN_FOCUS };
    let path = place.join(name);
    let write =
        |results: &Results| fs::write(&path, serde_json::to_vec_pretty(results)?).with_context(named(&path));
    results.seconds = started.elapsed().as_secs_f64();
    write(&results)?;
    let failed = unexpected_failures(&results);
    let failed_again = repeated(&cluster, &failed)?;
    for name in failed.iter().filter(|name| !failed_again.contains(name)) {
        if let Some(test) = results.tests.get_mut(name) {
            test.outcome = Outcome::Flaked;
        }
    }
    results.seconds = started.elapsed().as_secs_f64();
    write(&results)?;
    print!("{}", results::summary(&results));
    judge(&results)?;
    proxy::check(&cluster)
}

/// Fails if a test failed of which it is not expected, or passed though it is, or if none ran.
fn judge(results: &Results) -> Result<()> {
    let failed = unexpected_failures(results);
    let names = failed.into_iter().collect::<Vec<_>>().join("; ");
    ensure!(names.is_empty(), "not all of {} tests passed: {names}", results.tests.len());
    for (name, test) in &results.tests {
        let has_passed = matches!(test.outcome, Outcome::Passed | Outcome::Flaked);
        ensure!(
            !has_passed || expected_to_fail(name).is_none(),
            "{name} passed: e2e/expected-failures.txt says that it cannot"
        );
    }
    some_ran(results)
}

fn some_ran(results: &Results) -> Result<()> {
    ensure!(results.tests.values().any(|test| test.outcome != Outcome::Skipped), "no test ran");
    Ok(())
}

/// Runs the tests that may run beside others; the names of those that failed, but for those of which it is expected.
pub(crate) fn round(cluster: &Cluster, name: &str, focus: Option<&str>) -> Result<BTreeSet<String>> {
    let selection = Selection::new(focus, PARALLEL)?;
    let place = directory().join(cluster.proxy.name()).join(name);
    let started = Instant::now();
    let tests = ginkgo(cluster, &place, PROCS, &selection)?;
    let results = Results { tests, seconds: started.elapsed().as_secs_f64() };
    print!("{}", results::summary(&results));
    some_ran(&results)?;
    Ok(unexpected_failures(&results))
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

fn unexpected_failures(results: &Results) -> BTreeSet<String> {
    let failed = results.tests.iter().filter(|(_, test)| test.outcome == Outcome::Failed);
    let names = failed.map(|(name, _)| name).filter(|name| expected_to_fail(name).is_none());
    names.cloned().collect()
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
    let programs = CLUSTER.built()?;
    let log = fs::File::create(place.join("log")).context("creating a log")?;
    let mut ginkgo = network::outside(programs.join("ginkgo"));
    ginkgo
        .args(["--no-color", "-v", "--timeout=4h", "--seed=1"])
        .arg(format!("--procs={procs}"))
        .arg(format!("--focus={}", selection.focus))
        .arg(format!("--label-filter={}", selection.labels));
    if !selection.skip.is_empty() {
        ginkgo.arg(format!("--skip={}", selection.skip));
    }
    let kubectl = CLIENTS.program("kubectl")?;
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
    let status = ginkgo.status().context("starting ginkgo")?;
    let log = || place.join("log").display().to_string();
    let tests = results::read(place).with_context(log)?;
    // Which tests failed is in the report. A suite that is cut short has no word for those that it left.
    let has_failures = tests.values().any(|test| test.outcome == Outcome::Failed);
    ensure!(status.success() || has_failures, "the suite failed, and no test of it did; see {}", log());
    let selected = selected(&fs::read_to_string(place.join("log")).with_context(log)?);
    ensure!(
        selected == Some(tests.len()),
        "{} tests ended of {selected:?} that were selected; see {}",
        tests.len(),
        log()
    );
    Ok(tests)
}

/// How many tests ginkgo says that it will run.
fn selected(log: &str) -> Option<usize> {
    log.lines().find_map(|line| line.strip_prefix("Will run ")?.split(' ').next()?.parse().ok())
}

/// Tests outside of `[sig-network]` that go through a Service, a port of a node or a proxy of the API server.
const MORE: &[&str] = &[
    r"AdmissionWebhook .*\[Conformance\]",
    r"CustomResourceConversionWebhook .*\[Conformance\]",
    r"\[sig-auth\] ServiceAccounts ServiceAccountIssuerDiscovery",
    r"\[sig-cli\] Kubectl client Kubectl expose",
    r"\[sig-cli\] Kubectl client Proxy server",
    r"\[sig-cli\] Kubectl Port forwarding",
    r"\[sig-node\] Container Lifecycle Hook .*http hook .*\[Conformance\]",
    r"\[sig-node\] Pods should contain environment variables for services",
    r"\[sig-node\] Pods should support .* over websockets",
    r"\[sig-node\] Probing container .*http.*\[Conformance\]",
    r"\[sig-node\] KubeletManagedEtcHosts",
    r"\[sig-scheduling\] SchedulerPredicates .*hostPort",
    r"services are removed when a namespace is deleted",
];

/// What of them cannot pass in a cluster like this one: a part of its name, and why, a line each.
const LEFT_OUT: &str = include_str!("e2e/left-out.txt");

/// What is run all the same and fails with every proxy, likewise.
const EXPECTED_FAILURES: &str = include_str!("e2e/expected-failures.txt");

/// Regular expressions and labels, as ginkgo has them.
struct Selection {
    focus: String,
    skip: String,
    labels: &'static str,
}

/// Tests that harm the others, such as by a restart of the API server; ginkgo knows only that those called Serial
/// cannot run beside others.
const DISRUPTIVE: &str = "Disruptive";
const NOT_DISRUPTIVE: &str = "!Disruptive";
const PARALLEL: &str = "!Disruptive && !Serial";

impl Selection {
    /// What the user asked for, or all that the project answers for, if it has such labels.
    fn new(focus: Option<&str>, labels: &'static str) -> Result<Self> {
        if let Some(focus) = focus {
            return Ok(Self { focus: focus.to_owned(), skip: String::new(), labels });
        }
        let focus = [r"\[sig-network\]"].iter().chain(MORE).copied().collect::<Vec<_>>().join("|");
        let skip: Vec<String> = left_out().map(|(part, _)| quoted(part)).collect();
        ensure!(!skip.is_empty(), "left-out.txt is empty");
        Ok(Self { focus, skip: skip.join("|"), labels })
    }

    /// One test alone.
    fn only(name: &str) -> Self {
        Self { focus: quoted(name), skip: String::new(), labels: "" }
    }
}

/// Parts of names, and the reasons.
fn left_out() -> impl Iterator<Item = (&'static str, &'static str)> {
    with_reasons(LEFT_OUT)
}

/// Why a test is expected to fail, if it is.
fn expected_to_fail(name: &str) -> Option<&'static str> {
    with_reasons(EXPECTED_FAILURES).find_map(|(part, reason)| name.contains(part).then_some(reason))
}

fn with_reasons(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" | "))
}

/// A regular expression for this text itself.
fn quoted(text: &str) -> String {
    text.chars()
        .flat_map(|c| (!c.is_alphanumeric() && c != ' ').then_some('\\').into_iter().chain([c]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(tests: &[(&str, Outcome)]) -> Results {
        let test = |(name, outcome): &(&str, Outcome)| {
            ((*name).to_owned(), Test { outcome: *outcome, seconds: 1.0, reason: String::new() })
        };
        Results { tests: tests.iter().map(test).collect(), seconds: 1.0 }
    }

    #[test]
    fn a_failure_is_forgiven_where_it_is_expected_and_nowhere_else() {
        let cannot_pass = "ExternalTrafficPolicy: Local [Feature:LoadBalancer] [Slow] should only target nodes with endpoints";
        assert!(judge(&results(&[("a", Outcome::Passed), (cannot_pass, Outcome::Failed)])).is_ok());
        for bad in [
            [("a", Outcome::Failed), (cannot_pass, Outcome::Failed)],
            [("a", Outcome::Passed), (cannot_pass, Outcome::Passed)],
            [("a", Outcome::Skipped), ("b", Outcome::Skipped)],
        ] {
            assert!(judge(&results(&bad)).is_err());
        }
        assert!(judge(&results(&[])).is_err());
    }

    #[test]
    fn ginkgo_says_how_many_tests_it_selected() {
        assert_eq!(selected("Random Seed: 1\n\nWill run 233 of 7579 specs\n"), Some(233));
        assert_eq!(selected(""), None);
    }
}
