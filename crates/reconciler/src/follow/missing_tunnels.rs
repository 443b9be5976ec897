//! Families in which the kernel has no tunnel devices.

use std::collections::BTreeSet;

use ipvs::Family;
use service::Change;
use tracing::warn;

/// The families in which a tunnel device was refused.
#[derive(Debug, Default)]
pub(crate) struct MissingTunnels(BTreeSet<Family>);

impl MissingTunnels {
    /// The input of the desired state that says so.
    pub(crate) fn to_change(&self) -> Change {
        Change::MissingTunnels(self.0.clone())
    }

    /// Records families in which the kernel refused one, and returns whether that is new of any.
    pub(crate) fn record_refused(&mut self, refused: &BTreeSet<Family>) -> bool {
        let new: Vec<_> = refused.difference(&self.0).copied().collect();
        for family in &new {
            warn!(
                "the kernel has no tunnels ({family}): Services are served masqueraded; kube-ipvs resync tries again"
            );
        }
        let any = !new.is_empty();
        self.0.extend(new);
        any
    }
}
