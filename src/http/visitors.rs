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

/// The connections at one address, the oldest first. They end with this.
///
/// Whoever opens connections and says nothing must not keep out the kubelet, which would end the pod for it: when
/// there are too many, the oldest that has not asked yet is closed for the newest.
#[derive(Debug, Default)]
pub(super) struct Visitors {
    visits: JoinSet<()>,
    here: VecDeque<(AbortHandle, Asked)>,
}

/// Whether a client has sent its whole request.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked(Arc<AtomicBool>);

impl Asked {
    /// It has.
    pub(super) fn yes(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Visitors {
    /// Whether one more can be let in: all that are here may have asked and be taking their answers.
    pub(super) fn have_room(&self) -> bool {
        self.here.len() < CLIENTS || self.first_silent().is_some()
    }

    /// Begins a visit, for which another one may have to end.
    pub(super) fn let_in<V: Future<Output = ()> + Send + 'static>(&mut self, visit: impl FnOnce(Asked) -> V) {
        if self.here.len() >= CLIENTS
            && let Some((silent, _)) = self.first_silent().and_then(|first| self.here.remove(first))
        {
            silent.abort();
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

    fn first_silent(&self) -> Option<usize> {
        self.here.iter().position(|(_, asked)| !asked.get())
    }
}
