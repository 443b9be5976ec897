//! Records when the API server's watch and IPVS knew that the endpoints of a Service had gone or come.
//!
//! A connection that is refused before that is not lost: no endpoint could answer it then. How long that may take
//! is a separate question, so it is measured separately, with the API server's share.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _};
use ipvs::{Ipvs as _, KernelIpvs, Protocol, ServiceAddress};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api,
    runtime::{WatchStreamExt as _, watcher},
};
use serde::Serialize;

use crate::stage::{Stage, objects::NAMESPACE};

/// The interval between two reads of IPVS. The times are no more precise than this.
const READ_EVERY: Duration = Duration::from_millis(20);

/// Sees each turn of [`super::churn::EndpointToggle`].
#[derive(Clone, Debug)]
pub(super) struct Witness {
    since: Instant,
    turns: Arc<Mutex<Vec<Turn>>>,
}

/// The endpoints have gone, or have come. Times are seconds since the witness began.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Turn {
    /// Whether there are none from now on.
    pub(super) out: bool,
    /// When the API server was asked to write it,
    pub(super) asked: f64,
    /// when its watch delivered it,
    pub(super) delivered: Option<f64>,
    /// and when IPVS had it.
    pub(super) programmed: Option<f64>,
}

impl Turn {
    /// How long the API server took to deliver it.
    pub(super) fn until_delivered(self) -> Option<f64> {
        self.delivered.map(|delivered| delivered - self.asked)
    }

    /// How long IPVS took from then on. The daemon may have received it earlier than the witness.
    pub(super) fn until_programmed(self) -> Option<f64> {
        Some((self.programmed? - self.delivered?).max(0.0))
    }
}

impl Witness {
    pub(super) fn new(since: Instant) -> Self {
        Self { since, turns: Arc::default() }
    }

    /// From now on the endpoints are to go, or to come.
    pub(super) fn expect(&self, out: bool) {
        let asked = self.now();
        self.turns().push(Turn { out, asked, delivered: None, programmed: None });
    }

    /// For how long both have known of the last turn; at the beginning, when nothing has turned, since
    /// then.
    pub(super) fn settled_since(&self) -> Option<Duration> {
        let last = self.turns().last().copied();
        let settled = last.map_or(Some(0.0), |turn| Some(turn.delivered?.max(turn.programmed?)))?;
        Some(Duration::from_secs_f64((self.now() - settled).max(0.0)))
    }

    pub(super) fn seen(&self) -> Vec<Turn> {
        self.turns().clone()
    }

    /// Follows the slice of this name at the API server, until `stop` is set.
    pub(super) fn watch(&self, stage: &Stage, slice: &str, stop: &AtomicBool) {
        let slices = Api::<EndpointSlice>::namespaced(stage.server.admin_client(), NAMESPACE);
        let asked = watcher::Config::default().fields(&format!("metadata.name={slice}"));
        let stopped = async {
            while !stop.load(Relaxed) {
                tokio::time::sleep(READ_EVERY).await;
            }
        };
        let delivered =
            watcher(slices, asked).default_backoff().applied_objects().take_until(Box::pin(stopped));
        // A watch that breaks is begun anew; what was missed meanwhile is delivered then.
        stage.server.block_on(delivered.into_stream().for_each(async |slice| {
            if let Ok(EndpointSlice { endpoints, .. }) = slice {
                self.note(endpoints.is_empty(), |turn| &mut turn.delivered);
            }
        }));
    }

    /// Reads the real servers of IPVS at an address, until `stop` is set.
    pub(super) fn read(&self, stage: &Stage, at: SocketAddr, stop: &Arc<AtomicBool>) -> Result<()> {
        let (witness, stop) = (self.clone(), Arc::clone(stop));
        let mut kernel = stage.lab.node.inside(KernelIpvs::open)??;
        let at = ServiceAddress { protocol: Protocol::Tcp, ip: at.ip(), port: at.port() };
        thread::spawn(move || {
            while !stop.load(Relaxed) {
                if witness.turns().last().is_some_and(|turn| turn.programmed.is_none())
                    && let Ok(real_servers) = kernel.real_servers(at.into())
                {
                    let is_out = real_servers.iter().all(|real| real.config.weight == 0);
                    witness.note(is_out, |turn| &mut turn.programmed);
                }
                thread::sleep(READ_EVERY);
            }
        });
        Ok(())
    }

    fn note(&self, out: bool, what: impl Fn(&mut Turn) -> &mut Option<f64>) {
        let now = self.now();
        if let Some(turn) = self.turns().last_mut().filter(|turn| turn.out == out) {
            what(turn).get_or_insert(now);
        }
    }

    fn now(&self) -> f64 {
        self.since.elapsed().as_secs_f64()
    }

    fn turns(&self) -> MutexGuard<'_, Vec<Turn>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_belongs_to_the_last_turn_if_it_says_the_same() {
        let witness = Witness::new(Instant::now());
        witness.note(true, |turn| &mut turn.delivered);
        witness.expect(true);
        witness.note(false, |turn| &mut turn.programmed);
        assert!(witness.seen()[0].programmed.is_none(), "what was there before");
        assert!(witness.settled_since().is_none());
        witness.note(true, |turn| &mut turn.delivered);
        let first = witness.seen()[0].delivered;
        witness.note(true, |turn| &mut turn.delivered);
        assert!(first.is_some() && witness.seen()[0].delivered == first, "the first time counts");
        assert!(witness.settled_since().is_none(), "IPVS has not");
        witness.note(true, |turn| &mut turn.programmed);
        assert!(witness.settled_since().is_some());
    }
}
