//! Problems outside the writer thread: the source cannot be watched or has bad files, the Node is missing, an address
//! cannot be bound.

use kubernetes::{api::Watches, directory};

use crate::{serve::http::endpoint::UnboundEndpoints, source::known_node::KnownNode};

/// The current problems. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Problems {
    pub(super) watches: Watches,
    pub(super) manifests: directory::Problems,
    pub(super) node: KnownNode,
    pub(super) unbound: UnboundEndpoints,
}

impl Problems {
    /// Why the desired state may be out of date or wrong, one line each.
    pub(super) fn about_source(&self) -> Vec<String> {
        self.watches.troubles().into_iter().chain(self.manifests.all()).chain(self.node.trouble()).collect()
    }

    /// All problems, one line each.
    pub(super) fn all(&self) -> Vec<String> {
        let mut all = self.about_source();
        all.extend(self.unbound.troubles());
        all
    }
}
