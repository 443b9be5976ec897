//! Noticing that a network lets no tunnelled packet through.

use std::{collections::BTreeMap, mem, sync::Arc};

use ipvs::Family;

/// How many packets in one round are enough to expect that some arrive.
const ENOUGH: u64 = 10;

/// After how many such rounds without one nothing is expected to arrive any more.
const ROUNDS: u32 = 2;

/// What one family's tunnels have carried, round by round.
#[derive(Clone, Debug, Default)]
struct Carried {
    sent: u64,
    /// By the name of the node.
    received: BTreeMap<Arc<str>, u64>,
    rounds_without_arrival: u32,
}

/// Compares what this node sends through tunnels with what comes out of them at all others together. Where a network, a
/// cloud's or that of a plugin, filters the tunnel's protocol, nothing does.
#[derive(Debug, Default)]
pub(super) struct Arrivals(BTreeMap<Family, Carried>);

impl Arrivals {
    /// Stores a round: how many packets this node has sent by now, and how many each node that it sends to has received.
    /// Returns whether the network is taken to filter them, from now on.
    pub(super) fn record(&mut self, family: Family, sent: u64, received: BTreeMap<Arc<str>, u64>) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
