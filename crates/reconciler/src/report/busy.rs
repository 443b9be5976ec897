//! What takes the writer thread so long that it is done in parts. Nothing here reads a clock: the caller passes the time.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use service::{ObjectName, seconds};
use tracing::{info, warn};

/// Changes that take so long that other Services are served in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Busy {
    /// The Service that has the most of them, if it still exists.
    pub(crate) service: Option<ObjectName>,
    /// How many virtual servers, VIPs and elements of our tables are left.
    pub(crate) left: usize,
}

/// What the writer thread is busy with, and for how long it has been.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyWith {
    /// The Service that has the most of what is left, if it still exists.
    pub service: Option<ObjectName>,
    /// How many virtual servers, VIPs and elements of our tables are left.
    pub left: usize,
    /// For how long; in JSON, seconds.
    #[serde(rename = "for", with = "seconds")]
    pub age: Duration,
}

/// Remembers what the writer thread is busy with, and logs it once it has been for a while.
#[derive(Debug, Default)]
pub(crate) struct BusyLog {
    now: Option<(Busy, Instant)>,
    logged: bool,
}

/// What takes less is not worth a line.
const LONG: Duration = Duration::from_secs(2);

impl BusyLog {
    /// Records what the last sync had no time for.
    pub(crate) fn update(&mut self, busy: Option<Busy>, now: Instant) {
        let since = self.now.as_ref().map_or(now, |(_, since)| *since);
        let age = now.saturating_duration_since(since);
        match &busy {
            Some(busy) if age >= LONG && !self.logged => {
                warn!(
                    left = busy.left,
                    "busy with {}: other Services are served in between",
                    busy.service.as_ref().map_or_else(|| "deleted Services".into(), ToString::to_string),
                );
                self.logged = true;
            }
            None if self.logged => {
                info!(took = ?age, "no longer busy: every change is in the kernel");
                self.logged = false;
            }
            _ => {}
        }
        self.now = busy.map(|busy| (busy, since));
    }

    /// What the writer thread is busy with.
    pub(crate) fn current(&self, now: Instant) -> Option<BusyWith> {
        let (Busy { service, left }, since) = self.now.clone()?;
        Some(BusyWith { service, left, age: now.saturating_duration_since(since) })
    }
}

#[cfg(test)]
mod tests {
    use testkit::log::logged;

    use super::*;

    #[test]
    fn what_takes_long_is_logged_once_and_so_is_its_end() {
        let begin = Instant::now();
        let mut log = BusyLog::default();
        let busy = |left| Some(Busy { service: Some(ObjectName::new("shop", "web")), left });
        let lines = logged(|| {
            for seconds in 0..10 {
                log.update(busy(100), begin + Duration::from_secs(seconds));
            }
            let current = log.current(begin + Duration::from_secs(10)).unwrap();
            assert_eq!((current.left, current.age), (100, Duration::from_secs(10)));
            log.update(None, begin + Duration::from_secs(12));
            log.update(busy(1), begin + Duration::from_secs(20));
            log.update(None, begin + Duration::from_secs(21));
        });
        assert_eq!(
            lines.unwrap(),
            [
                "WARN busy with shop/web: other Services are served in between left=100",
                "INFO no longer busy: every change is in the kernel took=12s",
            ]
        );
        assert_eq!(log.current(begin), None);
    }
}
