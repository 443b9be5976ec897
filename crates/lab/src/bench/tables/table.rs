//! A table of the report and its cells; the tables of kube-ipvs beside kube-proxy, and of growth.

use std::fmt::Write as _;

use testkit::kernel_baseline::Size;

use super::{Report, cases};
use crate::bench::{
    case::{Binding, Case, Mode, Program, Subject},
    figures::{Figures, Percentiles, Phases},
};

/// What is shown where a measurement failed or was not made.
pub(super) const NONE: &str = "–";

/// A table with its heading; nothing until there is a row.
pub(super) struct Table<'a> {
    heading: &'a str,
    columns: &'a [&'a str],
    pub(super) text: String,
}

impl<'a> Table<'a> {
    pub(super) fn new(heading: &'a str, columns: &'a [&'a str]) -> Self {
        Self { heading, columns, text: String::new() }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        // Writing to a String cannot fail.
        if self.text.is_empty() {
            let line = vec!["---"; self.columns.len()].join("|");
            let _ =
                writeln!(self.text, "\n### {}\n\n| {} |\n|{line}|", self.heading, self.columns.join(" | "));
        }
        let cells: Vec<String> = cells.into_iter().collect();
        let _ = writeln!(self.text, "| {} |", cells.join(" | "));
    }
}

pub(super) fn size_cell(Size { services, endpoints }: Size) -> String {
    format!("{services} × {endpoints}")
}

pub(super) fn seconds(time: Option<f64>) -> String {
    match time {
        Some(time) if time >= 1.0 => format!("{time:.1} s"),
        Some(time) => format!("{:.1} ms", time * 1e3),
        None => NONE.to_owned(),
    }
}

pub(super) fn both(times: Option<Percentiles>) -> String {
    times.map_or(NONE.to_owned(), |Percentiles { p50, p99 }| {
        format!("{} / {}", seconds(Some(p50)), seconds(Some(p99)))
    })
}

pub(super) fn ratio(of: Option<f64>, to: Option<f64>) -> String {
    of.zip(to).map_or(NONE.to_owned(), |(of, to)| format!("{:.1}", of / to))
}

pub(super) fn megabytes(size: Option<u64>) -> String {
    size.map_or(NONE.to_owned(), |size| format!("{:.0} MB", bytes(size) / 1e6))
}

#[expect(clippy::cast_precision_loss, reason = "at most two digits after the point are shown")]
pub(super) fn bytes(size: u64) -> f64 {
    size as f64
}

/// kube-ipvs beside each mode of kube-proxy.
pub(super) fn peers(report: &Report) -> String {
    let mut table = Table::new(
        "Beside kube-proxy",
        &[
            "Services × endpoints",
            "program",
            "cold sync",
            "× kube-ipvs",
            "endpoint change, p50 / p99",
            "memory, steady",
            "memory, peak",
        ],
    );
    let takes_part =
        |program, size| cases(report).any(|case| case == Case { subject: Subject::ColdSync(program), size });
    let kube_proxy = Mode::ALL.map(Program::KubeProxy);
    let mut sizes: Vec<Size> = Vec::new();
    for Case { size, .. } in cases(report) {
        if !sizes.contains(&size) && kube_proxy.iter().any(|&program| takes_part(program, size)) {
            sizes.push(size);
        }
    }
    let ours = Program::KubeIpvs(Binding::Route);
    for size in sizes {
        let cold_sync = |program| report.cold_sync(size, program).map(|cold| cold.from_lists);
        let best = cold_sync(ours);
        for program in [ours].into_iter().chain(kube_proxy).filter(|&program| takes_part(program, size)) {
            let sync = cold_sync(program);
            let memory = match report.figures(Case { subject: Subject::Memory(program), size }) {
                Some(Figures::Memory { steady, peak }) => (Some(steady), Some(peak)),
                _ => (None, None),
            };
            table.row([
                size_cell(size),
                program.to_string(),
                seconds(sync),
                ratio(sync, best),
                both(report.change(size, program)),
                megabytes(memory.0),
                megabytes(memory.1),
            ]);
        }
    }
    table.text
}

/// How each phase grows with the number of Services: y = a · Services^b, fitted to all sizes.
pub(super) fn growth(report: &Report) -> String {
    let measured: Vec<(Size, Phases)> = cases(report)
        .filter(|case| matches!(case.subject, Subject::Growth(_)))
        .filter_map(|case| match report.figures(case)? {
            Figures::Growth(phases) => Some((case.size, phases)),
            _ => None,
        })
        .collect();
    let sizes = measured.iter().map(|(size, _)| size_cell(*size));
    let columns: Vec<String> = ["phase".to_owned()]
        .into_iter()
        .chain(sizes)
        .chain(["largest ÷ smallest".to_owned(), "exponent".to_owned()])
        .collect();
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::new("Growth, VIPs as routes (goal: ≤ 12 × from 10,000 to 100,000)", &columns);
    let time = |time: f64| seconds(Some(time));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size in bytes, rounded")]
    let memory = |size: f64| megabytes(Some(size as u64));
    let mut row = |name: &str, shown: &dyn Fn(f64) -> String, of: &dyn Fn(&Phases) -> f64| {
        let points: Vec<(f64, f64)> =
            measured.iter().map(|(size, phases)| (size.services.into(), of(phases))).collect();
        let Some(exponent) = exponent(&points) else { return };
        let values = points.iter().map(|&(_, value)| shown(value));
        let ends = points.first().zip(points.last());
        let grown = ratio(ends.map(|(_, last)| last.1), ends.map(|(first, _)| first.1));
        table.row([name.to_owned()].into_iter().chain(values).chain([grown, format!("{exponent:.2}")]));
    };
    row("start to the last write", &time, &|phases| phases.cold_sync.from_start);
    row("of that, the first sync", &time, &|phases| phases.cold_sync.in_syncs);
    row("`kube-ipvs resync`, nothing to do", &time, &|phases| phases.resync);
    row("one endpoint changed", &time, &|phases| phases.change);
    row("memory, steady", &memory, &|phases| bytes(phases.steady));
    row("memory, peak", &memory, &|phases| bytes(phases.peak));
    table.text
}

/// The slope of the straight line through the logarithms, by least squares. `None` for less than two sizes.
fn exponent(points: &[(f64, f64)]) -> Option<f64> {
    let logarithms = || points.iter().map(|(x, y)| (x.ln(), y.ln()));
    let count = points.iter().map(|_| 1.0).sum::<f64>();
    let mean_x = logarithms().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = logarithms().map(|(_, y)| y).sum::<f64>() / count;
    let above = logarithms().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum::<f64>();
    let below = logarithms().map(|(x, _)| (x - mean_x).powi(2)).sum::<f64>();
    (below > 0.0).then(|| above / below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponent_of_a_power_is_found_whatever_its_factor_and_one_size_has_none() {
        let power = |factor: f64, exponent: f64| {
            let points = [10.0_f64, 20.0, 50.0, 100.0].map(|x| (x, factor * x.powf(exponent)));
            super::exponent(&points).unwrap()
        };
        assert!((power(3.0, 1.0) - 1.0).abs() < 1e-9);
        assert!((power(0.1, 2.0) - 2.0).abs() < 1e-9);
        assert!(power(5.0, 0.0).abs() < 1e-9);
        assert_eq!(exponent(&[(10.0, 1.0)]), None);
        assert_eq!(exponent(&[]), None);
    }
}
