//! One copy of each value that many objects repeat.

use std::{hash::Hash, sync::Arc};

use rustc_hash::FxHashSet;

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
