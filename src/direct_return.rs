//! What direct return needs beside the kernel's state: which of the other nodes unpack what is sent to their
//! pods.
//!
//! A node says so at `/healthz`, once it has everything in place. Until then, and where no answer comes, its
//! pods are reached without a tunnel: so nodes with and without direct return, and of different versions,
//! work with each other.
//!
//! The network between nodes may drop what is tunnelled: [`Arrivals`] finds that out.

mod peers;

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    future, mem,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ipvs::{Family, TunnelKind};
use netfilter::tunnel::GUE_PORT;
use reconciler::{Observer, SyncEvent, Trigger};
use service::{Change, UnpackingPeers};
use tokio::{select, sync::watch};

use self::peers::Peers;
use crate::{finding::Finding, serve::packets::Packets};

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

/// How many packets in one round are enough to expect that some arrive.
const ENOUGH: u64 = 10;

/// After how many such rounds without one tunnelled packets are considered filtered.
const ROUNDS: u32 = 2;

/// What one family's tunnels have carried, round by round.
#[derive(Clone, Debug, Default)]
struct Carried {
    sent: u64,
    /// By the name of the node.
    received: BTreeMap<Arc<str>, u64>,
    rounds_without_arrival: u32,
}

/// Compares what this node sends through tunnels with what comes out of them at all others together. Where a
/// network, a cloud's or that of a plugin, filters the tunnel's protocol, nothing does.
#[derive(Debug, Default)]
struct Arrivals(BTreeMap<Family, Carried>);

impl Arrivals {
    /// Stores a round: how many packets this node has sent by now, and how many each node that it sends to
    /// has received. Returns whether the network is taken to filter them, from now on.
    fn record(&mut self, family: Family, sent: u64, received: BTreeMap<Arc<str>, u64>) -> bool {
        let carried = self.0.entry(family).or_default();
        let before = mem::replace(
            carried,
            Carried { sent, received, rounds_without_arrival: carried.rounds_without_arrival },
        );
        // A node that is new or gone says nothing.
        let arrived = |(name, packets): (&Arc<str>, &u64)| {
            before.received.get(name).is_some_and(|before| before != packets)
        };
        if carried.received.iter().any(arrived) {
            carried.rounds_without_arrival = 0;
        } else if !before.received.is_empty() && sent.saturating_sub(before.sent) >= ENOUGH {
            carried.rounds_without_arrival += 1;
        }
        carried.rounds_without_arrival == ROUNDS
    }
}

/// The families in which nothing that this node tunnels arrives. There its requests are masqueraded, until a
/// resync is requested or the daemon restarts. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct FilteredTunnels {
    kind: TunnelKind,
    families: Arc<Mutex<BTreeSet<Family>>>,
}

impl FilteredTunnels {
    /// No families, for tunnels of this kind.
    pub(crate) fn new(kind: TunnelKind) -> Self {
        Self { kind, families: Arc::default() }
    }

    fn families(&self) -> MutexGuard<'_, BTreeSet<Family>> {
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, family: Family) {
        self.families().insert(family);
    }

    pub(crate) fn clear(&self) {
        self.families().clear();
    }

    pub(crate) fn contains(&self, family: Family) -> bool {
        self.families().contains(&family)
    }

    /// A warning for each family.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        self.families().iter().map(|family| filtered(self.kind, *family)).collect()
    }
}

fn filtered(kind: TunnelKind, family: Family) -> Finding {
    let (protocol, or) = match (kind, family) {
        (TunnelKind::Gue, _) => (format!("UDP port {GUE_PORT}"), ""),
        (_, Family::V4) => ("IP protocol 4".to_owned(), " (or use --tunnel=gue)"),
        (_, Family::V6) => ("IP protocol 41".to_owned(), " (or use --tunnel=gue)"),
    };
    let what = format!(
        "no packet that this node tunnels to others ({family}) arrives there: the network seems to filter {protocol}. \
         Services that ask for direct return are served masqueraded"
    );
    Finding::warning(family, what)
        .remedy(format!("let the nodes send {protocol} to pods{or}, then kube-ipvs resync"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;

    /// Whether the network is taken to filter, after each round of packets sent and received by two nodes.
    fn after(rounds: &[(u64, [u64; 2])]) -> Vec<bool> {
        let mut arrivals = Arrivals::default();
        let each = rounds.iter().map(|(sent, [b, c])| {
            let received = BTreeMap::from([("node-b".into(), *b), ("node-c".into(), *c)]);
            arrivals.record(Family::V4, *sent, received)
        });
        each.collect()
    }

    #[test]
    fn where_nothing_arrives_in_two_rounds_the_network_filters_it() {
        let rounds = [(0, [7, 0]), (50, [7, 0]), (60, [7, 0]), (70, [7, 0])];
        assert_eq!(after(&rounds), [false, false, true, false]);
    }

    #[test]
    fn what_arrives_anywhere_is_enough() {
        let rounds = [(0, [0, 0]), (50, [0, 0]), (90, [0, 1]), (140, [0, 1]), (190, [0, 2])];
        assert_eq!(after(&rounds), [false; 5]);
    }

    #[test]
    fn few_packets_say_nothing_and_our_counter_may_begin_anew() {
        let rounds = [(100, [0, 0]), (109, [0, 0]), (3, [0, 0]), (13, [0, 0]), (14, [0, 0]), (30, [0, 0])];
        assert_eq!(after(&rounds), [false, false, false, false, false, true]);
    }

    #[test]
    fn each_family_that_is_filtered_is_a_warning_until_it_is_tried_again() {
        let filtered = FilteredTunnels::new(TunnelKind::Ipip);
        assert_eq!(filtered.findings(), []);
        filtered.clone().add(Family::V6);
        let [finding] = &filtered.findings()[..] else { panic!("{filtered:?}") };
        assert_eq!((finding.severity, finding.subject.as_str()), (Severity::Warning, "IPv6"));
        assert!(finding.remedy.as_ref().unwrap().contains("protocol 41"), "{finding}");
        filtered.clear();
        assert_eq!(filtered.findings(), []);
    }
}
