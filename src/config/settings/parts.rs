//! The settings as the parts of the program want them.

use std::collections::BTreeSet;

use ipvs::{Family, TunnelKind};
use netfilter::{LocalTraffic, Policy};
use watcher::Ownership;

use super::{Settings, port_for_peers};

impl Settings {
    /// The policy where pods of this node are recognised like this.
    pub fn policy(&self, local_traffic: LocalTraffic) -> Policy {
        Policy {
            masquerade_all: self.masquerade_all,
            mark: self.mark,
            local_traffic,
            host_firewall: self.host_firewall,
            untracked_pods: self.services.untracked_pods.clone(),
            gue: self.services.tunnel.kind == TunnelKind::Gue,
        }
    }

    /// The port at which other nodes can ask this one about its health, and with the same configuration it
    /// can ask them.
    pub(crate) fn port_for_peers(&self) -> Option<u16> {
        port_for_peers(self.healthz_bind_address)
    }

    /// The part of the kernel that is ours, where these families are served.
    pub fn ownership(&self, families: BTreeSet<Family>) -> Ownership {
        Ownership { families, exclude: self.exclude_cidrs.clone(), foreign: self.foreign }
    }
}
