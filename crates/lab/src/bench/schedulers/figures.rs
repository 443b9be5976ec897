//! What was seen of each scheduler.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::statistics::{Percentiles, median};

/// With one number of nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedulers {
    /// One for each scenario and choice.
    pub rows: Vec<Row>,
}

/// One way to choose pods, in one scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What happened.
    pub scenario: Scenario,
    /// What chose the pods.
    pub choice: String,
    /// The median of each figure over the repeats.
    pub seen: Seen,
}

/// What the clients do, and in what state the pods are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// Short requests that come at random, for three fifths of what the pods can do.
    Steady,
    /// The same, and one pod takes ten times as long as the others.
    SlowPod,
    /// Long connections.
    Held,
    /// Every pod is replaced, one after the other, and its connections are opened anew.
    RollingUpdate,
}

/// What the clients saw. Shares are between 0 and 1, times in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// What the pod with the least requests or connections got, as a multiple of the mean.
    pub least: f64,
    /// The same of the pod with the most.
    pub most: f64,
    /// The median of the answered requests' times.
    pub p50: f64,
    /// What one of a hundred exceeds.
    pub p99: f64,
    /// The share of requests that a pod refused, or that had no answer in time.
    pub failed: f64,
}

impl Scenario {
    pub(crate) const ALL: [Self; 4] = [Self::Steady, Self::SlowPod, Self::Held, Self::RollingUpdate];
}

impl Seen {
    /// How evenly pods were chosen.
    pub(super) fn from_counts(counts: &[u32]) -> Self {
        let pods = u32::try_from(counts.len()).map_or(f64::NAN, f64::from);
        let mean = f64::from(counts.iter().sum::<u32>()) / pods;
        let relative = |count: Option<&u32>| count.map_or(0.0, |count| f64::from(*count) / mean);
        Self { least: relative(counts.iter().min()), most: relative(counts.iter().max()), ..Self::default() }
    }

    /// The same with the times of the answers.
    pub(super) fn times(self, times: Percentiles) -> Self {
        Self { p50: times.p50, p99: times.p99, ..self }
    }

    /// The median of each figure.
    pub(super) fn median(repeats: &[Self]) -> Option<Self> {
        let of = |figure: fn(&Self) -> f64| median(repeats.iter().map(figure).collect());
        Some(Self {
            least: of(|seen| seen.least)?,
            most: of(|seen| seen.most)?,
            p50: of(|seen| seen.p50)?,
            p99: of(|seen| seen.p99)?,
            failed: of(|seen| seen.failed)?,
        })
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Steady => "Short requests at 60% of what the pods can do",
            Self::SlowPod => "The same with one pod that takes ten times as long",
            Self::Held => "Long connections",
            Self::RollingUpdate => "Long connections, after every pod was replaced",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_what_the_least_and_the_most_chosen_pod_got_of_the_mean() {
        let seen = Seen::from_counts(&[5, 10, 15]);
        assert_eq!((seen.least, seen.most), (0.5, 1.5));
    }

    #[test]
    fn each_figure_has_a_median_of_its_own() {
        let seen = |least, most| Seen { least, most, ..Seen::default() };
        let repeats = [seen(0.1, 3.0), seen(0.2, 1.0), seen(0.3, 2.0)];
        assert_eq!(Seen::median(&repeats), Some(seen(0.2, 2.0)));
        assert_eq!(Seen::median(&[]), None);
    }
}
