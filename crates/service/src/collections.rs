//! Small collections: keys with the number of Services that want each, and one copy of each value that many objects
//! repeat.

use std::{hash::Hash, sync::Arc};

use rustc_hash::{FxHashMap, FxHashSet};

/// Keys, each with the number of Services that want it.
#[derive(Debug)]
pub(crate) struct RefCounts<K>(FxHashMap<K, u32>);

impl<K> Default for RefCounts<K> {
    fn default() -> Self {
        Self(FxHashMap::default())
    }
}

impl<K: Hash + Eq + Clone> RefCounts<K> {
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

    /// Adds one to the count of a key, or subtracts one. Returns whether the key began or ceased to be wanted.
    pub(crate) fn set(&mut self, key: &K, wanted: bool) -> bool {
        if wanted { self.add(key.clone()) } else { self.remove(key) }
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

/// Values of which a cluster has few different ones, such as namespaces, port names and zones. Each is stored once;
/// a decoded object has copies of its own.
#[derive(Debug)]
pub(crate) struct Interner<T: ?Sized> {
    known: FxHashSet<Arc<T>>,
    sweep_at: usize,
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self { known: FxHashSet::default(), sweep_at: 0 }
    }
}

impl<T: ?Sized + Hash + Eq> Interner<T> {
    const FEWEST_TO_SWEEP: usize = 64;

    /// Replaces `value` with the shared copy.
    pub(crate) fn share(&mut self, value: &mut Arc<T>) {
        if let Some(known) = self.known.get(&**value) {
            value.clone_from(known);
            return;
        }
        // Namespaces and nodes come and go. Looking for the unused ones each time the number has doubled costs
        // a constant for each value.
        if self.known.len() >= self.sweep_at {
            self.known.retain(|value| Arc::strong_count(value) > 1);
            self.sweep_at = Self::FEWEST_TO_SWEEP.max(2 * self.known.len());
        }
        self.known.insert(value.clone());
    }
}

impl<T: Hash + Eq> Interner<T> {
    /// The shared copy of a value.
    pub(crate) fn shared(&mut self, value: T) -> Arc<T> {
        if let Some(known) = self.known.get(&value) {
            return known.clone();
        }
        let mut value = Arc::new(value);
        self.share(&mut value);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_become_one_copy() {
        let (mut one, mut other): (Arc<str>, Arc<str>) = ("zone-a".into(), "zone-a".into());
        let mut strings = Interner::<str>::default();
        strings.share(&mut one);
        strings.share(&mut other);
        assert!(Arc::ptr_eq(&one, &other));
    }

    #[test]
    fn unused_texts_are_dropped() {
        let mut strings = Interner::<str>::default();
        let mut kept: Arc<str> = "kept".into();
        strings.share(&mut kept);
        for n in 0..10_000 {
            strings.share(&mut Arc::from(format!("namespace-{n}")));
        }
        assert!(strings.known.len() <= Interner::<str>::FEWEST_TO_SWEEP);
        assert!(strings.known.contains("kept"));
    }
}
