//! The networks that let no tunnelled packet through.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ipvs::{Family, TunnelKind};
use netfilter::tunnel::GUE_PORT;

use super::{Advice, Cause, Severity};

/// The families in which nothing that this node tunnels arrives. There its requests are masqueraded, until somebody asks
/// for a full sync or the daemon starts anew. Clones share it.
#[derive(Clone, Debug)]
pub struct FilteredTunnels {
    kind: TunnelKind,
    families: Arc<Mutex<BTreeSet<Family>>>,
}

impl FilteredTunnels {
    /// None yet, of tunnels of this kind.
    pub(crate) fn new(kind: TunnelKind) -> Self {
        Self { kind, families: Arc::default() }
    }

    fn families(&self) -> MutexGuard<'_, BTreeSet<Family>> {
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, family: Family) {
        self.families().insert(family);
    }

    pub(crate) fn clear(&self) {
        self.families().clear();
    }

    pub(crate) fn contains(&self, family: Family) -> bool {
        self.families().contains(&family)
    }

    pub(crate) fn check(&self) -> Vec<Advice> {
        self.families().iter().map(|family| advice(self.kind, *family)).collect()
    }
}

fn advice(kind: TunnelKind, family: Family) -> Advice {
    let (what, or) = match (kind, family) {
        (TunnelKind::Gue, _) => (format!("UDP port {GUE_PORT}"), ""),
        (_, Family::V4) => ("IP protocol 4".to_owned(), " (or use --tunnel=gue)"),
        (_, Family::V6) => ("IP protocol 41".to_owned(), " (or use --tunnel=gue)"),
    };
    Advice {
        severity: Severity::Warning,
        cause: Cause::Tunnel,
        subject: family.to_string(),
        what: format!(
            "nothing that this node tunnels to others ({family}) arrives there: the network seems to filter {what}. \
             What is to be answered directly is masqueraded"
        ),
        remedy: format!("let the nodes send {what} to pods{or}, then kube-ipvs resync"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_that_is_filtered_is_a_warning_until_it_is_tried_again() {
        let filtered = FilteredTunnels::new(TunnelKind::Ipip);
        assert_eq!(filtered.check(), []);
        filtered.clone().add(Family::V6);
        let [advice] = &filtered.check()[..] else { panic!("{filtered:?}") };
        assert_eq!(
            (advice.severity, advice.cause, advice.subject.as_str()),
            (Severity::Warning, Cause::Tunnel, "IPv6")
        );
        assert!(advice.remedy.contains("protocol 41"), "{advice}");
        filtered.clear();
        assert_eq!(filtered.check(), []);
    }
}
