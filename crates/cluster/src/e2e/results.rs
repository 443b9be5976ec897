//! The result of each test, out of the JUnit report that Kubernetes' tests write, and the tables of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use roxmltree::{Document, Node};
use serde::{Deserialize, Serialize};

use super::{Results, Test};
use crate::{proxy::Proxy, state::named};

/// What can come of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
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
pub(super) fn read(directory: &Path) -> Result<BTreeMap<String, Test>> {
    let entries = fs::read_dir(directory).with_context(named(directory))?;
    let report = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "xml"));
    let report = report.with_context(|| format!("{} has no report", directory.display()))?;
    let text = fs::read_to_string(&report).with_context(named(&report))?;
    tests(&text).with_context(named(&report))
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

#[cfg(test)]
mod unit {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

    use super::*;

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
    fn a_suite_that_could_not_begin_is_no_report_of_tests() {
        let report = r#"<testsuites><testsuite>
            <testcase name="[SynchronizedBeforeSuite]" status="failed" time="1"><failure>no nodes</failure></testcase>
        </testsuite></testsuites>"#;
        assert_eq!(tests(report).unwrap_err().to_string(), "[SynchronizedBeforeSuite]: no nodes");
    }
}

/// How many there are of each outcome, and which did not just pass.
pub(super) fn summary(results: &Results) -> String {
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

/// A column for each proxy that was tried: how many tests passed, and each that did not pass with all of them.
pub(super) fn table(directory: &Path) -> Result<String> {
    let columns = Columns::read(directory)?;
    let mut lines = columns.head();
    for (word, outcome) in [
        ("passed", Outcome::Passed),
        ("passed when repeated alone", Outcome::Flaked),
        ("failed", Outcome::Failed),
        ("skipped themselves", Outcome::Skipped),
    ] {
        lines.push(columns.row(word, |results| {
            results.tests.values().filter(|test| test.outcome == outcome).count().to_string()
        }));
    }
    lines.push(columns.row("minutes", |results| format!("{:.0}", results.seconds / 60.0)));

    lines.extend([
        String::new(),
        "## Tests that did not pass at once with all of them".to_owned(),
        String::new(),
    ]);
    lines.extend(columns.head());
    for name in columns.names() {
        let outcomes = columns.0.iter().map(|(_, results)| results.tests.get(name).map(|test| test.outcome));
        if !outcomes.clone().all(|outcome| outcome == Some(Outcome::Passed)) {
            lines.push(columns.row(name, |results| {
                let word = match results.tests.get(name).map(|test| test.outcome) {
                    None => "–",
                    Some(Outcome::Passed) => "passed",
                    Some(Outcome::Flaked) => "passed alone",
                    Some(Outcome::Failed) => "**failed**",
                    Some(Outcome::Skipped) => "skipped",
                };
                word.to_owned()
            }));
        }
    }

    lines.extend([String::new(), "## Tests that are not run".to_owned(), String::new()]);
    lines.extend(super::left_out().map(|(part, reason)| format!("- `{part}`: {reason}")));
    lines.push(String::new());
    Ok(lines.join("\n"))
}

/// The proxies that were tried.
struct Columns(Vec<(Proxy, Results)>);

impl Columns {
    fn read(directory: &Path) -> Result<Self> {
        let paths = Proxy::ALL.map(|proxy| (proxy, directory.join(proxy.name()).join(super::RESULTS)));
        let there = paths.into_iter().filter(|(_, path)| path.exists());
        let read = |(proxy, path): (Proxy, std::path::PathBuf)| {
            let text = fs::read(&path).with_context(named(&path))?;
            Ok((proxy, serde_json::from_slice(&text).with_context(named(&path))?))
        };
        there.map(read).collect::<Result<_>>().map(Self)
    }

    fn head(&self) -> Vec<String> {
        let names: Vec<&str> = self.0.iter().map(|(proxy, _)| proxy.name()).collect();
        vec![format!("| | {} |", names.join(" | ")), format!("|---|{}", "---|".repeat(names.len()))]
    }

    fn row(&self, first: &str, cell: impl Fn(&Results) -> String) -> String {
        let cells: Vec<String> = self.0.iter().map(|(_, results)| cell(results)).collect();
        format!("| {first} | {} |", cells.join(" | "))
    }

    fn names(&self) -> BTreeSet<&String> {
        self.0.iter().flat_map(|(_, results)| results.tests.keys()).collect()
    }
}
