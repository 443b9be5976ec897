//! What is logged about syncs.

use std::collections::HashSet;

use tracing::{debug, info, warn};
use watcher::Operation;

use crate::{SyncReport, Trigger, sync::PlanOutcome};

/// The problem that no NodePort is served. Its cause is in the addresses of this node,
/// `--nodeport-addresses`, `--bind-address` or the Node.
pub(crate) const NO_NODE_PORTS: &str =
    "no NodePort is served: this node has no address, or none that --nodeport-addresses selects";

/// Logs syncs. A failure that lasts is logged once and not at every retry.
#[derive(Debug, Default)]
pub(crate) struct SyncLog {
    logged: HashSet<Operation>,
    no_node_ports: bool,
}

impl SyncLog {
    /// Logs a sync.
    pub(crate) fn log_sync(&mut self, report: &SyncReport, outcome: &PlanOutcome) {
        self.log_failures(outcome);
        for (operation, connections) in &outcome.cut_off {
            info!("the time to drain is over, connections cut off: {connections}: {operation}");
        }
        let SyncReport { trigger, full, done, failed, took, .. } = report;
        if let Some(first) = report.first_repair() {
            warn!(?trigger, done, failed, ?took, "repaired what something else had changed; first: {first}");
        } else if *failed > 0 && matches!(trigger, Trigger::Start | Trigger::Forced) {
            warn!(?trigger, done, failed, ?took, "synced in part");
        } else if matches!(trigger, Trigger::Start | Trigger::Forced) {
            info!(?trigger, done, failed, ?took, "synced");
        } else {
            debug!(?trigger, full, done, failed, ?took, "synced");
        }
    }

    /// Logs when no NodePort is served any more, and when some are served again.
    pub(crate) fn log_node_ports(&mut self, nowhere: bool) {
        match (self.no_node_ports, nowhere) {
            (false, true) => warn!("{NO_NODE_PORTS}"),
            (true, false) => info!("NodePorts are served, or wanted by nobody any more"),
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
            if self.logged.contains(operation) {
                debug!("still cannot {operation}: {cause}");
            } else if still.len() < SyncReport::MOST_FAILURES {
                warn!("cannot {operation}: {cause}");
            } else {
                unlisted += 1;
            }
            still.insert(operation.clone());
        }
        if unlisted > 0 {
            warn!("and {unlisted} more operations failed");
        }
        self.logged = still;
    }
}
