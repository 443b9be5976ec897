//! How many Events about Services this node may send: whoever may write Services could have every node send
//! thousands.
//!
//! Other nodes send others first, so that all of them together soon have said everything ([`super::topics`]).

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// At most so many ...
pub(super) const MOST: usize = 10;
/// ... within this time.
pub(super) const WITHIN: Duration = Duration::from_secs(300);

/// When the last ones were sent.
#[derive(Debug, Default)]
pub(super) struct RateLimit(VecDeque<Instant>);

impl RateLimit {
    /// Notes that one is sent now.
    pub(super) fn record(&mut self) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(Instant::now());
    }

    /// When the next one may be sent; `None` if it may be at any time.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.front().filter(|_| self.0.len() == MOST).map(|sent| *sent + WITHIN)
    }

    /// Whether one may be sent now.
    pub(super) fn allows_one(&self) -> bool {
        self.next().is_none_or(|next| next <= Instant::now())
    }
}
