//! How long a sync goes on before it lets others in, and how many operations one exchange with the kernel
//! has.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

/// How long a sync carries out operations before it checks the inbox, and how long it goes on while the inbox
/// is empty: then it ends, so that what it has done so far is reported.
const SLICE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// The time that a sync may take before others are served.
pub(crate) struct Slice<'a> {
    begin: Cell<Instant>,
    lengths: [Duration; 2],
    /// Whether the inbox has anything.
    is_waited_for: &'a dyn Fn() -> bool,
}

impl<'a> Slice<'a> {
    pub(crate) fn new(is_waited_for: &'a dyn Fn() -> bool) -> Self {
        Self { begin: Cell::new(Instant::now()), lengths: SLICE, is_waited_for }
    }

    /// Begins the slice: what had to be read and divided before does not count.
    pub(crate) fn begin(&self) {
        self.begin.set(Instant::now());
    }

    /// A slice that is over before anything is carried out.
    #[cfg(test)]
    pub(crate) fn over() -> Self {
        Self { lengths: [Duration::ZERO; 2], ..Self::new(&|| true) }
    }

    /// Whether the rest must wait for the next sync.
    pub(crate) fn is_over(&self) -> bool {
        let (taken, [short, long]) = (self.begin.get().elapsed(), self.lengths);
        taken >= long || taken >= short && (self.is_waited_for)()
    }
}

/// How long an exchange with the kernel should take: it cannot be interrupted.
const EXCHANGE: Duration = Duration::from_millis(30);

/// How many operations an exchange has at least, and at most.
const OPERATIONS: [usize; 2] = [4, 4_096];

/// Kinds of operations by how long the kernel takes for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Additions of real servers: each is compared with those that were removed in the last two minutes.
    RealServers,
    /// Additions of allowed source ranges.
    NewRanges,
    /// Removals of allowed source ranges.
    OldRanges,
    /// Changes of kube-ipvs0 and its addresses.
    Links,
    /// Everything else.
    Others,
}

/// How many operations one exchange with the kernel has, by how long the last ones of their kind took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace([usize; 5]);

impl Default for Pace {
    fn default() -> Self {
        let mut pace = Self([256; 5]);
        *pace.operations_mut(Work::OldRanges) = 8;
        pace
    }
}

impl Pace {
    /// How many operations of a kind an exchange has.
    pub(crate) fn operations(mut self, work: Work) -> usize {
        *self.operations_mut(work)
    }

    fn operations_mut(&mut self, work: Work) -> &mut usize {
        let Self([real_servers, new_ranges, old_ranges, links, others]) = self;
        match work {
            Work::RealServers => real_servers,
            Work::NewRanges => new_ranges,
            Work::OldRanges => old_ranges,
            Work::Links => links,
            Work::Others => others,
        }
    }

    /// How many of these operations the next exchange has, and the work that limits it: that of which an
    /// exchange has least.
    pub(crate) fn next_exchange<T>(self, operations: &[T], work: impl Fn(&T) -> Work) -> (usize, Work) {
        let (mut most, mut counts) = (usize::MAX, Work::Others);
        for (before, operation) in operations.iter().enumerate() {
            let work = work(operation);
            let pace = self.operations(work);
            if pace <= before {
                return (before, counts);
            }
            if pace < most {
                (most, counts) = (pace, work);
            }
            if before + 1 >= most {
                return (most, counts);
            }
        }
        (operations.len(), counts)
    }

    /// How many operations a portion has, so that cheap Services do not wait long for each other.
    pub(crate) fn portion(self) -> usize {
        8 * self.operations(Work::RealServers)
    }

    /// Records how long an exchange of so many operations took.
    pub(crate) fn update(&mut self, work: Work, operations: usize, took: Duration) {
        let [least, most] = OPERATIONS;
        let pace = self.operations_mut(work);
        if took > EXCHANGE {
            let times = usize::try_from(took.as_millis() / EXCHANGE.as_millis()).unwrap_or(usize::MAX);
            *pace = (operations / times.saturating_add(1)).max(least);
        } else if 2 * operations >= *pace && took < EXCHANGE / 2 {
            *pace = (*pace * 2).min(most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchanges_become_smaller_where_the_kernel_is_slow_and_larger_where_it_is_fast() {
        let mut pace = Pace::default();
        let next = |pace: Pace, work: Work| pace.next_exchange(&[(); 10_000], |()| work).0;
        pace.update(Work::RealServers, 256, Duration::from_secs(3));
        assert_eq!(
            (next(pace, Work::RealServers), next(pace, Work::Others)),
            (4, 256),
            "only additions are slow"
        );
        for work in [Work::Others, Work::RealServers] {
            for _ in 0..20 {
                pace.update(work, next(pace, work), Duration::from_millis(1));
            }
            assert_eq!(next(pace, work), 4_096);
        }
        pace.update(Work::RealServers, 1_000, Duration::from_millis(59));
        assert_eq!((next(pace, Work::RealServers), next(pace, Work::Others)), (500, 4_096));
        pace.update(Work::RealServers, 200, Duration::from_millis(1));
        assert_eq!(next(pace, Work::RealServers), 500, "a small one proves nothing");

        let mixed: Vec<_> = [Work::Others; 600].into_iter().chain([Work::RealServers; 1_000]).collect();
        assert_eq!(pace.next_exchange(&mixed, |work| *work), (600, Work::Others));
        assert_eq!(pace.next_exchange(&mixed[400..], |work| *work), (500, Work::RealServers));
    }
}
