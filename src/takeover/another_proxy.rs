//! Notices a kube-proxy that runs beside us, or has since our own rules were in place.
//!
//! Each of the two removes virtual servers that only the other one wants, and its rules may decide before ours. While
//! we run, its rules are reported and not removed: it would write them again.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::node::advice::{Advice, Cause, Severity};

/// Whether the last check found kube-proxy's rules. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct AnotherProxy(Arc<AtomicBool>);

impl AnotherProxy {
    /// Records the result of a check.
    pub fn set_seen(&self, there: bool) {
        self.0.store(there, Ordering::Relaxed);
    }

    /// Whether the last check found rules.
    pub fn is_seen(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn check(&self) -> Option<Advice> {
        self.is_seen().then(|| Advice {
            severity: Severity::Warning,
            cause: Cause::AnotherProxy,
            subject: "kube-proxy".to_owned(),
            what: "kube-proxy's rules are on this node beside ours: another proxy seems to run here, or to have \
                   run since kube-ipvs started"
                .to_owned(),
            remedy: "stop it (delete its DaemonSet), then start kube-ipvs anew on this node, which removes the \
                     rules after its first sync"
                .to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_another_proxy_are_a_warning_as_long_as_they_are_seen() {
        let another = AnotherProxy::default();
        assert_eq!(another.check(), None, "nobody has looked");
        another.clone().set_seen(true);
        let advice = another.check().unwrap();
        assert_eq!((advice.severity, advice.cause), (Severity::Warning, Cause::AnotherProxy));
        assert!(advice.remedy.contains("start kube-ipvs anew"), "{advice}");
        another.set_seen(false);
        assert_eq!(another.check(), None);
    }
}
