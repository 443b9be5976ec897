//! `cargo xtask e2e`: Kubernetes' own tests, against the cluster that is up.
//!
//! A test that fails is repeated once, alone: on two processors, what has a fixed time for something may fail beside
//! others. What passes then counts as a flake.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use guest::{
    files,
    go::{CLIENTS, CLUSTER},
    workspace,
};
use roxmltree::{Document, Node};
use serde::{Deserialize, Serialize};

use crate::{
    load_balancer::LoadBalancer,
    network, proxy,
    state::{self, Cluster},
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
    let cluster = Cluster::open()?;
    proxy::check(&cluster)?;
    let _balancer = LoadBalancer::start();
    let place = directory().join(cluster.proxy.name());
    let started = Instant::now();
    let mut results = Results::default();
    for (name, labels, procs) in [("all", NOT_DISRUPTIVE, PROCS), ("disruptive", DISRUPTIVE, 1)] {
        let selection = Selection::new(args.focus.as_deref(), labels)?;
        results.tests.extend(ginkgo(&cluster, &place.join(name), procs, &selection)?);
    }
    let name = if args.focus.is_none() { RESULTS } else { RESULTS_IN_FOCUS };
    let path = place.join(name);
    let write = |results: &Results| files::write(&path, serde_json::to_vec_pretty(results)?);
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
    print!("{}", summary(&results));
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
        let is_unexpected = has_passed && is_expected_to_fail(name);
        ensure!(!is_unexpected, "{name} passed: e2e/expected-failures.txt says that it cannot");
    }
    some_ran(results)
}

fn some_ran(results: &Results) -> Result<()> {
    ensure!(results.tests.values().any(|test| test.outcome != Outcome::Skipped), "no test ran");
    Ok(())
}

/// Runs the tests that may run beside others; the names of those that failed, but for those of which it is expected.
pub(crate) fn round(cluster: &Cluster, name: &str) -> Result<BTreeSet<String>> {
    let selection = Selection::new(None, PARALLEL)?;
    let place = directory().join(cluster.proxy.name()).join(name);
    let started = Instant::now();
    let tests = ginkgo(cluster, &place, PROCS, &selection)?;
    let results = Results { tests, seconds: started.elapsed().as_secs_f64() };
    print!("{}", summary(&results));
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
    let names = failed.map(|(name, _)| name).filter(|name| !is_expected_to_fail(name));
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
    files::make_anew(place)?;
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
        .env("LOCAL_SSH_KEY", state::base().join("key"))
        .env("KUBE_SSH_USER", "root")
        .current_dir(place)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let status = ginkgo.status().context("starting ginkgo")?;
    let log = place.join("log");
    let tests = read_report(place).with_context(|| log.display().to_string())?;
    // Which tests failed is in the report. A suite that is cut short has no word for those that it left.
    let has_failures = tests.values().any(|test| test.outcome == Outcome::Failed);
    let see = format!("see {}", log.display());
    ensure!(status.success() || has_failures, "the suite failed although none of its tests did; {see}");
    let (selected, ended) = (selected(&files::read(&log)?), tests.len());
    ensure!(selected == Some(ended), "{ended} tests ended of {selected:?} that were selected; {see}");
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
        let skip: Vec<String> = with_reasons(LEFT_OUT).map(|(part, _)| quoted(part)).collect();
        ensure!(!skip.is_empty(), "left-out.txt is empty");
        Ok(Self { focus, skip: skip.join("|"), labels })
    }

    /// One test alone.
    fn only(name: &str) -> Self {
        Self { focus: quoted(name), skip: String::new(), labels: "" }
    }
}

/// Whether a test is expected to fail.
fn is_expected_to_fail(name: &str) -> bool {
    with_reasons(EXPECTED_FAILURES).any(|(part, _)| name.contains(part))
}

/// Parts of names, and the reasons.
fn with_reasons(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" | "))
}

/// A regular expression for this text itself.
fn quoted(text: &str) -> String {
    text.chars()
        .flat_map(|c| (!c.is_alphanumeric() && c != ' ').then_some('\\').into_iter().chain([c]))
        .collect()
}

/// What can come of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    /// It passed.
    Passed,
    /// It failed, and passed when it was repeated alone.
    Flaked,
    /// It failed twice.
    Failed,
    /// It found that it cannot run here.
    Skipped,
}

/// Reads the report in a directory. Tests that were not selected are in it too, and are left out.
fn read_report(directory: &Path) -> Result<BTreeMap<String, Test>> {
    let is_report = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "xml");
    let report = files::list(directory)?.into_iter().find(is_report);
    let report = report.with_context(|| format!("{} has no report", directory.display()))?;
    tests(&files::read(&report)?).with_context(|| report.display().to_string())
}

fn tests(text: &str) -> Result<BTreeMap<String, Test>> {
    let document = Document::parse(text)?;
    let cases = document.descendants().filter(|node| node.has_tag_name("testcase"));
    let mut found = BTreeMap::new();
    for case in cases {
        let name = case.attribute("name").context("a test without a name")?;
        match name.strip_prefix("[It] ") {
            Some(name) => found.extend(test(case)?.map(|test| (name.to_owned(), test))),
            // What comes before and after the tests.
            None => ensure!(failure(case).is_none(), "{name}: {}", failure(case).unwrap_or_default()),
        }
    }
    Ok(found)
}

/// What came of one, unless it was not selected: that is skipped without a word.
fn test(case: Node<'_, '_>) -> Result<Option<Test>> {
    let seconds = case.attribute("time").context("a test without a time")?.parse()?;
    let skipped = child(case, "skipped").map(|node| node.attribute("message").unwrap_or_default());
    let (outcome, reason) = match (failure(case), skipped) {
        (Some(reason), _) => (Outcome::Failed, reason),
        (None, Some("skipped")) => return Ok(None),
        (None, Some(reason)) => (Outcome::Skipped, reason.to_owned()),
        (None, None) => (Outcome::Passed, String::new()),
    };
    Ok(Some(Test { outcome, seconds, reason }))
}

/// Why it failed, in a line, if it did. Kubernetes' tests have it in the element's text.
fn failure(case: Node<'_, '_>) -> Option<String> {
    let node = child(case, "failure").or_else(|| child(case, "error"))?;
    let texts = [node.attribute("message"), node.text()];
    let mut lines = texts.into_iter().flatten().flat_map(str::lines).map(str::trim);
    Some(lines.find(|line| !line.is_empty()).unwrap_or("no reason is given").to_owned())
}

fn child<'a, 'input>(case: Node<'a, 'input>, tag: &str) -> Option<Node<'a, 'input>> {
    case.children().find(|node| node.has_tag_name(tag))
}

/// How many there are of each outcome, and which did not just pass.
fn summary(results: &Results) -> String {
    let mut lines = Vec::new();
    for (name, test) in &results.tests {
        let word = match test.outcome {
            Outcome::Passed => continue,
            Outcome::Flaked => "flake",
            Outcome::Failed => "FAIL",
            Outcome::Skipped => "skip",
        };
        lines.push(format!("{word:5} {name}: {}", test.reason.lines().next().unwrap_or_default()));
    }
    let count = |outcome| results.tests.values().filter(|test| test.outcome == outcome).count();
    let (passed, flaked) = (count(Outcome::Passed), count(Outcome::Flaked));
    let (failed, skipped) = (count(Outcome::Failed), count(Outcome::Skipped));
    let seconds = results.seconds;
    lines.push(format!(
        "{passed} passed, {flaked} flaked, {failed} failed, {skipped} skipped in {seconds:.0} s\n"
    ));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

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

    #[test]
    fn tests_not_selected_are_not_counted_and_those_that_skip_themselves_say_why() {
        let report = r#"<testsuites><testsuite>
            <testcase name="[BeforeSuite]" status="passed" time="1"></testcase>
            <testcase name="[It] a passes" status="passed" time="2.5"></testcase>
            <testcase name="[It] b fails" status="failed" time="3"><failure message="" type="failed">[FAILED] no answer
                In [It] at: service.go:1</failure></testcase>
            <testcase name="[It] c was not selected" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
            <testcase name="[It] d skips itself" status="skipped" time="0.1"><skipped message="skipped - no GPU"></skipped></testcase>
        </testsuite></testsuites>"#;
        let found: Vec<_> = tests(report)
            .unwrap()
            .into_iter()
            .map(|(name, test)| (name, test.outcome, test.reason))
            .collect();
        let expected = [
            ("a passes", Outcome::Passed, ""),
            ("b fails", Outcome::Failed, "[FAILED] no answer"),
            ("d skips itself", Outcome::Skipped, "skipped - no GPU"),
        ];
        assert_eq!(
            found,
            expected.map(|(name, outcome, reason)| (name.to_owned(), outcome, reason.to_owned()))
        );
    }

    #[test]
    fn a_suite_that_could_not_begin_has_no_report_of_tests() {
        let report = r#"<testsuites><testsuite>
            <testcase name="[SynchronizedBeforeSuite]" status="failed" time="1"><failure>no nodes</failure></testcase>
        </testsuite></testsuites>"#;
        assert_eq!(tests(report).unwrap_err().to_string(), "[SynchronizedBeforeSuite]: no nodes");
    }
}
