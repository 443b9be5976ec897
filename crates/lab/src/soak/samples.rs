//! Samples of the daemon's use of resources, and whether it grows.

use anyhow::Result;
use serde::Serialize;

use crate::{statistics::line, used};

/// The first part of the time does not count: what is used for the first time is allocated then.
const WARM_UP: f64 = 0.2;
/// The accepted growth over the time that counts, in KiB: an allocator rounds. Memory grows in steps until
/// the worst case of everything has occurred, which takes about ten minutes; a run of less than half an hour
/// includes these steps.
const TOLERATED_KIB: f64 = 1024.0;
const TOLERATED_KIB_SHORT: f64 = 4096.0;
const SHORT: f64 = 1800.0;
/// The same for descriptors and threads: one for a current request may be open.
const TOLERATED_COUNT: f64 = 2.0;

/// One look at a process.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Sample {
    /// Seconds since the beginning.
    pub(super) at: f64,
    /// Resident memory in KiB.
    pub(super) memory: u32,
    /// Open file descriptors.
    pub(super) descriptors: u32,
    pub(super) threads: u32,
}

/// How one figure went.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Trend {
    pub(super) least: u32,
    pub(super) most: u32,
    /// Of the line through it, for each hour.
    pub(super) slope: f64,
    /// What that line rises by over the time that counts.
    pub(super) rise: f64,
}

/// How all of them went after the warm-up.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Trends {
    /// Of the whole run, warm-up included.
    pub(super) seconds: f64,
    pub(super) memory: Trend,
    pub(super) descriptors: Trend,
    pub(super) threads: Trend,
}

impl Sample {
    pub(super) fn take(process: u32, at: f64) -> Result<Self> {
        let [memory, _] = used::memory(process)?;
        Ok(Self { at, memory, descriptors: used::descriptors(process)?, threads: used::threads(process)? })
    }
}

impl Trends {
    /// The trends through the samples after the warm-up, of which there must be two.
    pub(super) fn through(samples: &[Sample]) -> Option<Self> {
        let seconds = samples.last()?.at;
        let warm = seconds * WARM_UP;
        let counted: Vec<_> = samples.iter().filter(|sample| sample.at >= warm).collect();
        let trend = |figure: fn(&Sample) -> u32| {
            let points: Vec<_> =
                counted.iter().map(|sample| (sample.at, f64::from(figure(sample)))).collect();
            let (_, slope) = line(&points)?;
            Some(Trend {
                least: counted.iter().map(|sample| figure(sample)).min()?,
                most: counted.iter().map(|sample| figure(sample)).max()?,
                slope: slope * 3600.0,
                rise: slope * (points.last()?.0 - points.first()?.0),
            })
        };
        Some(Self {
            seconds,
            memory: trend(|sample| sample.memory)?,
            descriptors: trend(|sample| sample.descriptors)?,
            threads: trend(|sample| sample.threads)?,
        })
    }

    /// What has grown more than is accepted.
    pub(super) fn complaints(&self) -> Vec<String> {
        let memory = if self.seconds < SHORT { TOLERATED_KIB_SHORT } else { TOLERATED_KIB };
        let figures = [
            ("memory (KiB)", self.memory, memory),
            ("descriptors", self.descriptors, TOLERATED_COUNT),
            ("threads", self.threads, TOLERATED_COUNT),
        ];
        let too_much = figures.into_iter().filter(|(_, trend, tolerated)| trend.rise > *tolerated);
        too_much
            .map(|(what, trend, _)| {
                format!(
                    "{what} rose by {:.0}, from {} at least to {} at most",
                    trend.rise, trend.least, trend.most
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(memory: impl Fn(u32) -> u32) -> Vec<Sample> {
        let sample = |number: u32| Sample {
            at: f64::from(number) * 10.0,
            memory: memory(number),
            descriptors: 20 + number % 2,
            threads: 4,
        };
        (0..=360).map(sample).collect()
    }

    #[test]
    fn what_grows_is_a_complaint_with_its_slope() {
        let trends = Trends::through(&samples(|number| 20_000 + number * 10)).unwrap();
        assert!((trends.memory.slope - 3600.0).abs() < 1e-6, "{trends:?}");
        assert!((trends.memory.rise - 2880.0).abs() < 1e-6, "{trends:?}");
        assert_eq!(trends.complaints().len(), 1, "{trends:?}");
    }

    #[test]
    fn what_goes_up_and_down_is_none_nor_is_what_the_warm_up_takes() {
        let trends = Trends::through(&samples(|number| 20_000 + number % 7 * 100)).unwrap();
        assert!(trends.complaints().is_empty(), "{trends:?}");
        let trends =
            Trends::through(&samples(|number| if number < 70 { number * 100 } else { 9_000 })).unwrap();
        assert!(trends.complaints().is_empty(), "{trends:?}");
        assert_eq!((trends.descriptors.least, trends.descriptors.most), (20, 21));
    }
}
