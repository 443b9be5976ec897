//! Reads the results of a run out of the JUnit report that cargo-nextest writes.
//!
//! What a passing test has printed is in the report, too: that is where `SKIP: ` and `ABSENT: ` lines are found.

use std::path::Path;

use anyhow::{Context as _, Result};
use roxmltree::{Document, Node};

use super::summary::Report;

/// The results in the report at `path`.
pub(super) fn read(path: &Path) -> Result<Report> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    results(&text).with_context(|| path.display().to_string())
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
