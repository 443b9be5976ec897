//! The tier of the long runs: a short part of each must succeed.

use anyhow::Result;

use super::tally::Report;
use crate::{chaos, soak};
use guest::Kernel;

/// What is run, by its name.
type Run = (&'static str, fn(&Kernel) -> Result<()>);

/// Some faults, and less than a minute of churn, or what the names select of the two.
pub(super) fn small(kernel: &Kernel, names: &[String]) -> Report {
    if let Err(error) = kernel.prepare() {
        return Report::skip(format!("{error:#}"));
    }
    let runs: [Run; 2] = [("chaos", chaos::try_out), ("soak", soak::try_out)];
    let mut report = Report::default();
    for (name, run) in runs {
        if !names.is_empty() && !names.iter().any(|wanted| name.contains(wanted.as_str())) {
            continue;
        }
        match run(kernel) {
            Ok(()) => report.passed += 1,
            Err(error) => report.failed.push(format!("{name}: {error:#}")),
        }
    }
    report
}
