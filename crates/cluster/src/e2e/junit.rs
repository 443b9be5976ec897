//! What came of each test, out of the JUnit report that Kubernetes' tests write.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use roxmltree::{Document, Node};
use serde::{Deserialize, Serialize};

use super::Test;
use crate::state::named;

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
    Ok(cases.filter_map(test).collect())
}

fn test(case: Node<'_, '_>) -> Option<(String, Test)> {
    let name = case.attribute("name")?.strip_prefix("[It] ")?;
    let seconds: f64 = case.attribute("time")?.parse().ok()?;
    let child = |tag: &str| case.children().find(|node| node.has_tag_name(tag));
    let message = |node: Node<'_, '_>| node.attribute("message").unwrap_or_default().to_owned();
    let (outcome, reason) = match (child("failure").or_else(|| child("error")), child("skipped")) {
        (Some(failure), _) => (Outcome::Failed, message(failure)),
        // What was not selected is skipped without a word.
        (None, Some(skipped)) => {
            (Outcome::Skipped, Some(message(skipped)).filter(|reason| reason != "skipped")?)
        }
        (None, None) => (Outcome::Passed, String::new()),
    };
    Some((name.to_owned(), Test { outcome, seconds, reason }))
}

#[cfg(test)]
mod unit {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

    use super::*;

    #[test]
    fn tests_that_were_not_selected_are_not_counted_and_those_that_skip_themselves_say_why() {
        let report = r#"<testsuites><testsuite>
            <testcase name="[BeforeSuite]" status="passed" time="1"></testcase>
            <testcase name="[It] a passes" status="passed" time="2.5"></testcase>
            <testcase name="[It] b fails" status="failed" time="3"><failure message="no answer">trace</failure></testcase>
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
            ("b fails", Outcome::Failed, "no answer"),
            ("d skips itself", Outcome::Skipped, "skipped - no GPU"),
        ];
        assert_eq!(
            found,
            expected.map(|(name, outcome, reason)| (name.to_owned(), outcome, reason.to_owned()))
        );
    }
}
