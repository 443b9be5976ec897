//! What was seen in a run, second by second.

use std::{collections::BTreeSet, time::Duration};

use super::node::Written;

/// A run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Seen {
    pub(super) seconds: Vec<Second>,
    /// All weights that were written after the start, by time.
    pub(super) weights: Vec<WeightChange>,
}

/// A weight that a node wrote.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WeightChange {
    pub(super) at: Duration,
    pub(super) node: usize,
    pub(super) written: Written,
}

/// A second of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Second {
    /// The clients that connected in it, and what became of these.
    pub(super) asked: u32,
    pub(super) answered: u32,
    pub(super) failed: u32,
    /// The connections that each endpoint got in it.
    pub(super) connections: Vec<u32>,
    /// The connections from each zone, and how many of these stayed there.
    pub(super) zones: Vec<[u32; 2]>,
    /// At its end: the endpoints without new connections, over all nodes, and the nodes that take the fault for theirs.
    pub(super) out: usize,
    pub(super) faults: usize,
}

/// Nodes that did something, and when, in seconds after a time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Nodes(Vec<f64>);

impl Seen {
    /// The second of a time, for which `change` counts something.
    pub(super) fn count(&mut self, at: Duration, change: impl FnMut(&mut Second)) {
        let number = usize::try_from(at.as_secs()).unwrap_or_default();
        if self.seconds.len() <= number {
            self.seconds.resize_with(number + 1, Second::default);
        }
        self.seconds.get_mut(number).into_iter().for_each(change);
    }

    pub(super) fn end_second(&mut self, now: Duration, out: usize, faults: usize) {
        let middle = now.saturating_sub(Duration::from_millis(500));
        self.count(middle, |over| (over.out, over.faults) = (out, faults));
    }

    /// The seconds from one to another.
    pub(super) fn between(&self, from: u64, to: u64) -> &[Second] {
        let [from, to] = [from, to].map(|at| usize::try_from(at).map_or(0, |at| at.min(self.seconds.len())));
        self.seconds.get(from..to).unwrap_or_default()
    }

    /// The nodes whose weight of an endpoint changed for the first time in a way, and when.
    pub(super) fn nodes(&self, endpoint: usize, from: u64, is_it: impl Fn(&Written) -> bool) -> Nodes {
        let begin = Duration::from_secs(from);
        let mut known = BTreeSet::new();
        let changes = self.weights.iter().filter(|it| {
            it.at >= begin && it.written.endpoint == endpoint && is_it(&it.written) && known.insert(it.node)
        });
        Nodes(changes.map(|it| it.at.saturating_sub(begin).as_secs_f64()).collect())
    }
}

impl Second {
    pub(super) fn chosen(&mut self, endpoint: usize, zone: usize, is_near: bool) {
        add(&mut self.connections, endpoint, 1);
        if self.zones.len() <= zone {
            self.zones.resize(zone + 1, [0; 2]);
        }
        if let Some([all, near]) = self.zones.get_mut(zone) {
            *all += 1;
            *near += u32::from(is_near);
        }
    }

    /// The connections that an endpoint got.
    pub(super) fn to(&self, endpoint: usize) -> u32 {
        self.connections.get(endpoint).copied().unwrap_or_default()
    }
}

fn add(counts: &mut Vec<u32>, at: usize, number: u32) {
    if counts.len() <= at {
        counts.resize(at + 1, 0);
    }
    counts.get_mut(at).into_iter().for_each(|count| *count += number);
}

impl Nodes {
    /// How many.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// When so many percent of these had done it.
    pub(super) fn after(&self, percent: usize) -> Option<f64> {
        let rank = (self.0.len() * percent).div_ceil(100).saturating_sub(1);
        self.0.get(rank).copied()
    }

    /// The most of them in any one second.
    pub(super) fn most_in_a_second(&self) -> usize {
        let ends = self.0.iter().map(|begin| self.0.partition_point(|at| *at < begin + 1.0));
        ends.enumerate().map(|(first, end)| end - first).max().unwrap_or_default()
    }
}

/// A share in percent.
pub(super) fn percent(part: u32, of: u32) -> f64 {
    if of == 0 { 0.0 } else { 100.0 * f64::from(part) / f64::from(of) }
}

/// The share of clients in these seconds that failed, in percent.
pub(super) fn failed(seconds: &[Second]) -> f64 {
    let sum = |of: fn(&Second) -> u32| seconds.iter().map(of).sum();
    percent(sum(|it| it.failed), sum(|it| it.failed) + sum(|it| it.answered))
}
