//! What was told before is not told again.

use std::{collections::BTreeSet, mem};

/// Remembers the things of one kind that were told, as long as they last.
#[derive(Debug)]
pub(crate) struct Dedup<K> {
    told: BTreeSet<K>,
    /// The number that the desired state had given to them when they were told.
    revision: u64,
}

impl<K> Default for Dedup<K> {
    fn default() -> Self {
        Self { told: BTreeSet::new(), revision: 0 }
    }
}

impl<K: Ord + Clone> Dedup<K> {
    /// Returns what there is now and was not before. The same `revision` as before says that nothing has
    /// changed; then `now` is not asked.
    pub(crate) fn news(&mut self, revision: u64, now: impl FnOnce() -> BTreeSet<K>) -> Vec<K> {
        if mem::replace(&mut self.revision, revision) == revision {
            return Vec::new();
        }
        let now = now();
        let news = now.difference(&self.told).cloned().collect();
        self.told = now;
        news
    }
}
