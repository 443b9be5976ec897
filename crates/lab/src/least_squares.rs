//! The line that figures follow.

/// The line y = a + b·x through these, by least squares: a and b. None through points that are all at one x.
pub(crate) fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let count = f64::from(u32::try_from(points.len()).ok()?);
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let variance: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let covariance: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    (variance > 0.0).then(|| (y - covariance / variance * x, covariance / variance))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_on_a_line_give_that_line_and_one_point_none() {
        let (a, b) = line(&[(1.0, 5.0), (2.0, 7.0), (10.0, 23.0)]).unwrap();
        assert!((a - 3.0).abs() < 1e-9 && (b - 2.0).abs() < 1e-9, "{a} {b}");
        assert_eq!(line(&[(1.0, 5.0)]), None);
        assert_eq!(line(&[]), None);
    }

    #[test]
    fn what_goes_up_and_down_around_a_level_has_hardly_a_slope() {
        let points: Vec<_> = (0..100).map(|x| (f64::from(x), f64::from(50 + x % 2))).collect();
        let (_, slope) = line(&points).unwrap();
        assert!(slope.abs() < 0.001, "{slope}");
    }
}
