//! What liveness and ejection cost.

use super::Report;
use crate::{
    bench::{case::Subject, ejection::Shares, figures::Figures},
    table::{Table, seconds},
};

pub(super) fn table(report: &Report) -> Table {
    let mut table = Table::new(
        "Whether endpoints answer, and ejection: parts of a processor, with clients of a tenth of the Services",
        "Services × endpoints | Services that eject | without clients | reading counters (goal: 0.5%) | \
         the rest of the daemon | from one reading to the next",
    );
    for (case, figures) in report.worked() {
        let (Subject::Ejection(ejecting, _), Figures::Ejection(shares)) = (case.subject, figures) else {
            continue;
        };
        let Shares { quiet, reader, others, between_readings } = *shares;
        let [quiet, reader, others] = [quiet, reader, others].map(|share| format!("{:.2}%", share * 100.0));
        let every = seconds(between_readings);
        table.row(&format!("{} | {ejecting} | {quiet} | {reader} | {others} | {every}", case.size));
    }
    table
}
