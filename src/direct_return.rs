//! What direct return needs beside the kernel's state: which of the other nodes unpack what is sent to their pods.
//!
//! A node says so at `/healthz`, once it has everything in place. Until then, and where nobody answers so, its pods are
//! reached without a tunnel: so nodes with and without direct return, and of different versions, get on with each other.

mod arrivals;
mod ask;
mod asking;
mod packets;
mod peers_to_ask;
mod received;

use std::{collections::BTreeMap, convert::Infallible, future};

use service::{Change, UnpackingPeers};
use tokio::{select, sync::watch};

use self::asking::Asking;
pub(crate) use self::{
    packets::TunnelPackets,
    peers_to_ask::{PeersObserver, PeersToAsk},
    received::received,
};
use crate::node::advice::FilteredTunnels;

/// Asks the other nodes while any Service is answered directly.
pub(crate) struct DirectReturn<'a, F> {
    pub(crate) node_name: &'a str,
    /// The port at which nodes answer about their health; `None`, if others cannot ask there.
    pub(crate) health_port: Option<u16>,
    pub(crate) filtered: FilteredTunnels,
    pub(crate) packets: TunnelPackets,
    /// Takes the changes of what is known.
    pub(crate) send: F,
}

impl<F: Fn(Change)> DirectReturn<'_, F> {
    pub(crate) async fn follow(&self, mut peers: watch::Receiver<PeersToAsk>) -> Infallible {
        let send = &self.send;
        loop {
            if peers.wait_for(|peers| peers.direct_return).await.is_err() {
                return future::pending().await;
            }
            let asking = Asking::new(self.health_port, self.node_name, &self.filtered, &self.packets, send);
            select! {
                never = asking.follow(peers.clone()) => match never {},
                never = self.packets.keep_up_to_date() => match never {},
                () = ended(peers.clone()) => {}
            }
            self.filtered.clear();
            self.packets.clear();
            send(Change::UnpackingPeers(UnpackingPeers::new()));
            send(Change::TunnelledBefore(BTreeMap::new()));
        }
    }
}

async fn ended(mut peers: watch::Receiver<PeersToAsk>) {
    _ = peers.wait_for(|peers| !peers.direct_return).await;
}
