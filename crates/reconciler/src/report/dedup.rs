//! Suppresses repeated reports.

use std::{collections::BTreeSet, mem};

/// Remembers which entries of one kind were reported, as long as they last.
#[derive(Debug)]
pub(crate) struct Dedup<K> {
    reported: BTreeSet<K>,
    /// The revision of the desired state's list that was reported last.
    revision: u64,
}

impl<K> Default for Dedup<K> {
    fn default() -> Self {
        Self { reported: BTreeSet::new(), revision: 0 }
    }
}

impl<K: Ord + Clone> Dedup<K> {
    /// Returns the entries that were not reported before, and marks all of them as reported. The same `revision`
    /// as before means that nothing has changed; then `current` is not called.
    pub(crate) fn new_entries(&mut self, revision: u64, current: impl FnOnce() -> BTreeSet<K>) -> Vec<K> {
        if mem::replace(&mut self.revision, revision) == revision {
            return Vec::new();
        }
        let current = current();
        let new = current.difference(&self.reported).cloned().collect();
        self.reported = current;
        new
    }
}
