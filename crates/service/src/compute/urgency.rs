//! The Services that must work first.

use crate::input::Service;

/// How soon a virtual server must work after a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Urgency {
    /// `default/kubernetes` and cluster DNS: the node's own components wait for them.
    First,
    /// Everything else.
    Normal,
}

impl Urgency {
    /// Cluster DNS has different names in different clusters (`kube-dns`, `coredns`,
    /// `rke2-coredns-rke2-coredns`), but it is always in kube-system and always at port 53.
    pub(crate) fn for_service(service: &Service) -> Self {
        const DNS: u16 = 53;
        let first = match service.name.parts() {
            ("default", "kubernetes") => true,
            ("kube-system", _) => service.ports.iter().any(|port| port.port == DNS),
            _ => false,
        };
        if first { Self::First } else { Self::Normal }
    }
}
