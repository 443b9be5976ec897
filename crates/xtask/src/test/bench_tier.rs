//! The tier of the measurements: each must work, and kube-ipvs's own computation must not have become dearer.

use super::tally::Report;
use crate::bench::{self, Check};
use guest::Kernel;

/// Every measurement, and the instructions of each phase; or the measurements of these names.
pub(super) fn all(kernel: &Kernel, names: &[String]) -> Report {
    let mut report = small(kernel, names);
    if names.is_empty() {
        report.extend(instructions());
    }
    report
}

/// Every measurement in a tiny size. A failure of the real kube-proxy is one here, too: what is tested is the
/// measuring.
fn small(kernel: &Kernel, names: &[String]) -> Report {
    if let Err(error) = kernel.prepare() {
        return Report::skip(format!("{error:#}"));
    }
    match bench::try_out(kernel.clone(), names) {
        Ok((passed, failed)) => Report { passed, failed, ..Report::default() },
        Err(error) => Report::failure(format!("{error:#}")),
    }
}

/// The instructions of each phase.
fn instructions() -> Report {
    match bench::check() {
        Ok(Check::Compared { good, complaints }) => {
            Report { passed: good, failed: complaints, ..Report::default() }
        }
        Ok(Check::Unavailable(reason)) => Report::skip(reason),
        Err(error) => Report::failure(format!("{error:#}")),
    }
}
