//! Which changes of our tables go into one transaction.
//!
//! The kernel holds a lock for all of nf_tables during a transaction, and each allowed source range that is
//! removed from a set of thousands takes it 30 ms (`nft_pipapo_remove` in net/netfilter/nft_set_pipapo.c). So
//! many ranges are changed in several transactions, in an order in which no client is let in that should not
//! be, and none kept out that should.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use ipvs::ServiceAddress;
use netfilter::{
    AllowedSource, Element,
    Operation::{self, AddElement, DeleteElement},
};
use service::Key;

use super::pace::{Pace, Work};

/// So many changes are one transaction in any case.
const FEW: usize = 8;

/// A transaction, and how long the kernel takes for its like.
pub(super) struct Transaction {
    pub(super) changes: Vec<Operation>,
    pub(super) work: Work,
}

/// Source ranges that overlap, of one virtual server: they cannot be there at the same time, and what is
/// removed and added among them may be meant for the same clients.
type Overlapping = Vec<Operation>;

/// Divides changes into those of virtual servers that become open, new ranges, virtual servers that become
/// restricted, and ranges that are removed.
pub(super) fn next_transaction(changes: &[Operation], pace: Pace) -> (Transaction, Vec<Operation>) {
    let sources = changes.iter().filter(|change| source(change).is_some()).count();
    if sources <= FEW {
        return (Transaction { changes: changes.to_vec(), work: Work::Others }, Vec::new());
    }
    let (ranges, rest): (Vec<_>, Vec<_>) = changes.iter().partition(|change| source(change).is_some());
    let (restrictions, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(restricts);
    let (coming, going): (Vec<_>, Vec<_>) =
        overlapping(ranges).into_iter().partition(|ranges| ranges.iter().any(adds));
    let (mixed, coming): (Vec<_>, Vec<_>) = coming.into_iter().partition(|ranges| !ranges.iter().all(adds));
    let parts = [
        (vec![others], Work::Others),
        (coming, Work::NewRanges),
        (mixed, Work::OldRanges),
        (vec![restrictions], Work::Others),
        (going, Work::OldRanges),
    ];
    let units = parts.into_iter().enumerate().flat_map(|(part, (units, work))| {
        units.into_iter().filter(|unit| !unit.is_empty()).map(move |unit| (part, work, unit))
    });
    let mut units = units.peekable();
    let (first, work) = units.peek().map_or((0, Work::Others), |(part, work, _)| (*part, *work));
    let mut now = Vec::new();
    while let Some((.., unit)) = units.next_if(|(part, _, unit)| {
        let fits = work == Work::Others || now.len() + unit.len() <= pace.operations(work);
        *part == first && (now.is_empty() || fits)
    }) {
        now.extend(unit);
    }
    (Transaction { changes: now, work }, units.flat_map(|(.., unit)| unit).collect())
}

/// Puts ranges together that overlap.
fn overlapping(ranges: Vec<Operation>) -> Vec<Overlapping> {
    let mut by_server: BTreeMap<(ServiceAddress, IpAddr), Vec<(IpAddr, Operation)>> = BTreeMap::new();
    for change in ranges {
        if let Some(AllowedSource { to, first, last }) = source(&change) {
            by_server.entry((*to, *first)).or_default().push((*last, change));
        }
    }
    let mut all: Vec<Overlapping> = Vec::new();
    let mut end: Option<(ServiceAddress, IpAddr)> = None;
    for ((to, first), ranges) in by_server {
        let overlaps = end.is_some_and(|(of, last)| of == to && first <= last);
        if !overlaps {
            all.push(Vec::new());
        }
        for (last, change) in ranges {
            let before = end.filter(|(of, _)| *of == to).map_or(last, |(_, end)| end);
            end = Some((to, before.max(last)));
            all.last_mut().into_iter().for_each(|ranges| ranges.push(change));
        }
    }
    // In a transaction what goes makes room for what comes.
    for ranges in &mut all {
        ranges.sort_by_key(adds);
    }
    all
}

fn source(change: &Operation) -> Option<&AllowedSource> {
    match change {
        AddElement(Element::AllowedSource(source)) | DeleteElement(Element::AllowedSource(source)) => {
            Some(source)
        }
        _ => None,
    }
}

/// Whether a change restricts a virtual server to allowed clients.
pub(super) fn restricts(change: &Operation) -> bool {
    matches!(change, AddElement(Element::Restricted(_)))
}

fn adds(change: &Operation) -> bool {
    matches!(change, AddElement(_))
}

/// The key of the changes that must stay in one transaction: the elements of one virtual server. Some of them
/// without the others would let in clients that must stay out, or keep out clients that must be let in.
fn unit(change: &Operation) -> Option<Key> {
    let of = match change {
        AddElement(element) | DeleteElement(element) => element.virtual_server(),
        _ => None,
    };
    of.copied().map(Key::VirtualServer).or_else(|| watcher::Operation::from(*change).key())
}

/// Splits a transaction into two, each in the order of the whole; `None` if it is a single unit. The first
/// half has the units that come first.
pub(crate) fn bisect(changes: &[Operation]) -> Option<[Vec<Operation>; 2]> {
    let mut units = HashMap::new();
    let mut number = |change: &Operation| {
        let next = units.len();
        *units.entry(unit(change)).or_insert(next)
    };
    let numbered: Vec<_> = changes.iter().map(|change| (number(change), *change)).collect();
    let middle = units.len() / 2;
    let (left, right): (Vec<_>, Vec<_>) = numbered.into_iter().partition(|(unit, _)| *unit < middle);
    let halves = [left, right].map(|half| half.into_iter().map(|(_, change)| change).collect());
    (middle > 0).then_some(halves)
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeSet, HashSet},
        time::Duration,
    };

    use ipvs::{Family, Protocol};
    use netfilter::Operation::{InstallTable, PrepareTable};
    use proptest::{
        collection::{btree_set, vec},
        prelude::*,
    };

    use super::*;

    fn at(port: u16) -> ServiceAddress {
        ServiceAddress { protocol: Protocol::Tcp, ip: [203, 0, 113, 7].into(), port }
    }

    fn range(port: u16, number: u16, size: u16) -> Element {
        let address = |number: u16| {
            let [high, low] = number.to_be_bytes();
            IpAddr::from([10, high, low, 0])
        };
        Element::AllowedSource(AllowedSource {
            to: at(port),
            first: address(number),
            last: address(number + size),
        })
    }

    /// All transactions, where the kernel is slow.
    fn transactions(changes: &[Operation]) -> Vec<Vec<Operation>> {
        let mut pace = Pace::default();
        pace.update(Work::NewRanges, 100, Duration::from_secs(1));
        pace.update(Work::OldRanges, 100, Duration::from_secs(10));
        let (mut all, mut rest) = (Vec::new(), changes.to_vec());
        while !rest.is_empty() {
            let (now, later) = next_transaction(&rest, pace);
            assert!(later.len() < rest.len(), "it goes on");
            all.push(now.changes);
            rest = later;
        }
        all
    }

    /// Whether a client is let in.
    fn lets_in(elements: &BTreeSet<Element>, client: IpAddr) -> bool {
        !elements.contains(&Element::Restricted(at(80)))
            || elements.iter().any(|element| {
                matches!(element, Element::AllowedSource(range) if range.first <= client && client <= range.last)
            })
    }

    /// Ranges that do not overlap, and perhaps everybody.
    fn any_ranges() -> impl Strategy<Value = BTreeSet<Element>> {
        (btree_set(0..100u16, 0..80), 0..3u16, any::<bool>()).prop_map(|(numbers, size, is_open)| {
            if is_open {
                return BTreeSet::new();
            }
            let ranges = numbers.into_iter().map(|number| range(80, number * 4, size));
            ranges.chain([Element::Restricted(at(80))]).collect()
        })
    }

    proptest! {
        #[test]
        fn clients_admitted_before_and_after_stay_admitted_and_others_stay_out(
            before in any_ranges(), after in any_ranges()
        ) {
            let removed = before.difference(&after).copied().map(DeleteElement);
            let changes: Vec<_> = removed.chain(after.difference(&before).copied().map(AddElement)).collect();
            let mut now = before.clone();
            let clients = (0..450u16).map(|number| {
                let [high, low] = number.to_be_bytes();
                IpAddr::from([10, high, low, 0])
            });
            let clients: Vec<_> = clients.collect();
            let mut done = 0;
            for transaction in transactions(&changes) {
                done += transaction.len();
                for change in transaction {
                    match change {
                        AddElement(element) => prop_assert!(now.insert(element)),
                        DeleteElement(element) => prop_assert!(now.remove(&element)),
                        other => prop_assert!(false, "{other}"),
                    }
                }
                let ranges: Vec<_> = now.iter().filter_map(|it| source(&AddElement(*it)).copied()).collect();
                let overlap = ranges.iter().zip(ranges.iter().skip(1)).any(|(one, next)| next.first <= one.last);
                prop_assert!(!overlap, "the kernel refuses them");
                for client in &clients {
                    let (was, will) = (lets_in(&before, *client), lets_in(&after, *client));
                    let is = lets_in(&now, *client);
                    prop_assert!(is || !(was && will), "{client} is kept out");
                    prop_assert!(!is || was || will, "{client} is let in");
                }
            }
            prop_assert_eq!(now, after);
            prop_assert_eq!(done, changes.len());
        }
    }

    #[test]
    fn few_changes_are_one_transaction() {
        let changes: Vec<_> = (0..8).map(|number| AddElement(range(80, number, 0))).collect();
        assert_eq!(transactions(&changes), [changes]);
    }

    fn any_change() -> impl Strategy<Value = Operation> {
        let of = (0..4u16).prop_map(|port| ServiceAddress {
            protocol: Protocol::Tcp,
            ip: [10, 96, 0, 1].into(),
            port,
        });
        let element = prop_oneof![
            of.clone().prop_map(Element::ClusterIp),
            of.prop_map(Element::Restricted),
            (0..4u8).prop_map(|last| Element::Vip([10, 96, 0, last].into())),
        ];
        prop_oneof![
            element.clone().prop_map(AddElement),
            element.prop_map(DeleteElement),
            Just(PrepareTable(Family::V4)),
            Just(InstallTable(Family::V4)),
        ]
    }

    /// What of `changes` is also in `half`, in the order of `changes`.
    fn those_in(half: &[Operation], changes: &[Operation]) -> Vec<Operation> {
        changes.iter().copied().filter(|change| half.contains(change)).collect()
    }

    proptest! {
        #[test]
        fn halves_are_smaller_keep_the_order_and_split_no_virtual_server(
            changes in vec(any_change(), 0..20),
        ) {
            let units = |changes: &[Operation]| changes.iter().map(unit).collect::<HashSet<_>>();
            let Some([left, right]) = bisect(&changes) else {
                prop_assert!(units(&changes).len() < 2, "more than one unit can be split");
                return Ok(());
            };
            prop_assert!(!left.is_empty() && !right.is_empty());
            prop_assert!(units(&left).is_disjoint(&units(&right)));
            prop_assert_eq!(left.len() + right.len(), changes.len());
            prop_assert_eq!(&left, &those_in(&left, &changes));
            prop_assert_eq!(&right, &those_in(&right, &changes));
        }
    }
}
