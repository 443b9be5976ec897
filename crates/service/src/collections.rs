//! Small collections: keys with the number of Services that want each, one copy of each value that many objects repeat,
//! and fair parts of what does not suffice for all: of room for series, of lines in a list.

use std::{cmp::Reverse, collections::BTreeMap, hash::Hash, sync::Arc};

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

/// At most `most` of the items, in turn by their keys: first one of each key, then a second one of each. Of each key the
/// first ones are taken, in their order. So the list may be cut anywhere, and one key cannot hide the others.
pub fn in_turn<T, K: Ord>(items: impl IntoIterator<Item = T>, most: usize, key: impl Fn(&T) -> K) -> Vec<T> {
    let mut counts = BTreeMap::new();
    let mut ranked: Vec<_> = items
        .into_iter()
        .filter_map(|item| {
            let count = counts.entry(key(&item)).or_insert(0_usize);
            let rank = *count;
            *count += 1;
            (rank < most).then_some((rank, item))
        })
        .collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.truncate(most);
    ranked.into_iter().map(|(_, item)| item).collect()
}

/// How much each key gets of the room when they ask for this much: the same for all, but to none more than it asks for.
/// What one does not need goes to the others (max-min fairness).
pub fn fair_shares<K: Ord>(asked: BTreeMap<K, usize>, room: usize) -> BTreeMap<K, usize> {
    let mut by_size: Vec<_> = asked.into_iter().collect();
    // The largest come last. They are the ones that are cut.
    by_size.sort_by_key(|(_, asked)| Reverse(*asked));
    let mut left = room;
    let mut shares = BTreeMap::new();
    while let Some((key, asked)) = by_size.pop() {
        let share = asked.min(left.div_ceil(by_size.len() + 1));
        left -= share;
        shares.insert(key, share);
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

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

    #[test]
    fn one_of_each_comes_before_the_second_of_any() {
        let items = ["a1", "a2", "a3", "b1", "c1", "c2"];
        let first = |most| in_turn(items, most, |item| item.chars().next());
        assert_eq!(first(usize::MAX), ["a1", "b1", "c1", "a2", "c2", "a3"]);
        assert_eq!(first(4), ["a1", "b1", "c1", "a2"]);
        assert_eq!(first(2), ["a1", "b1"]);
        assert_eq!(first(0), [""; 0]);
    }

    #[test]
    fn what_one_does_not_need_goes_to_the_others() {
        let shares = |asked: &[usize], room| {
            let asked = asked.iter().copied().enumerate().collect();
            fair_shares(asked, room).into_values().collect::<Vec<_>>()
        };
        assert_eq!(shares(&[100, 2, 30], 50), [24, 2, 24]);
        assert_eq!(shares(&[100, 2, 10], 50), [38, 2, 10]);
        assert_eq!(shares(&[7, 7, 7], 10).iter().sum::<usize>(), 10);
        assert_eq!(shares(&[5, 5], 100), [5, 5]);
        assert_eq!(shares(&[], 100), [0; 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_share_is_cut_only_where_no_other_is_much_larger(asked in vec(0..50_usize, 0..8), room in 0..200_usize) {
            let shares = fair_shares(asked.iter().copied().enumerate().collect(), room);
            prop_assert_eq!(shares.values().sum::<usize>(), room.min(asked.iter().sum()));
            let largest = shares.values().max().copied().unwrap_or_default();
            for (key, share) in &shares {
                prop_assert!(*share == asked[*key] || *share < asked[*key] && share + 1 >= largest);
            }
        }
    }
}
