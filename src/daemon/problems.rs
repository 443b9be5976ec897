//! What keeps the daemon from knowing what is wanted, or others from knowing how it is.

use kubernetes::api::Watches;

use crate::{serve::http::endpoint::NotShown, source::known_node::KnownNode};

/// Each as it is now. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Troubles {
    pub(super) watches: Watches,
    pub(super) node: KnownNode,
    pub(super) not_shown: NotShown,
}

impl Troubles {
    /// Why what is wanted may be out of date, or wrong; one line each.
    pub(super) fn of_the_source(&self) -> Vec<String> {
        self.watches.troubles().into_iter().chain(self.node.trouble()).collect()
    }

    /// All of them, one line each.
    pub(super) fn all(&self) -> Vec<String> {
        let mut all = self.of_the_source();
        all.extend(self.not_shown.troubles());
        all
    }
}
