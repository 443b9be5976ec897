//! What is wrong outside the writer thread: the source cannot be watched or has bad files, the Node is
//! missing, an address cannot be bound; and the advice about this node.

use kubernetes::{api::Watches, directory};

use super::reload::UnusableFile;
use crate::{
    checks::CurrentFindings, finding::Finding, serve::http::endpoint::UnboundEndpoints,
    source::known_node::KnownNode,
};

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

/// The advice that holds now, by what finds it. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldAdvice {
    pub(super) config_file: UnusableFile,
    pub(super) checks: CurrentFindings,
}

impl HeldAdvice {
    /// All of it, that of the configuration file first.
    pub(super) fn all(&self) -> Vec<Finding> {
        self.config_file.finding().into_iter().chain(self.checks.all()).collect()
    }
}
