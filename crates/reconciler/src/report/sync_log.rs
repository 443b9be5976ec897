//! The log of syncs: repairs, failures, and what takes the writer thread long. Nothing here reads a clock:
//! the caller passes the time.

use std::{
    collections::HashSet,
    hash::{BuildHasher as _, RandomState},
    time::{Duration, Instant},
};

use tracing::{debug, info, warn};
use watcher::Operation;

use crate::{BusyWith, SyncReport, SyncStats, Trigger, sync::PlanOutcome};

/// The problem that no NodePort is served. Its cause is in the addresses of this node,
/// `--nodeport-addresses`, `--bind-address` or the Node.
pub(crate) const NO_NODE_PORTS: &str =
    "no NodePort is served: this node has no address, or none that --nodeport-addresses selects";

/// Logs syncs. A failure that lasts is logged once and not at every retry.
#[derive(Debug, Default)]
pub(crate) struct SyncLog {
    /// The digests of the operations that have failed.
    logged: HashSet<u64>,
    digests: RandomState,
    no_node_ports: bool,
}

impl SyncLog {
    /// Logs a sync.
    pub(crate) fn log_sync(&mut self, report: &SyncReport, stats: &SyncStats, outcome: &PlanOutcome) {
        self.log_failures(outcome);
        for (operation, connections) in &outcome.cut_off {
            info!(
                operation = %operation.kind(),
                "drain timeout, {connections} connections cut off: {operation}"
            );
        }
        let SyncReport { trigger, full, done, failed, .. } = report;
        let took = report.took.as_secs_f64();
        let repairs: usize = stats.repairs.values().sum();
        if repairs > 0 {
            warn!(?trigger, repairs, done, failed, took, "repaired what something else had changed");
            log_repairs(&report.repairs, repairs);
        } else if *failed > 0 && matches!(trigger, Trigger::Start | Trigger::Forced) {
            warn!(?trigger, done, failed, took, "synced with failures");
        } else if matches!(trigger, Trigger::Start | Trigger::Forced) {
            info!(?trigger, done, failed, took, "synced");
        } else {
            debug!(?trigger, full, done, failed, took, "synced");
        }
    }

    /// Whether an operation failed in the last sync too, and so was logged before.
    pub(crate) fn has_logged(&self, failed: &Operation) -> bool {
        self.logged.contains(&self.digests.hash_one(failed))
    }

    /// Logs when no NodePort is served any more, and when some are served again.
    pub(crate) fn log_node_ports(&mut self, nowhere: bool) {
        match (self.no_node_ports, nowhere) {
            (false, true) => warn!("{NO_NODE_PORTS}"),
            (true, false) => info!("NodePorts are served again, or no Service has one"),
            _ => {}
        }
        self.no_node_ports = nowhere;
    }

    fn log_failures(&mut self, outcome: &PlanOutcome) {
        if let Some(cause) = &outcome.unread {
            warn!("{cause}; trying again soon");
        }
        let (mut still, mut unlisted) = (HashSet::new(), 0usize);
        for (operation, cause) in &outcome.failures {
            let digest = self.digests.hash_one(operation);
            if self.logged.contains(&digest) {
                debug!(operation = %operation.kind(), "still cannot {operation}: {cause}");
            } else if still.len() < SyncReport::MOST_FAILURES {
                warn!(operation = %operation.kind(), "cannot {operation}: {cause}");
            } else {
                unlisted += 1;
            }
            still.insert(digest);
        }
        if unlisted > 0 {
            warn!("and {unlisted} more operations failed");
        }
        self.logged = still;
    }
}

/// Logs the repairs by name, as many as a report has, and how many others there are.
fn log_repairs(named: &[String], all: usize) {
    for repair in named {
        warn!("repaired: {repair}");
    }
    match all.saturating_sub(named.len()) {
        0 => {}
        more => warn!("and {more} more repairs"),
    }
}

/// Remembers what the writer thread is busy with, and logs it once it has been for a while.
#[derive(Debug, Default)]
pub(crate) struct BusyLog {
    now: Option<(BusyWith, Instant)>,
    logged: bool,
}

/// Work that takes less is not worth a line.
const LONG: Duration = Duration::from_secs(2);

impl BusyLog {
    /// Records what the last sync had no time for.
    pub(crate) fn update(&mut self, busy: Option<BusyWith>, now: Instant) {
        let since = self.now.as_ref().map_or(now, |(_, since)| *since);
        let age = now.saturating_duration_since(since);
        match &busy {
            Some(busy) if age >= LONG && !self.logged => {
                warn!(
                    left = busy.left,
                    object = busy.service.as_ref().map(tracing::field::display),
                    "busy with {}: other Services are served in between",
                    busy.service.as_ref().map_or_else(|| "deleted Services".into(), ToString::to_string),
                );
                self.logged = true;
            }
            None if self.logged => {
                info!(took = age.as_secs_f64(), "no longer busy: every change is in the kernel");
                self.logged = false;
            }
            _ => {}
        }
        self.now = busy.map(|busy| (busy, since));
    }

    /// The work that keeps the writer thread busy.
    pub(crate) fn current(&self, now: Instant) -> Option<BusyWith> {
        let (busy, since) = self.now.clone()?;
        Some(BusyWith { age: now.saturating_duration_since(since), ..busy })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use service::ObjectName;
    use testkit::log::logged;

    use super::*;
    use crate::RepairKind;

    /// What is logged of a periodic sync that repaired so many VIPs.
    fn repaired(count: usize) -> Vec<String> {
        let repairs =
            (1..=count.min(SyncReport::MOST_REPAIRS)).map(|number| format!("bind 10.96.0.{number}"));
        let report =
            SyncReport { done: count, repairs: repairs.collect(), ..SyncReport::empty(Trigger::Period) };
        let stats = SyncStats { repairs: BTreeMap::from([(RepairKind::Vip, count)]), ..SyncStats::default() };
        logged(|| SyncLog::default().log_sync(&report, &stats, &PlanOutcome::default())).unwrap()
    }

    #[test]
    fn every_repair_of_a_sync_is_a_line() {
        assert_eq!(
            repaired(2),
            [
                "WARN repaired what something else had changed trigger=Period repairs=2 done=2 failed=0 took=0.0",
                "WARN repaired: bind 10.96.0.1",
                "WARN repaired: bind 10.96.0.2",
            ]
        );
    }

    #[test]
    fn of_many_repairs_the_first_are_named_and_the_others_counted() {
        let lines = repaired(SyncReport::MOST_REPAIRS + 980);
        assert_eq!(lines.len(), SyncReport::MOST_REPAIRS + 2, "{lines:#?}");
        assert!(lines[0].contains(" repairs=1000 "), "{}", lines[0]);
        assert_eq!(lines.last().unwrap(), "WARN and 980 more repairs");
    }

    #[test]
    fn a_sync_without_a_repair_logs_no_warning() {
        let report = SyncReport { done: 1, ..SyncReport::empty(Trigger::Forced) };
        let lines =
            logged(|| SyncLog::default().log_sync(&report, &SyncStats::default(), &PlanOutcome::default()));
        assert_eq!(lines.unwrap(), ["INFO synced trigger=Forced done=1 failed=0 took=0.0"]);
    }

    #[test]
    fn what_takes_long_is_logged_once_and_so_is_its_end() {
        let begin = Instant::now();
        let mut log = BusyLog::default();
        let service = Some(ObjectName::new("shop", "web"));
        let busy = |left| Some(BusyWith { service: service.clone(), left, age: Duration::ZERO });
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
                "INFO no longer busy: every change is in the kernel took=12.0",
            ]
        );
        assert_eq!(log.current(begin), None);
    }
}
