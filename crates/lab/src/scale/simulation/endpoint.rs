//! An endpoint: workers, and a queue of limited length before them.

use std::{collections::VecDeque, time::Duration};

/// What an endpoint can do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    /// How many requests it serves at once.
    pub(super) workers: u32,
    /// How long one takes, on average.
    pub(super) takes: Duration,
    /// How many wait; for TCP the queue of accepted connections, beyond which the kernel drops SYNs.
    pub(super) backlog: usize,
}

impl Capacity {
    /// An endpoint that serves so many requests in a second, with a worker for ten of them. So long a time's worth of
    /// requests may wait.
    pub(super) fn of_rate(rate: u32, backlog: Duration) -> Self {
        let workers = (rate / 10).max(1);
        let waiting = u128::from(rate) * backlog.as_millis() / 1_000;
        Self {
            workers,
            takes: Duration::from_secs(workers.into()) / rate.max(1),
            backlog: usize::try_from(waiting).unwrap_or(usize::MAX),
        }
    }
}

/// An endpoint at one time.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) capacity: Capacity,
    pub(super) is_silent: bool,
    busy: u32,
    queue: VecDeque<usize>,
}

/// What becomes of a request that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// It is served at once.
    Begins,
    /// It waits.
    Waits,
    /// Nothing: no answer comes.
    Dropped,
}

impl Endpoint {
    pub(super) fn new(capacity: Capacity) -> Self {
        Self { capacity, is_silent: false, busy: 0, queue: VecDeque::new() }
    }

    pub(super) fn enter(&mut self, request: usize) -> Entry {
        if self.is_silent {
            Entry::Dropped
        } else if self.busy < self.capacity.workers {
            self.busy += 1;
            Entry::Begins
        } else if self.queue.len() < self.capacity.backlog {
            self.queue.push_back(request);
            Entry::Waits
        } else {
            Entry::Dropped
        }
    }

    /// A worker is done. Returns the request that it serves next.
    pub(super) fn next(&mut self) -> Option<usize> {
        let may_serve = !self.is_silent && self.busy <= self.capacity.workers;
        let next = may_serve.then(|| self.queue.pop_front()).flatten();
        if next.is_none() {
            self.busy = self.busy.saturating_sub(1);
        }
        next
    }

    /// It answers no client any more, and forgets all that wait.
    pub(super) fn fall_silent(&mut self) {
        self.is_silent = true;
        self.queue.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_serves_its_queue_in_order_and_drops_what_does_not_fit() {
        let mut endpoint =
            Endpoint::new(Capacity { workers: 1, takes: Duration::from_millis(100), backlog: 2 });
        let entries = [7, 8, 9, 10].map(|request| endpoint.enter(request));
        assert_eq!(entries, [Entry::Begins, Entry::Waits, Entry::Waits, Entry::Dropped]);
        assert_eq!([endpoint.next(), endpoint.next(), endpoint.next()], [Some(8), Some(9), None]);
        assert_eq!(endpoint.enter(11), Entry::Begins);
        endpoint.fall_silent();
        assert_eq!(endpoint.enter(12), Entry::Dropped);
    }

    #[test]
    fn a_capacity_is_as_many_workers_as_its_rate_needs() {
        let capacity = Capacity::of_rate(505, Duration::from_millis(500));
        assert_eq!((capacity.workers, capacity.backlog), (50, 252));
        assert!((505.0 * capacity.takes.as_secs_f64() - 50.0).abs() < 1e-3);
    }
}
