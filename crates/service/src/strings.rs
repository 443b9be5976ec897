//! One copy of a text that ten thousand objects repeat.

use std::sync::Arc;

use rustc_hash::FxHashSet;

/// The namespaces, port names and zones in use, each stored once. Decoding an object makes fresh
/// copies of them; a cluster has few different ones.
#[derive(Debug, Default)]
pub(crate) struct Strings {
    known: FxHashSet<Arc<str>>,
    sweep_at: usize,
}

impl Strings {
    const FEWEST_TO_SWEEP: usize = 64;

    /// Puts the shared copy in the place of `text`.
    pub(crate) fn share(&mut self, text: &mut Arc<str>) {
        if let Some(known) = self.known.get(&**text) {
            text.clone_from(known);
            return;
        }
        // Namespaces come and go. Looking for the unused ones each time the number has doubled costs
        // a constant for each text.
        if self.known.len() >= self.sweep_at {
            self.known.retain(|text| Arc::strong_count(text) > 1);
            self.sweep_at = Self::FEWEST_TO_SWEEP.max(2 * self.known.len());
        }
        self.known.insert(text.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_become_one_copy() {
        let (mut one, mut other): (Arc<str>, Arc<str>) = ("zone-a".into(), "zone-a".into());
        let mut strings = Strings::default();
        strings.share(&mut one);
        strings.share(&mut other);
        assert!(Arc::ptr_eq(&one, &other));
    }

    #[test]
    fn texts_that_nobody_uses_any_more_are_dropped() {
        let mut strings = Strings::default();
        let mut kept: Arc<str> = "kept".into();
        strings.share(&mut kept);
        for n in 0..10_000 {
            strings.share(&mut Arc::from(format!("namespace-{n}")));
        }
        assert!(strings.known.len() <= Strings::FEWEST_TO_SWEEP);
        assert!(strings.known.contains("kept"));
    }
}
