//! Limits the connections at one address, by closing older ones.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::task::{AbortHandle, JoinSet};

/// The connections at a time, at each address.
pub(super) const CLIENTS: usize = 256;

/// The connections that may wait for their request, however many others read their answers: a new one must not be
/// closed at once for the next.
const NEWCOMERS: usize = 16;

/// The connections at one address, the oldest first. They end with this.
///
/// Nobody may keep out the kubelet, which would restart the pod: when there are too many connections, an older one is
/// closed for the newest.
#[derive(Debug, Default)]
pub(super) struct Connections {
    tasks: JoinSet<()>,
    open: VecDeque<(AbortHandle, RequestReceived)>,
}

/// Whether the whole request has arrived.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestReceived(Arc<AtomicBool>);

impl RequestReceived {
    /// Records that the request has arrived.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Connections {
    /// Serves a new connection, closing another if there are too many.
    pub(super) fn admit<V: Future<Output = ()> + Send + 'static>(
        &mut self,
        visit: impl FnOnce(RequestReceived) -> V,
    ) {
        if self.open.len() >= CLIENTS
            && let Some((other, _)) = self.next_to_close().and_then(|other| self.open.remove(other))
        {
            other.abort();
        }
        let received = RequestReceived::default();
        let visit = self.tasks.spawn(visit(received.clone()));
        self.open.push_back((visit, received));
    }

    /// Waits until a connection has ended. `None` if there is none.
    pub(super) async fn next_ended(&mut self) -> Option<()> {
        self.tasks.join_next().await?.ok();
        self.open.retain(|(visit, _)| !visit.is_finished());
        Some(())
    }

    /// The oldest without a request; if these are few, the oldest that does not take its answer.
    fn next_to_close(&self) -> Option<usize> {
        let silent = self.open.iter().filter(|(_, received)| !received.get()).count();
        let has_asked = silent <= NEWCOMERS;
        self.open.iter().position(|(_, received)| received.get() == has_asked)
    }
}
