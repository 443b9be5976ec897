//! cargo-nextest: what it is asked to run, what it needs to run test programs where there is no cargo, and the results,
//! out of the JUnit report that it writes. What a passing test has printed is in the report, too: that is where `SKIP:
//! ` and
//! `ABSENT: ` lines are found.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use guest::{
    files,
    programs::printed,
    workspace::{self, CargoTool, cargo},
};
use roxmltree::{Document, Node};
use serde_json::Value;

use super::summary::Report;

const NEXTEST: CargoTool = CargoTool {
    name: "cargo-nextest",
    version: "0.9.128",
    arguments: &["--no-default-features", "--features", "default-no-update"],
};

/// The exit code of a run in which a test failed: the report names it.
const TEST_FAILED: u8 = 100;

/// Where the program is; compiled once if it is not there.
pub(super) fn program() -> Result<PathBuf> {
    match guest::programs::find(NEXTEST.name) {
        Some(found) if has_our_version(&found) => Ok(found),
        _ => NEXTEST.installed(),
    }
}

fn has_our_version(program: &Path) -> bool {
    let printed = Command::new(program).args(["nextest", "--version"]).output();
    printed.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(NEXTEST.version))
}

/// Which tests to run.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    /// The programs and modules, as an expression of nextest's.
    pub(super) filter: &'static str,
    /// Those that are ignored, or those that are not.
    pub(super) ignored: bool,
    /// Of those, the tests whose name contains one of these; all if there are none.
    pub(super) names: Vec<String>,
}

impl Selection {
    /// The arguments after `cargo nextest run`.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let fixed = ["--no-tests=pass", "--no-fail-fast"].map(OsString::from);
        fixed.into_iter().chain(self.arguments_of_list()).collect()
    }

    /// Those after `cargo nextest list`.
    fn arguments_of_list(&self) -> Vec<OsString> {
        let ignored = if self.ignored { "only" } else { "default" };
        let fixed = ["-E", self.filter, "--run-ignored", ignored];
        fixed.iter().map(OsString::from).chain(self.names.iter().map(OsString::from)).collect()
    }
}

/// The report of the last run with this profile at this root of the workspace.
pub(super) fn report_path(root: &Path, profile: &str) -> PathBuf {
    root.join("target/nextest").join(profile).join("junit.xml")
}

/// Runs tests on this machine: `equip` adds to the environment. Builds what it needs.
pub(super) fn here(selection: &Selection, build: Build, equip: impl FnOnce(&mut Command)) -> Result<Report> {
    let report = report_path(&workspace::root(), "default");
    if report.exists() {
        fs::remove_file(&report).context("removing the last report")?;
    }
    let mut command = workspace::at_root(program()?);
    command.args(["nextest", "run"]).args(build.arguments());
    command.args(selection.arguments());
    equip(&mut command);
    let status = command.status().context("starting cargo-nextest")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX);
    conclude(&report, code)
}

/// What a run with this exit code has written to its report; nothing if it had no test to run.
pub(super) fn conclude(report: &Path, code: u8) -> Result<Report> {
    if code == 0 && !report.exists() {
        return Ok(Report::default());
    }
    // Without a report it ended before the first test, and has said why.
    ensure!(report.exists(), "cargo-nextest ended with code {code}");
    let mut results = read_report(report)?;
    if code != 0 && (code != TEST_FAILED || results.failed.is_empty()) {
        results.failed.push(format!("cargo-nextest ended with code {code}"));
    }
    Ok(results)
}

/// The test programs to build. Always with all features, and always for the whole workspace: dependencies have the same
/// features then, whatever is built.
#[derive(Clone, Copy, Debug)]
pub(super) enum Build {
    /// Every test program.
    All,
    /// The integration tests of these names, and the programs of their packages.
    Tests(&'static [&'static str]),
}

impl Build {
    fn arguments(self) -> Vec<&'static str> {
        let mut arguments = vec!["--workspace", "--all-features"];
        if let Self::Tests(names) = self {
            arguments.extend(names.iter().flat_map(|name| ["--test", name]));
        }
        arguments
    }
}

/// Test programs that were built, in the words with which cargo-nextest can run them without cargo.
#[derive(Debug)]
pub(super) struct Built {
    /// What `cargo nextest list` says of them.
    listed: Value,
    /// What `cargo metadata` says of the workspace.
    metadata: String,
}

impl Built {
    /// The test programs.
    pub(super) fn executables(&self) -> Vec<PathBuf> {
        let binaries = self.listed.get("rust-binaries").and_then(Value::as_object).into_iter().flatten();
        binaries.filter_map(|(_, binary)| binary.get("binary-path")?.as_str()).map(PathBuf::from).collect()
    }

    /// An ordinary program of a package whose tests were built.
    pub(super) fn program(&self, name: &str) -> Result<PathBuf> {
        let built = self.listed.get("rust-build-meta").context("no rust-build-meta is listed")?;
        let target =
            built.get("target-directory").and_then(Value::as_str).context("no target-directory is listed")?;
        let packages = built.get("non-test-binaries").and_then(Value::as_object).into_iter().flatten();
        let mut programs = packages.filter_map(|(_, programs)| programs.as_array()).flatten();
        let program = programs.find(|program| program.get("name").is_some_and(|it| it == name));
        let path = program.and_then(|program| program.get("path")?.as_str());
        Ok(Path::new(target).join(path.with_context(|| format!("no program {name} was built"))?))
    }

    /// How many of the tests are selected.
    pub(super) fn count(&self, selection: &Selection) -> Result<usize> {
        let directory = tempfile::tempdir().context("making a directory")?;
        let mut list = workspace::at_root(program()?);
        list.args(["nextest", "list", "--message-format", "json"]).args(self.written(directory.path())?);
        let listed = printed(list.args(selection.arguments_of_list()))?;
        let listed: Value = serde_json::from_str(&listed).context("what cargo nextest list says")?;
        let suites =
            listed.get("rust-suites").and_then(Value::as_object).context("no rust-suites are listed")?;
        let tests = suites.values().filter_map(|suite| suite.get("testcases")?.as_object()).flatten();
        let is_selected =
            |test: &Value| test.pointer("/filter-match/status").is_some_and(|status| status == "matches");
        Ok(tests.filter(|(_, test)| is_selected(test)).count())
    }

    /// Writes down what was built, and returns the arguments with which cargo-nextest uses it and asks no cargo.
    pub(super) fn written(&self, directory: &Path) -> Result<[OsString; 4]> {
        let (binaries, metadata) = (directory.join("binaries.json"), directory.join("metadata.json"));
        files::write(&binaries, self.listed.to_string())?;
        files::write(&metadata, &self.metadata)?;
        Ok(["--binaries-metadata".into(), binaries.into(), "--cargo-metadata".into(), metadata.into()])
    }
}

/// Builds test programs.
pub(super) fn build(build: Build) -> Result<Built> {
    let mut list = workspace::at_root(program()?);
    list.args(["nextest", "list"]).args(build.arguments());
    list.args(["--message-format", "json", "--list-type", "binaries-only"]);
    let listed = serde_json::from_str(&printed(&mut list)?).context("what cargo nextest list says")?;
    let metadata = printed(cargo().args(["metadata", "--format-version=1", "--all-features"]))?;
    Ok(Built { listed, metadata })
}

/// The results in the report at `path`.
fn read_report(path: &Path) -> Result<Report> {
    results(&files::read(path)?).with_context(|| path.display().to_string())
}

fn results(text: &str) -> Result<Report> {
    let document = Document::parse(text)?;
    let mut report = Report::default();
    for case in document.descendants().filter(|node| node.has_tag_name("testcase")) {
        let attribute = |name| case.attribute(name).unwrap_or_default();
        let name = format!("{} {}", attribute("classname"), attribute("name"));
        if has(case, "failure") || has(case, "error") {
            report.failed.push(name);
            continue;
        }
        let printed =
            case.children().filter(|node| node.has_tag_name("system-out")).filter_map(|node| node.text());
        let lines: Vec<&str> = printed.flat_map(str::lines).collect();
        report.absent.extend(after("ABSENT: ", &lines).map(str::to_owned));
        match after("SKIP: ", &lines).next() {
            Some(reason) => report.skipped.push(format!("{name}: {reason}")),
            None => report.passed += 1,
        }
    }
    Ok(report)
}

fn has(case: Node<'_, '_>, tag: &str) -> bool {
    case.children().any(|node| node.has_tag_name(tag))
}

/// What follows this mark on the lines that have it. libtest writes `test NAME ... ` before the first line that a test
/// prints.
fn after<'a>(mark: &str, lines: &[&'a str]) -> impl Iterator<Item = &'a str> {
    lines.iter().filter_map(move |line| {
        let line = line
            .strip_prefix("test ")
            .and_then(|line| line.split_once(" ... "))
            .map_or(*line, |(_, rest)| rest);
        line.strip_prefix(mark)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="4" failures="1" errors="0">
    <testsuite name="kube-ipvs::kernel" tests="4" disabled="0" errors="0" failures="1">
        <testcase name="repair::passes" classname="kube-ipvs::kernel" time="0.1">
            <system-out>
running 1 test
ABSENT: no scheduler twos
test repair::passes ... ok
</system-out>
        </testcase>
        <testcase name="udp::needs_sctp" classname="kube-ipvs::kernel" time="0.1">
            <system-out>
running 1 test
test udp::needs_sctp ... SKIP: the kernel has no sctp
ok
</system-out>
        </testcase>
        <testcase name="udp::quiet" classname="kube-ipvs::kernel" time="0.1"/>
        <testcase name="udp::broken" classname="kube-ipvs::kernel" time="0.1">
            <failure message="thread panicked" type="test failure">at src/lib.rs:1:1</failure>
            <system-out>SKIP: said before it failed</system-out>
        </testcase>
    </testsuite>
</testsuites>"#;

    #[test]
    fn a_report_says_what_passed_failed_was_skipped_and_was_absent() {
        let expected = Report {
            passed: 2,
            failed: vec!["kube-ipvs::kernel udp::broken".to_owned()],
            skipped: vec!["kube-ipvs::kernel udp::needs_sctp: the kernel has no sctp".to_owned()],
            absent: BTreeSet::from(["no scheduler twos".to_owned()]),
            begun_anew: Vec::new(),
        };
        assert_eq!(results(REPORT).unwrap(), expected);
    }

    #[test]
    fn half_a_report_is_an_error() {
        assert!(results(&REPORT[..300]).is_err());
    }
}
