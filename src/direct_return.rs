//! What direct return needs beside the kernel's state: which of the other nodes unpack what is sent to their
//! pods.
//!
//! A node says so at `/healthz`, once it has everything in place. Until then, and where no answer comes, its
//! pods are reached without a tunnel: so nodes with and without direct return, and of different versions,
//! work with each other.

mod peers;
mod tunnels;

use std::{collections::BTreeMap, convert::Infallible, future, net::IpAddr, sync::Arc};

use reconciler::{Observer, SyncEvent, Trigger};
use service::{Change, UnpackingPeers};
use tokio::{select, sync::watch};

use self::peers::Peers;
pub(crate) use self::tunnels::FilteredTunnels;
use crate::serve::packets::Packets;

/// Asks the other nodes while any Service is answered directly.
pub(crate) struct DirectReturn<'a, F> {
    pub(crate) node_name: &'a str,
    /// The port at which nodes answer about their health; `None`, if others cannot ask there.
    pub(crate) health_port: Option<u16>,
    pub(crate) filtered: FilteredTunnels,
    pub(crate) packets: Packets,
    /// Receives the changes.
    pub(crate) send: F,
}

impl<F: Fn(Change)> DirectReturn<'_, F> {
    pub(crate) async fn follow(&self, mut peers: watch::Receiver<PeersToAsk>) -> Infallible {
        loop {
            if peers.wait_for(|peers| peers.direct_return).await.is_err() {
                return future::pending().await;
            }
            select! {
                never = Peers::new(self).follow(peers.clone()) => match never {},
                () = ended(peers.clone()) => {}
            }
            self.filtered.clear();
            (self.send)(Change::UnpackingPeers(UnpackingPeers::new()));
            (self.send)(Change::TunnelledBefore(BTreeMap::new()));
        }
    }
}

async fn ended(mut peers: watch::Receiver<PeersToAsk>) {
    _ = peers.wait_for(|peers| !peers.direct_return).await;
}

/// The nodes to ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeersToAsk {
    /// Whether this node unpacks what others send to its pods, or they unpack what it sends.
    direct_return: bool,
    /// The nodes with endpoints of Services that are answered directly, with their addresses.
    peers: Arc<BTreeMap<Arc<str>, Vec<IpAddr>>>,
    /// How many resyncs were requested: what was given up is tried again then.
    forced_syncs: u64,
}

/// Derives the nodes to ask from each sync.
pub(crate) struct PeersObserver(watch::Sender<PeersToAsk>);

impl PeersObserver {
    /// The observer, and the receiver of the nodes to ask.
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
