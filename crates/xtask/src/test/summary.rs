//! The results of a run, and how they are shown.

use std::{collections::BTreeSet, fmt, time::Duration};

/// The results of one tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// How many tests passed.
    pub(super) passed: usize,
    /// The tests that failed, by name.
    pub(super) failed: Vec<String>,
    /// The tests that could not do their work, with the reason.
    pub(super) skipped: Vec<String>,
    /// What the kernel does not have, which leaves nothing to test.
    pub(super) absent: BTreeSet<String>,
    /// The guests that ended by themselves, and whose tests were begun anew.
    pub(super) begun_anew: Vec<String>,
}

impl Report {
    /// Nothing could be run.
    pub(super) fn skip(reason: impl Into<String>) -> Self {
        Self { skipped: vec![reason.into()], ..Self::default() }
    }

    /// Adds what came out of another run.
    pub(super) fn extend(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
        self.absent.extend(other.absent);
        self.begun_anew.extend(other.begun_anew);
    }

    /// What was run, or the failure to run it.
    pub(super) fn from_result(result: anyhow::Result<Self>) -> Self {
        result.unwrap_or_else(|error| Self::failure(format!("{error:#}")))
    }

    /// What passed of steps that build on each other, and the one that failed and ended them.
    pub(super) fn of_steps(steps: impl FnOnce(&mut Self) -> anyhow::Result<()>) -> Self {
        let mut report = Self::default();
        let done = steps(&mut report);
        report.extend(Self::from_result(done.map(|()| Self::default())));
        report
    }

    /// A failure outside of the tests.
    pub(super) fn failure(what: impl Into<String>) -> Self {
        Self { failed: vec![what.into()], ..Self::default() }
    }
}

/// The reports of all tiers. Displays as a table, every failure and skip, and a last line with the
/// sums.
#[derive(Default)]
pub(super) struct Summary(Vec<(&'static str, Report, Duration)>);

impl Summary {
    /// Adds a tier that took `elapsed`.
    pub(super) fn add(&mut self, tier: &'static str, report: Report, elapsed: Duration) {
        self.0.push((tier, report, elapsed));
    }

    /// Whether nothing failed and, if `strict`, nothing was skipped; if the tiers were `named`, something must
    /// have passed where something was skipped.
    pub(super) fn succeeded(&self, strict: bool, named: bool) -> bool {
        self.0.iter().all(|(_, report, _)| {
            let needs_all = strict || (named && report.passed == 0);
            report.failed.is_empty() && (report.skipped.is_empty() || !needs_all)
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (tier, report, _) in &self.0 {
            for what in &report.absent {
                writeln!(f, "absent   {tier}: {what}")?;
            }
            for why in &report.begun_anew {
                writeln!(f, "anew     {tier}: {why}")?;
            }
            for reason in &report.skipped {
                writeln!(f, "skipped  {tier}: {reason}")?;
            }
        }
        for (tier, report, _) in &self.0 {
            for name in &report.failed {
                writeln!(f, "FAILED   {tier}: {name}")?;
            }
        }
        writeln!(f, "\n{:<13}{:>8}{:>8}{:>9}{:>11}", "tier", "passed", "failed", "skipped", "wall time")?;
        let mut sums = [0; 3];
        for (tier, report, elapsed) in &self.0 {
            let counts = [report.passed, report.failed.len(), report.skipped.len()];
            let [passed, failed, skipped] = counts;
            writeln!(f, "{tier:<13}{passed:>8}{failed:>8}{skipped:>9}{:>9.1} s", elapsed.as_secs_f32())?;
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        let [passed, failed, skipped] = sums;
        writeln!(f, "\n{passed} passed, {failed} failed, {skipped} skipped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        let mut summary = Summary::default();
        let unit = Report { passed: 3, ..Report::default() };
        summary.add("unit", unit, Duration::from_millis(1500));
        let kernel = Report {
            passed: 1,
            failed: vec!["ipvs/kernel_a: x".to_owned()],
            skipped: vec!["y: no sctp".to_owned()],
            absent: BTreeSet::from(["no scheduler twos".to_owned()]),
            begun_anew: vec!["the guest ended".to_owned()],
        };
        summary.add("kernel", kernel, Duration::from_secs(10));
        summary
    }

    #[test]
    fn the_last_line_has_the_sums_and_the_skips_are_shown() {
        let text = summary().to_string();
        assert_eq!(text.lines().last(), Some("4 passed, 1 failed, 1 skipped"));
        assert!(text.contains("skipped  kernel: y: no sctp\n"));
        assert!(text.contains("absent   kernel: no scheduler twos\n"));
        assert!(text.contains("anew     kernel: the guest ended\n"));
        assert!(text.contains("FAILED   kernel: ipvs/kernel_a: x\n"));
        assert!(text.contains("unit                3       0        0      1.5 s\n"));
    }

    #[test]
    fn a_skip_fails_the_run_only_when_everything_is_required() {
        let mut summary = Summary::default();
        summary.add("api", Report::skip("no etcd"), Duration::ZERO);
        assert!(summary.succeeded(false, false));
        assert!(!summary.succeeded(true, false));
        summary.add("unit", Report::failure("x"), Duration::ZERO);
        assert!(!summary.succeeded(false, false));
    }

    #[test]
    fn named_tier_fails_only_if_all_its_tests_are_skipped() {
        let mut summary = Summary::default();
        let skip = Report::skip("no sctp");
        summary.add("api", Report { passed: 1, ..skip.clone() }, Duration::ZERO);
        assert!(summary.succeeded(false, true));
        summary.add("kernel", skip, Duration::ZERO);
        assert!(!summary.succeeded(false, true));
    }
}
