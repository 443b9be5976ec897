//! Serves `/healthz` (should traffic come to this node), `/livez` (does the proxy work) and `/readyz` (does it work,
//! and has it programmed everything at least once). kube-proxy has the first two.
//!
//! The proxy works unless a change has been waiting for twice the sync period. A refused operation does not count:
//! for one operation of one Service the node would leave every load balancer and the pod be killed, and be no better
//! afterwards. Refused operations are retried, and are in `kube-ipvs status`, the log and the metrics. `/readyz` alone
//! waits for them once, at the start: a roll-out ends at a node where something cannot be programmed. It is also not
//! ready from the moment at which virtual servers are found to be lost until they are there again.

mod answer;
mod progress;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ::http::{Method, StatusCode};
use ipvs::{Family, TunnelKind};
use k8s_openapi::jiff::Timestamp;
use reconciler::{ChangeEvent, Observer, Programmed, SyncEvent};
use service::{Change, Unpacking};
use tokio::time::Instant;

use super::{
    http::{Page, Pages, not_found, page},
    metrics::HealthAnswers,
};
pub(crate) use answer::DirectReturnAnswer;
use answer::{FamilyStatus, GoTime, HealthAnswer, HealthPage, received};
use progress::Progress;

/// The health of the proxy. Clones share it.
#[derive(Clone, Debug)]
pub struct Health(Arc<HealthState>);

#[derive(Debug)]
struct HealthState {
    families: BTreeSet<Family>,
    /// How long a change may wait.
    patience: Duration,
    progress: Mutex<Progress>,
    node_eligible: AtomicBool,
    /// What this node unpacks, once that is decided.
    unpacking: Mutex<Option<Unpacking>>,
    answers: HealthAnswers,
}

/// What to assume about the Node before its source has sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownNode {
    /// The Node may be deleted: load balancers should not send traffic here.
    NotEligible,
    /// Manifests need not have a Node, and no autoscaler takes it away.
    Eligible,
}

impl Health {
    /// The health of a starting proxy.
    pub fn new(families: BTreeSet<Family>, sync_period: Duration, node: UnknownNode) -> Self {
        Self(Arc::new(HealthState {
            families,
            patience: sync_period.saturating_mul(2),
            progress: Mutex::default(),
            node_eligible: AtomicBool::new(node == UnknownNode::Eligible),
            unpacking: Mutex::default(),
            answers: HealthAnswers::default(),
        }))
    }

    /// Takes note of a change. Call it before the change goes to the writer thread.
    pub fn on_change(&self, change: &Change) {
        self.progress().sent(Instant::now());
        match change {
            Change::Node(Some(node)) => self.0.node_eligible.store(!node.leaving, Ordering::Relaxed),
            Change::Node(None) => self.0.node_eligible.store(false, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Whether the proxy works.
    pub fn is_healthy(&self) -> bool {
        let waits_since = self.progress().waits_since();
        waits_since.is_none_or(|since| since.elapsed() < self.0.patience)
    }

    /// The counts of responses so far.
    pub fn answers(&self) -> &HealthAnswers {
        &self.0.answers
    }

    /// Locks the progress. A poisoned lock is still valid: no holder can panic, and each value is complete at any
    /// moment.
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.0.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unpacking(&self) -> MutexGuard<'_, Option<Unpacking>> {
        self.0.unpacking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, question: HealthPage) -> Page {
        let now = GoTime(Some(Timestamp::now()));
        let ready = question != HealthPage::Readyz || self.progress().has_programmed();
        let healthy = ready && self.is_healthy();
        let updated = self.progress().updated();
        let node_eligible =
            (question == HealthPage::Healthz).then(|| self.0.node_eligible.load(Ordering::Relaxed));
        let ok = healthy && node_eligible != Some(false);
        let status = updated.map(|last_updated| FamilyStatus { last_updated, healthy });
        let unpacking = self.unpacking().clone();
        let gue = unpacking.as_ref().is_some_and(|unpacking| unpacking.gue);
        let unpacks = unpacking.map(|unpacking| unpacking.families);
        let families = unpacks.iter().flatten();
        let received = families.filter_map(|family| Some((*family, received(*family)?))).collect();
        let answer = HealthAnswer {
            // A working proxy is up to date, however long ago the last change was.
            last_updated: if ok { now } else { updated.unwrap_or(GoTime(None)) },
            current_time: now,
            node_eligible,
            healthy,
            status: self.0.families.iter().filter_map(|family| Some((*family, status?))).collect(),
            direct_return: DirectReturnAnswer { unpacks, gue, received },
        };
        match question {
            HealthPage::Healthz => self.0.answers.healthz.count(ok),
            HealthPage::Livez => self.0.answers.livez.count(ok),
            // kube-proxy's metrics have no name for it.
            HealthPage::Readyz => {}
        }
        let status = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        page(status, "application/json", serde_json::to_string(&answer).unwrap_or_default())
    }
}

impl Observer for Health {
    fn on_change_applied(&mut self, event: ChangeEvent) {
        self.progress().taken_in(event.changes, event.waits, Instant::now());
    }

    fn on_loss(&mut self) {
        self.progress().lost();
    }

    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        if sync.state.unpacking().is_empty() && sync.stats.programmed.is_some() {
            *self.unpacking() = Some(Unpacking::default());
        } else if let Some(Programmed { unpacks, .. }) = &sync.stats.programmed
            // While that is in doubt, the last answer holds; and as long as the possible senders are not known, none
            // may.
            && sync.state.knows_peers()
        {
            let gue = sync.state.options().tunnel.kind == TunnelKind::Gue;
            *self.unpacking() = Some(Unpacking { families: unpacks.clone(), gue });
        }
        let SyncEvent { report, stats, complete, .. } = *sync;
        let (undone, lost) = (report.failed + report.left, stats.lost_virtual_servers > 0);
        self.progress().synced(complete, undone, lost, Instant::now(), Timestamp::now());
    }
}

impl Pages for Health {
    /// Any method is answered, as in kube-proxy.
    fn page(&self, _: &Method, path: &str) -> Page {
        match path {
            "/healthz" => self.answer(HealthPage::Healthz),
            "/livez" => self.answer(HealthPage::Livez),
            "/readyz" => self.answer(HealthPage::Readyz),
            _ => not_found(),
        }
    }
}

#[cfg(test)]
mod tests;
