//! What keeps the daemon from knowing what is wanted, or others from knowing how it is.

use kubernetes::api::Watches;

use crate::{serve::http::endpoint::UnboundEndpoints, source::known_node::KnownNode};

/// Each as it is now. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Problems {
    pub(super) watches: Watches,
    pub(super) node: KnownNode,
    pub(super) unbound: UnboundEndpoints,
}

impl Problems {
    /// Why what is wanted may be out of date, or wrong; one line each.
    pub(super) fn about_source(&self) -> Vec<String> {
        self.watches.troubles().into_iter().chain(self.node.trouble()).collect()
    }

    /// All of them, one line each.
    pub(super) fn all(&self) -> Vec<String> {
        let mut all = self.about_source();
        all.extend(self.unbound.troubles());
        all
    }
}
