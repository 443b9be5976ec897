//! What many figures come to: percentiles, the one in the middle, and the line that they follow.

use serde::{Deserialize, Serialize};

/// Of times in seconds. Each is a time that was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The median, the lower one of two.
    pub p50: f64,
    /// What one of a hundred exceeds.
    pub p99: f64,
    /// The longest.
    pub longest: f64,
}

impl Percentiles {
    /// Of at least one time.
    pub(crate) fn from_times(mut times: Vec<f64>) -> Option<Self> {
        times.sort_by(f64::total_cmp);
        let rank = |percent: usize| (times.len() * percent).div_ceil(100).saturating_sub(1);
        Some(Self { p50: *times.get(rank(50))?, p99: *times.get(rank(99))?, longest: *times.last()? })
    }
}

/// The one in the middle, or between the two that are.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2)?;
    let lower = values.get(values.len().saturating_sub(1) / 2)?;
    Some(f64::midpoint(*lower, *upper))
}

/// The line y = a + b·x through these, by least squares: a and b. None through points that are all at one x.
pub(crate) fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let count = f64::from(u32::try_from(points.len()).ok()?);
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let variance: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let covariance: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    (variance > 0.0).then(|| (y - covariance / variance * x, covariance / variance))
}

/// The exponent b of y = a · x^b through these. None through points that are all at one x.
pub(crate) fn exponent(points: &[(f64, f64)]) -> Option<f64> {
    let logarithms: Vec<_> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    line(&logarithms).map(|(_, slope)| slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured_and_there_are_none_of_nothing() {
        let hundred = (1..=100).rev().map(f64::from).collect();
        let expected = Percentiles { p50: 50.0, p99: 99.0, longest: 100.0 };
        assert_eq!(Percentiles::from_times(hundred), Some(expected));
        let expected = Percentiles { p50: 1.0, p99: 4.0, longest: 4.0 };
        assert_eq!(Percentiles::from_times(vec![4.0, 1.0]), Some(expected));
        assert_eq!(Percentiles::from_times(Vec::new()), None);
    }

    #[test]
    fn the_median_is_in_the_middle_or_between_the_two_that_are() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 9.0]), Some(3.0));
        assert_eq!(median(Vec::new()), None);
    }

    #[test]
    fn points_on_a_line_give_that_line_and_one_point_none() {
        let (a, b) = line(&[(1.0, 5.0), (2.0, 7.0), (10.0, 23.0)]).unwrap();
        assert!((a - 3.0).abs() < 1e-9 && (b - 2.0).abs() < 1e-9, "{a} {b}");
        assert_eq!(line(&[(1.0, 5.0)]), None);
        assert_eq!(line(&[]), None);
    }

    #[test]
    fn the_exponent_of_a_power_is_found_whatever_its_factor() {
        let power = |factor: f64, exponent: f64| {
            let points = [10.0_f64, 20.0, 50.0, 100.0].map(|x| (x, factor * x.powf(exponent)));
            super::exponent(&points).unwrap()
        };
        assert!((power(3.0, 1.0) - 1.0).abs() < 1e-9);
        assert!((power(0.1, 2.0) - 2.0).abs() < 1e-9);
        assert!(power(5.0, 0.0).abs() < 1e-9);
    }
}
