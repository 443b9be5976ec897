//! Keys that several Services can want.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// Keys, each with the number of Services that want it.
#[derive(Debug)]
pub(crate) struct RefCounts<K>(FxHashMap<K, u32>);

impl<K> Default for RefCounts<K> {
    fn default() -> Self {
        Self(FxHashMap::default())
    }
}

impl<K: Hash + Eq> RefCounts<K> {
    /// Whether any Service wants the key.
    pub(crate) fn contains(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }

    /// How many want the key.
    pub(crate) fn count(&self, key: &K) -> usize {
        self.0.get(key).copied().unwrap_or_default() as usize
    }

    /// Each key once, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }

    /// Adds one to the count of a key. Returns whether it is the first.
    pub(crate) fn add(&mut self, key: K) -> bool {
        let count = self.0.entry(key).or_default();
        *count += 1;
        *count == 1
    }

    /// Subtracts one from the count of a key. Returns whether it was the last.
    pub(crate) fn remove(&mut self, key: &K) -> bool {
        let Some(count) = self.0.get_mut(key) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            self.0.remove(key);
        }
        last
    }
}
