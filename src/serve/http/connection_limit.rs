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
pub(super) struct Visitors {
    visits: JoinSet<()>,
    here: VecDeque<(AbortHandle, Asked)>,
}

/// Whether a client has sent its whole request.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked(Arc<AtomicBool>);

impl Asked {
    /// Notes that the client has asked.
    pub(super) fn yes(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Visitors {
    /// Begins a visit, for which another one may have to end.
    pub(super) fn let_in<V: Future<Output = ()> + Send + 'static>(&mut self, visit: impl FnOnce(Asked) -> V) {
        if self.here.len() >= CLIENTS
            && let Some((other, _)) = self.who_gives_way().and_then(|other| self.here.remove(other))
        {
            other.abort();
        }
        let asked = Asked::default();
        let visit = self.visits.spawn(visit(asked.clone()));
        self.here.push_back((visit, asked));
    }

    /// Waits until a visit has ended, if there is any.
    pub(super) async fn leave(&mut self) -> Option<()> {
        self.visits.join_next().await?.ok();
        self.here.retain(|(visit, _)| !visit.is_finished());
        Some(())
    }

    /// The oldest that has not asked; if these are few, the oldest that has and does not take its answer.
    fn who_gives_way(&self) -> Option<usize> {
        let silent = self.here.iter().filter(|(_, asked)| !asked.get()).count();
        let has_asked = silent <= NEWCOMERS;
        self.here.iter().position(|(_, asked)| asked.get() == has_asked)
    }
}
