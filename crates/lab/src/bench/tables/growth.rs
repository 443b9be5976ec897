//! How each phase grows with the number of Services: y = a · Services^b, fitted to all sizes.

use testkit::kernel_baseline::Size;

use super::{
    Report, cases,
    table::{Table, bytes, megabytes, ratio, seconds, size_cell},
};
use crate::bench::{
    case::Subject,
    figures::{Figures, Phases},
};

pub(super) fn table(report: &Report) -> String {
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
