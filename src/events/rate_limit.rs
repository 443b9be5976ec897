//! Limits this node's Events about Services: otherwise anyone who may write Services could have every node send
//! thousands.
//!
//! Nodes send in different orders, so that together they soon have sent all ([`super::topics`]).

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// At most so many ...
pub(super) const MOST: usize = 10;
/// ... within this time.
pub(super) const WITHIN: Duration = Duration::from_secs(300);

/// The times of the last Events.
#[derive(Debug, Default)]
pub(super) struct RateLimit(VecDeque<Instant>);

impl RateLimit {
    /// Records that one is sent now.
    pub(super) fn record(&mut self) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(Instant::now());
    }

    /// When the next one may be sent; `None` means now.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.front().filter(|_| self.0.len() == MOST).map(|sent| *sent + WITHIN)
    }

    /// Whether one may be sent now.
    pub(super) fn allows_one(&self) -> bool {
        self.next().is_none_or(|next| next <= Instant::now())
    }
}
