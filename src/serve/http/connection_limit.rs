//! Who is being served, and who has to give way.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::task::{AbortHandle, JoinSet};

/// How many clients are served at a time, at each address.
pub(super) const CLIENTS: usize = 256;

/// How many clients may be about to ask, however many others take their time with an answer: who came just
/// now must not give way at once to who comes next.
const NEWCOMERS: usize = 16;

/// The connections at one address, the oldest first. They end with this.
///
/// Nobody must keep out the kubelet, which would end the pod for it: when there are too many, an older one is closed
/// for the newest.
#[derive(Debug, Default)]
pub(super) struct Connections {
    tasks: JoinSet<()>,
    open: VecDeque<(AbortHandle, RequestReceived)>,
}

/// Whether a client has sent its whole request.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestReceived(Arc<AtomicBool>);

impl RequestReceived {
    /// Notes that the client has received.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Connections {
    /// Begins a visit, for which another one may have to end.
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

    /// Waits until a visit has ended, if there is any.
    pub(super) async fn next_ended(&mut self) -> Option<()> {
        self.tasks.join_next().await?.ok();
        self.open.retain(|(visit, _)| !visit.is_finished());
        Some(())
    }

    /// The oldest that has not asked; if these are few, the oldest that has and does not take its answer.
    fn next_to_close(&self) -> Option<usize> {
        let silent = self.open.iter().filter(|(_, received)| !received.get()).count();
        let has_asked = silent <= NEWCOMERS;
        self.open.iter().position(|(_, received)| received.get() == has_asked)
    }
}
