//! Which other nodes the desired state wishes to know something of.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use reconciler::{Observer, SyncEvent, Trigger};
use tokio::sync::watch;

/// The nodes to ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeersToAsk {
    /// Whether this node unpacks what others send to its pods, or they unpack what it sends.
    pub(super) direct_return: bool,
    /// The nodes with endpoints of Services that are answered directly, with their addresses.
    pub(super) peers: Arc<BTreeMap<Arc<str>, Vec<IpAddr>>>,
    /// How often somebody has asked for a full sync: what was given up is tried again then.
    pub(super) forced_syncs: u64,
}

/// Derives them from each sync.
pub(crate) struct PeersObserver(watch::Sender<PeersToAsk>);

impl PeersObserver {
    /// The observer, and where they can be read.
    pub(crate) fn new() -> (Self, watch::Receiver<PeersToAsk>) {
        let (sender, receiver) = watch::channel(PeersToAsk::default());
        (Self(sender), receiver)
    }
}

impl Observer for PeersObserver {
    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        let direct_return = !sync.state.unpacking().is_empty();
        let peers = sync.state.peers_with_endpoints();
        let forced = u64::from(sync.report.trigger == Trigger::Forced);
        self.0.send_if_modified(|known| {
            let same =
                known.direct_return == direct_return && Arc::ptr_eq(&known.peers, peers) && forced == 0;
            if !same {
                let forced_syncs = known.forced_syncs + forced;
                *known = PeersToAsk { direct_return, peers: peers.clone(), forced_syncs };
            }
            !same
        });
    }
}
