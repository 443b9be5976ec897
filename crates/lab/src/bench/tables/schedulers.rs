//! How each scheduler spreads connections, a table for each scenario.

use super::Report;
use crate::{
    bench::{
        figures::Figures,
        schedulers::figures::{Scenario, Seen},
    },
    statistics::Percentiles,
    table::{Table, both},
};

pub(super) fn tables(report: &Report) -> String {
    Scenario::ALL.into_iter().map(|scenario| table(report, scenario).to_string()).collect()
}

fn table(report: &Report, scenario: Scenario) -> Table {
    let columns = match scenario {
        Scenario::Steady | Scenario::SlowPod => "least and most per pod | p50 / p99 | refused or late",
        Scenario::Held | Scenario::RollingUpdate => "least and most per pod",
    };
    let mut table = Table::new(&scenario.to_string(), &format!("client nodes | chosen by | {columns}"));
    for (case, figures) in report.worked() {
        let Figures::Schedulers(schedulers) = figures else { continue };
        for row in schedulers.rows.iter().filter(|row| row.scenario == scenario) {
            table.row(&format!("{} | {} | {}", case.size.services, row.choice, cells(scenario, row.seen)));
        }
    }
    table
}

fn cells(scenario: Scenario, seen: Seen) -> String {
    let Seen { least, most, p50, p99, failed } = seen;
    let spread = format!("{least:.2} to {most:.2} × the mean");
    match scenario {
        Scenario::Steady | Scenario::SlowPod => {
            let times = both(Percentiles { p50, p99, longest: p99 });
            format!("{spread} | {times} | {:.1}%", failed * 100.0)
        }
        Scenario::Held | Scenario::RollingUpdate => spread,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages_and_the_spread_is_relative_to_the_mean() {
        let seen = Seen { least: 0.5, most: 1.5, p50: 0.08, p99: 1.25, failed: 0.016 };
        assert_eq!(cells(Scenario::Held, seen), "0.50 to 1.50 × the mean");
        assert_eq!(cells(Scenario::SlowPod, seen), "0.50 to 1.50 × the mean | 80.0 ms / 1.2 s | 1.6%");
    }
}
