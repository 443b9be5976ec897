//! Bisection: a refused transaction is tried in halves.

use std::collections::HashMap;

use ipvs::ServiceAddress;
use netfilter::Operation::{self, AddElement, DeleteElement};

/// The changes that must stay in one transaction.
#[derive(PartialEq, Eq, Hash)]
enum Unit {
    /// The elements of one virtual server. Some of them without the others would let in whom they should not,
    /// or keep out whom they should let in.
    VirtualServer(ServiceAddress),
    /// A table, or an element of no virtual server.
    Operation(Operation),
}

impl Unit {
    fn containing(change: &Operation) -> Self {
        let of = match change {
            AddElement(element) | DeleteElement(element) => element.virtual_server(),
            _ => None,
        };
        of.map_or(Self::Operation(*change), |of| Self::VirtualServer(*of))
    }
}

/// Splits a transaction into two, each in the order of the whole; `None` if it is a single unit. The first
/// half has the units that come first.
pub(crate) fn bisect(changes: &[Operation]) -> Option<[Vec<Operation>; 2]> {
    let mut units = HashMap::new();
    let mut number = |change: &Operation| {
        let next = units.len();
        *units.entry(Unit::containing(change)).or_insert(next)
    };
    let numbered: Vec<_> = changes.iter().map(|change| (number(change), *change)).collect();
    let middle = units.len() / 2;
    let (left, right): (Vec<_>, Vec<_>) = numbered.into_iter().partition(|(unit, _)| *unit < middle);
    let halves = [left, right].map(|half| half.into_iter().map(|(_, change)| change).collect());
    (middle > 0).then_some(halves)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use ipvs::{Family, Protocol};
    use netfilter::{
        Element,
        Operation::{InstallTable, PrepareTable},
    };
    use proptest::{collection::vec, prelude::*};

    use super::*;

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
            let units = |changes: &[Operation]| changes.iter().map(Unit::containing).collect::<HashSet<_>>();
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
