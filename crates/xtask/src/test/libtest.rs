//! Reads the results out of what test binaries print.
//!
//! libtest's machine-readable output is unstable, so this reads the text people see. The binaries
//! run with `--show-output`, which prints what a passing test has printed, with the test's name:
//! that is where `SKIP: ` lines are found, and `ABSENT: ` lines: what this kernel does not have, so
//! that there is nothing to test.

use std::collections::BTreeSet;

use super::tally::Report;

/// Before the name of a binary, on a line that the runner prints when it starts it.
pub(super) const STARTS: &str = "xtask: running ";

/// Before its exit code, on a line that the runner prints when it has ended.
pub(super) const ENDED: &str = "xtask: ended with code ";

/// What an `#[ignore]` reason says when another tier runs the test.
const OTHER_TIER: &str = "cargo xtask test --tier";

/// Collects the results of any number of test binaries from their stdout, given in pieces.
#[derive(Default)]
pub(super) struct Results {
    report: Report,
    /// The piece of a line whose end has not come yet.
    unfinished: Vec<u8>,
    /// The binary that is running, where the runner has said it.
    binary: Option<String>,
    /// How many failures there were when it started.
    failures_before: usize,
    /// The tests of that binary that failed, from its `test … FAILED` lines.
    failed: BTreeSet<String>,
    /// The test whose captured output is being shown.
    output_of: Option<String>,
    /// The tests of that binary that said why they could not do their work.
    skipped: Vec<(Option<String>, String)>,
}

impl Results {
    /// Takes a piece of output, which need not end with a line.
    pub(super) fn feed(&mut self, piece: &[u8]) {
        self.unfinished.extend_from_slice(piece);
        while let Some(end) = self.unfinished.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.unfinished.drain(..=end).collect();
            self.line(String::from_utf8_lossy(&line).trim_end());
        }
    }

    /// The results of everything that was fed.
    pub(super) fn finish(mut self) -> Report {
        let rest = std::mem::take(&mut self.unfinished);
        self.line(&String::from_utf8_lossy(&rest));
        self.never_ended();
        self.report
    }

    fn line(&mut self, line: &str) {
        if let Some(binary) = line.strip_prefix(STARTS) {
            self.start(binary);
        } else if let Some(code) = line.strip_prefix(ENDED) {
            self.end(code);
        } else if let Some(summary) = line.strip_prefix("test result: ") {
            self.summary(summary);
        } else if let Some(test) =
            line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----"))
        {
            self.output_of = Some(test.to_owned());
        } else if line == "successes:" || line == "failures:" {
            self.output_of = None;
        } else if let Some(reason) = line.trim_start().strip_prefix("SKIP: ") {
            self.skipped.push((self.output_of.clone(), reason.to_owned()));
        } else if let Some(what) = line.trim_start().strip_prefix("ABSENT: ") {
            self.report.absent.insert(what.to_owned());
        } else if let Some((test, outcome)) =
            line.strip_prefix("test ").and_then(|line| line.split_once(" ... "))
        {
            self.outcome(test, outcome);
        }
    }

    fn start(&mut self, binary: &str) {
        self.never_ended();
        self.binary = Some(binary.to_owned());
        self.failures_before = self.report.failed.len();
        self.forget();
    }

    /// A binary that crashed, or for another reason has no result, counts as one failure.
    fn end(&mut self, code: &str) {
        let binary = self.binary.take().unwrap_or_default();
        if code != "0" && self.report.failed.len() == self.failures_before {
            self.report.failed.push(format!("{binary} ended with code {code}"));
        }
        self.forget();
    }

    fn never_ended(&mut self) {
        if let Some(binary) = self.binary.take() {
            self.report.failed.push(format!("{binary} did not end"));
        }
    }

    fn outcome(&mut self, test: &str, outcome: &str) {
        if outcome == "FAILED" {
            self.failed.insert(test.to_owned());
        } else if let Some(reason) = outcome.strip_prefix("ignored") {
            if !reason.contains(OTHER_TIER) {
                self.report.skipped.push(format!("{}: ignored{reason}", self.full_name(test)));
            }
        } else if let Some(reason) = outcome.strip_prefix("SKIP: ") {
            // Output that was not captured starts on the test's own line.
            self.skipped.push((Some(test.to_owned()), reason.to_owned()));
        }
    }

    /// The last line of a binary, if it is that and not something a test printed.
    fn summary(&mut self, summary: &str) {
        let Some((mut passed, failed)) = counts(summary) else { return };
        let names = std::mem::take(&mut self.failed);
        let unnamed = failed.saturating_sub(names.len());
        for test in &names {
            let name = self.full_name(test);
            self.report.failed.push(name);
        }
        for _ in 0..unnamed {
            let name = self.full_name("a test");
            self.report.failed.push(name);
        }
        let mut seen = BTreeSet::new();
        for (test, reason) in std::mem::take(&mut self.skipped) {
            // A test counts once, and as failed if it went on and failed.
            let counts = test.as_ref().is_none_or(|test| !names.contains(test) && seen.insert(test.clone()));
            if counts {
                passed = passed.saturating_sub(1);
                let name = test.map_or_else(|| self.full_name("a test"), |test| self.full_name(&test));
                self.report.skipped.push(format!("{name}: {reason}"));
            }
        }
        self.report.passed += passed;
        self.output_of = None;
    }

    fn forget(&mut self) {
        self.output_of = None;
        self.failed.clear();
        self.skipped.clear();
    }

    fn full_name(&self, test: &str) -> String {
        self.binary.as_ref().map_or_else(|| test.to_owned(), |binary| format!("{binary}: {test}"))
    }
}

/// Passed and failed tests of `ok. 3 passed; 0 failed; 1 ignored; …`.
fn counts(summary: &str) -> Option<(usize, usize)> {
    let (_, counts) = summary.split_once(". ")?;
    let (passed, rest) = counts.split_once(" passed; ")?;
    let (failed, _) = rest.split_once(" failed; ")?;
    Some((passed.parse().ok()?, failed.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_BINARIES: &str = "
running 4 tests
test a_passes ... ok
test needs_sctp ... ok
test broken ... FAILED
test of_another_tier ... ignored, needs root and ip_vs: cargo xtask test --tier kernel

successes:

---- a_passes stdout ----
hello
ABSENT: no scheduler twos
test result: not a summary of ours, but it reads like one

---- needs_sctp stdout ----
SKIP: the kernel has no sctp

successes:
    a_passes
    needs_sctp

failures:

---- broken stdout ----
SKIP: said before it failed
thread 'broken' panicked at src/lib.rs:1:1

failures:
    broken

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

running 1 test
test src/lib.rs - example (line 3) ... ignored

test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    fn results_of(text: &str, piece: usize) -> Report {
        let mut results = Results::default();
        for piece in text.as_bytes().chunks(piece) {
            results.feed(piece);
        }
        results.finish()
    }

    #[test]
    fn passed_failed_and_skipped_tests_are_told_apart_in_whatever_pieces_the_text_comes() {
        let expected = Report {
            passed: 1,
            failed: vec!["broken".to_owned()],
            skipped: vec![
                "needs_sctp: the kernel has no sctp".to_owned(),
                "src/lib.rs - example (line 3): ignored".to_owned(),
            ],
            absent: BTreeSet::from(["no scheduler twos".to_owned()]),
        };
        for piece in [1, 7, 4096] {
            assert_eq!(results_of(TWO_BINARIES, piece), expected);
        }
    }

    #[test]
    fn a_binary_that_crashes_is_a_failure_even_without_a_result() {
        let text = "xtask: running ipvs/kernel_a\ntest one ... \nxtask: ended with code 139\n";
        let report = results_of(text, 9);
        assert_eq!(report.failed, ["ipvs/kernel_a ended with code 139"]);
        assert_eq!(report.passed, 0);
    }

    #[test]
    fn a_binary_that_never_ends_is_a_failure() {
        let text = "xtask: running ipvs/kernel_a\nrunning 2 tests\n";
        assert_eq!(results_of(text, 9).failed, ["ipvs/kernel_a did not end"]);
    }

    #[test]
    fn a_skip_that_was_not_captured_counts_too() {
        let text = "test x ... SKIP: no ip_vs\nok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n";
        assert_eq!(results_of(text, 5), Report::skip("x: no ip_vs"));
    }
}
