//! The table.

use std::fmt;

use serde::Serialize;

use crate::{statistics::Percentiles, table::Table};

/// A whole run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) seed: u64,
    pub(super) kernel: String,
    pub(super) period: &'static str,
    pub(super) rows: Vec<Row>,
    /// What ought not to have happened.
    pub(super) failures: Vec<String>,
}

/// The results of one kind of fault.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Row {
    pub(super) fault: &'static str,
    /// Whether the daemon should report it.
    pub(super) is_logged: bool,
    /// Whether it may cost connections.
    pub(super) costs: bool,
    pub(super) injected: usize,
    /// Seconds from the beginning of the fault to the daemon's report, if there was one.
    pub(super) detected: Vec<f64>,
    /// Seconds from the end of the fault until the kernel was as before.
    pub(super) healed: Vec<f64>,
    /// Connections that were open and broke, and new ones that were not answered.
    pub(super) lost: u64,
    pub(super) unanswered: u64,
    /// Whether daemons are to be killed in the middle of a sync, and how many were.
    pub(super) cuts_short: bool,
    pub(super) cut_short: usize,
}

/// Where so many daemons are killed, one of four must have been in the middle of a sync. Fewer may all have missed it.
const MANY_KILLED: usize = 20;
const CUT_SHORT_ONE_OF: usize = 4;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, kernel, period, rows, failures } = self;
        writeln!(f, "seed {seed}, Linux {kernel}, {period}")?;
        let mut table = Table::new(
            "Faults",
            "fault | injected | detected in, s (median, worst) | healed in, s (median, worst) | connections lost | \
             new ones unanswered",
        );
        for row in rows {
            let Row { fault, injected, healed, lost, unanswered, .. } = row;
            let (detected, healed) = (row.detection(), times(healed));
            table.row(&format!("{fault} | {injected} | {detected} | {healed} | {lost} | {unanswered}"));
        }
        write!(f, "{table}")?;
        writeln!(f)?;
        for Row { fault, injected, cut_short, .. } in rows.iter().filter(|row| row.cuts_short) {
            writeln!(f, "{fault}: {cut_short} of {injected} were in the middle of a sync")?;
        }
        match failures.as_slice() {
            [] => writeln!(f, "chaos: ok"),
            failures => failures.iter().try_for_each(|failure| writeln!(f, "FAILED: {failure}")),
        }
    }
}

impl Row {
    /// What ought not to have happened.
    pub(super) fn failures(&self) -> Vec<String> {
        let Self { fault, is_logged, costs, injected, detected, lost, unanswered, .. } = self;
        let Self { cuts_short, cut_short, .. } = self;
        let mut failures = Vec::new();
        if !costs && lost + unanswered > 0 {
            failures.push(format!("{fault}: {lost} connections lost, {unanswered} new ones unanswered"));
        }
        if *is_logged && detected.len() < *injected {
            failures.push(format!("{fault}: logged {} times out of {injected}", detected.len()));
        }
        if *cuts_short && *injected >= MANY_KILLED && cut_short * CUT_SHORT_ONE_OF < *injected {
            failures.push(format!("{fault}: only {cut_short} of {injected} were in the middle of a sync"));
        }
        failures
    }

    fn detection(&self) -> String {
        let (logged, injected) = (self.detected.len(), self.injected);
        match (self.is_logged, logged == injected) {
            (false, _) => "nothing to log".to_owned(),
            (true, true) => times(&self.detected),
            (true, false) => format!("{} ({logged} of {injected})", times(&self.detected)),
        }
    }
}

fn times(times: &[f64]) -> String {
    Percentiles::from_times(times.to_vec())
        .map_or_else(|| "never".to_owned(), |times| format!("{:.2}, {:.2}", times.p50, times.longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_connections_and_missing_log_lines_are_failures() {
        let row = Row { injected: 2, detected: vec![1.0, 2.0], is_logged: true, ..Row::default() };
        assert!(row.failures().is_empty());
        assert_eq!(Row { lost: 1, ..row.clone() }.failures().len(), 1);
        assert_eq!(Row { unanswered: 1, ..row.clone() }.failures().len(), 1);
        assert!(Row { lost: 1, costs: true, ..row.clone() }.failures().is_empty());
        assert_eq!(Row { detected: vec![1.0], costs: true, ..row }.failures().len(), 1);
    }

    #[test]
    fn kills_of_which_hardly_any_hits_a_sync_are_a_failure_where_there_are_many() {
        let row = |injected, cut_short| Row { cuts_short: true, injected, cut_short, ..Row::default() };
        assert!(row(200, 50).failures().is_empty());
        assert_eq!(row(200, 49).failures().len(), 1);
        assert!(row(2, 0).failures().is_empty());
        assert!(Row { cuts_short: false, ..row(200, 0) }.failures().is_empty());
    }

    #[test]
    fn a_fault_that_was_not_logged_each_time_says_so() {
        let row = |is_logged, detected: &[f64]| Row {
            is_logged,
            injected: 2,
            detected: detected.to_vec(),
            ..Row::default()
        };
        assert_eq!(row(true, &[1.0, 3.0]).detection(), "1.00, 3.00");
        assert_eq!(row(true, &[1.0]).detection(), "1.00, 1.00 (1 of 2)");
        assert_eq!(row(true, &[]).detection(), "never (0 of 2)");
        assert_eq!(row(false, &[]).detection(), "nothing to log");
    }
}
