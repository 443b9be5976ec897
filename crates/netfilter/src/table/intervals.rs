//! Changes to intervals, which the kernel does not check completely.
//!
//! As seen on 5.10, 6.18 and 7.2 (`nft_pipapo_insert` and `nft_pipapo_deactivate` in
//! net/netfilter/nft_set_pipapo.c), deleting an interval deletes whichever one contains its *start*, even
//! another one. Adding one is refused if one of its ends lies in another (5.10 does nothing and reports no
//! error), but not if it fully covers another. So the existing intervals are read before some are deleted,
//! and only existing ones are deleted.

use std::collections::{BTreeMap, HashSet};

use ipvs::Family;

use crate::{Element, Operation};

/// Whether an element is an interval.
pub(crate) fn contain(element: &Element) -> bool {
    matches!(element, Element::AllowedSource(_))
}

/// Whether some interval of a family is deleted.
pub(crate) fn are_deleted(operations: &[Operation], family: Family) -> bool {
    operations.iter().any(|operation| {
        matches!(operation, Operation::DeleteElement(element) if contain(element) && element.family() == family)
    })
}

/// The changes, with those of a family's intervals at the end: first existing intervals are deleted, and
/// then, when nothing is left to overlap, missing ones are added.
pub(crate) fn settle(operations: &[Operation], family: Family, there: &HashSet<Element>) -> Vec<Operation> {
    let mut settled = Vec::with_capacity(operations.len());
    let mut wanted = BTreeMap::new();
    for operation in operations {
        match operation {
            Operation::AddElement(element) | Operation::DeleteElement(element)
                if contain(element) && element.family() == family =>
            {
                wanted.insert(*element, matches!(operation, Operation::AddElement(_)));
            }
            other => settled.push(*other),
        }
    }
    wanted.retain(|element, wanted| *wanted != there.contains(element));
    let (come, go): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|(_, wanted)| *wanted);
    settled.extend(go.into_iter().map(|(element, _)| Operation::DeleteElement(element)));
    settled.extend(come.into_iter().map(|(element, _)| Operation::AddElement(element)));
    settled
}

#[cfg(test)]
mod tests;
