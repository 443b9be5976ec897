//! When a Service may have had no endpoint, so that a refusal is right.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Whether a Service has endpoints. The number is odd while it may have none.
#[derive(Debug, Default)]
pub(crate) struct Vacancy(AtomicU64);

impl Vacancy {
    /// From now on there may be no endpoint.
    pub(crate) fn begin(&self) {
        self.0.fetch_or(1, Relaxed);
    }

    /// From now on there is one.
    pub(crate) fn end(&self) {
        if !self.0.load(Relaxed).is_multiple_of(2) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn now(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Whether there was an endpoint all the time since [`Vacancy::now`] said this.
    pub(super) fn was_served_since(&self, then: u64) -> bool {
        then.is_multiple_of(2) && self.now() == then
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_right_if_there_was_no_endpoint_at_its_beginning_or_meanwhile() {
        let vacancy = Vacancy::default();
        let before = vacancy.now();
        assert!(vacancy.was_served_since(before));
        vacancy.begin();
        assert!(!vacancy.was_served_since(before));
        let meanwhile = vacancy.now();
        vacancy.begin();
        vacancy.end();
        vacancy.end();
        assert!(!vacancy.was_served_since(before) && !vacancy.was_served_since(meanwhile));
        assert!(vacancy.was_served_since(vacancy.now()));
    }
}
