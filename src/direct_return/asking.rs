//! Asking all nodes that have endpoints, again and again.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    mem,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use ipvs::Family;
use service::{Change, Unpacking, UnpackingPeers};
use tokio::{
    select,
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::info;

use super::{PeersToAsk, TunnelPackets, arrivals::Arrivals, ask::ask_each};
use crate::{node::advice::FilteredTunnels, serve::health::DirectReturnAnswer};

/// How often each node is asked at most. One that is replaced by another program says so.
const PERIOD: Duration = Duration::from_secs(10);
/// All nodes ask all others: so many more make the period longer that none answers more than fifty times a second.
const PERIOD_PER_PEER: Duration = Duration::from_millis(20);
/// For how long what a node has said holds while it does not answer: its kernel goes on when its daemon is replaced.
const HOLDS: Duration = Duration::from_secs(3 * 60);

type Answers = BTreeMap<Arc<str>, DirectReturnAnswer>;

/// What is known of the other nodes, and who is told.
pub(super) struct Asking<'a, F> {
    port: Option<u16>,
    /// The nodes are asked beginning with the one behind this one, so that not all ask the same one first.
    node_name: &'a str,
    filtered: &'a FilteredTunnels,
    packets: &'a TunnelPackets,
    send: F,
    begun: Instant,
    /// What each node said last, and when.
    known: BTreeMap<Arc<str>, (Unpacking, Instant)>,
    /// What was sent last.
    sent: UnpackingPeers,
    arrivals: Arrivals,
}

impl<'a, F: Fn(Change)> Asking<'a, F> {
    /// Asks at this port, if nodes can be asked.
    pub(super) fn new(
        port: Option<u16>,
        node_name: &'a str,
        filtered: &'a FilteredTunnels,
        packets: &'a TunnelPackets,
        send: F,
    ) -> Self {
        Self {
            port,
            node_name,
            filtered,
            packets,
            send,
            begun: Instant::now(),
            known: BTreeMap::new(),
            sent: UnpackingPeers::new(),
            arrivals: Arrivals::default(),
        }
    }

    /// Asks all nodes in rounds, and between them those of which nothing is known.
    pub(super) async fn follow(mut self, mut wanted: watch::Receiver<PeersToAsk>) -> Infallible {
        let mut forced_before = wanted.borrow().forced_syncs;
        let mut next_round = Instant::now();
        let mut kernel_holds = true;
        loop {
            let PeersToAsk { peers, forced_syncs, .. } = wanted.borrow_and_update().clone();
            if mem::replace(&mut forced_before, forced_syncs) != forced_syncs {
                self.arrivals = Arrivals::default();
                self.filtered.clear();
                next_round = Instant::now();
            }
            if next_round <= Instant::now() {
                next_round = Instant::now() + period(peers.len());
                let answers = self.ask(&peers, |_| true).await;
                self.forget_silent(holds(peers.len()));
                for family in Family::BOTH {
                    self.record_arrivals(family, &answers);
                }
            } else {
                let known: BTreeSet<_> = self.known.keys().cloned().collect();
                self.ask(&peers, |name| !known.contains(name)).await;
            }
            self.tell();
            // What the kernel had from an earlier daemon holds no longer than what that has heard.
            if kernel_holds && self.begun.elapsed() >= holds(peers.len()) {
                (self.send)(Change::TunnelledBefore(BTreeMap::new()));
                kernel_holds = false;
            }
            select! {
                () = sleep_until(next_round) => {}
                _ = wanted.changed() => {}
            }
        }
    }

    /// Asks some of the nodes, and keeps what they say.
    async fn ask(
        &mut self,
        peers: &BTreeMap<Arc<str>, Vec<IpAddr>>,
        is_asked: impl Fn(&str) -> bool,
    ) -> Answers {
        let behind = peers.iter().filter(|(name, _)| &***name > self.node_name);
        let before = peers.iter().filter(|(name, _)| &***name <= self.node_name);
        let asked = behind.chain(before).filter(|(name, _)| is_asked(name));
        let answers = match self.port {
            Some(port) => ask_each(asked, port).await,
            None => Answers::new(),
        };
        self.known.retain(|name, _| peers.contains_key(name));
        for (name, DirectReturnAnswer { unpacks, gue, .. }) in &answers {
            let now = Unpacking { families: unpacks.clone().unwrap_or_default(), gue: *gue };
            let before = self.known.insert(name.clone(), (now.clone(), Instant::now()));
            if before.map(|(before, _)| before).unwrap_or_default() != now {
                log(name, &now);
            }
        }
        answers
    }

    fn forget_silent(&mut self, holds: Duration) {
        self.known.retain(|name, (unpacking, heard)| {
            let is_silent = heard.elapsed() >= holds;
            if is_silent && !unpacking.families.is_empty() {
                info!(node = &**name, "does not answer any more: what is sent to its pods is masqueraded");
            }
            !is_silent
        });
    }

    /// Compares what this node has sent through tunnels of a family with what has arrived, if every node has answered
    /// that it sends to.
    fn record_arrivals(&mut self, family: Family, answers: &Answers) {
        let unpacking = self.known.iter().filter(|(_, (it, _))| it.families.contains(&family));
        let received = unpacking.map(|(name, _)| {
            let received = answers.get(name)?.received.get(&family)?;
            Some((name.clone(), *received))
        });
        if let Some(received) = received.collect::<Option<BTreeMap<_, _>>>().filter(|all| !all.is_empty())
            && self.arrivals.record(family, self.packets.of(family).sent, received)
        {
            self.filtered.add(family);
        }
    }

    /// Tells which nodes are reached through tunnels, if that is new.
    fn tell(&mut self) {
        let open = |Unpacking { families, gue }: &Unpacking| Unpacking {
            families: families.iter().copied().filter(|it| !self.filtered.contains(*it)).collect(),
            gue: *gue,
        };
        let reached: UnpackingPeers =
            self.known.iter().map(|(name, (unpacking, _))| (name.clone(), open(unpacking))).collect();
        if reached != self.sent {
            (self.send)(Change::UnpackingPeers(reached.clone()));
            self.sent = reached;
        }
    }
}

fn period(peers: usize) -> Duration {
    PERIOD.max(PERIOD_PER_PEER.saturating_mul(u32::try_from(peers).unwrap_or(u32::MAX)))
}

/// At least three rounds.
fn holds(peers: usize) -> Duration {
    HOLDS.max(period(peers) * 3)
}

fn log(node: &str, Unpacking { families, gue }: &Unpacking) {
    let families: Vec<_> = families.iter().map(Family::to_string).collect();
    if families.is_empty() {
        info!(node, "unpacks nothing that is sent to its pods any more: it is sent masqueraded");
    } else {
        info!(node, families = families.join(", "), gue, "unpacks what is sent to its pods");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_a_large_cluster_are_asked_less_often() {
        assert_eq!(period(0), Duration::from_secs(10));
        assert_eq!(period(500), Duration::from_secs(10));
        assert_eq!(period(5_000), Duration::from_secs(100));
        assert_eq!((holds(500), holds(5_000)), (Duration::from_secs(180), Duration::from_secs(300)));
    }
}
