//! The settings as the parts of the program want them.

use std::{collections::BTreeSet, time::Duration};

use ipnet::IpNet;
use ipvs::{Family, Tunnel, TunnelKind};
use netfilter::{LocalTraffic, Policy, tunnel::GUE_PORT};
use reconciler::Timing;
use service::Options;
use watcher::Ownership;

use super::{LocalMode, Settings};

impl Settings {
    /// The policy where pods of this node are recognised like this.
    pub fn policy(&self, local_traffic: LocalTraffic) -> Policy {
        Policy {
            masquerade_all: self.masquerade_all,
            mark: self.mark,
            local_traffic,
            host_firewall: self.host_firewall,
            untracked_pods: self.untracked_pods(),
            gue: self.tunnel == TunnelKind::Gue,
        }
    }

    /// How Services are served, where pods of this node are recognised in these families.
    pub fn options(&self, knows_pods: BTreeSet<Family>) -> Options {
        Options {
            node_name: self.node_name.as_str().into(),
            scheduler: self.scheduler,
            distance_weights: self.distance_weights,
            ejection: self.ejection,
            node_port_addresses: self.node_port_addresses.clone(),
            bind_address: self.bind_address,
            external_ips: self.external_ips.clone(),
            external_forwarding: self.external_forwarding_method,
            tunnel: self.tunnel(),
            knows_pods,
            untracked_services: self.untracked_services,
            untracked_pods: self.untracked_pods(),
            answers_peers: self.port_for_peers().is_some(),
            pod_ranges: self.pod_ranges.clone(),
            watches_nodes: true,
        }
    }

    /// The port at which other nodes can ask this one about its health, and with the same configuration it
    /// can ask them.
    pub(crate) fn port_for_peers(&self) -> Option<u16> {
        self.healthz_bind_address.filter(|address| !address.ip().is_loopback()).map(|address| address.port())
    }

    /// The encapsulation, with its port.
    fn tunnel(&self) -> Tunnel {
        match self.tunnel {
            TunnelKind::Gue => Tunnel::new(TunnelKind::Gue).port(GUE_PORT),
            other => Tunnel::new(other),
        }
    }

    /// The families in which pods of this node are recognised. By the Node's podCIDRs they are in each that
    /// it has, and it is not known yet which those are.
    pub(crate) fn knows_pods(&self) -> BTreeSet<Family> {
        let is_known = |family: &Family| match &self.local_mode {
            LocalMode::Fixed(local_traffic) => local_traffic.is_known(*family),
            LocalMode::NodeCidr => true,
        };
        Family::BOTH.into_iter().filter(is_known).collect()
    }

    /// The ranges of the pods whose flows need not be tracked, one per family.
    fn untracked_pods(&self) -> Vec<IpNet> {
        let is_used = !self.untracked_services.is_empty() && !self.masquerade_all;
        let first = |family| self.pod_ranges.iter().find(|range| Family::from(range.addr()) == family);
        Family::BOTH.into_iter().filter_map(first).filter(|_| is_used).copied().collect()
    }

    /// When to sync, where IPVS forgets an idle TCP connection after so long.
    pub(crate) fn timing(&self, tcp_timeout: Duration) -> Timing {
        Timing {
            sync_period: self.sync_period,
            min_sync_period: self.min_sync_period,
            drain_timeout: self.drain_timeout,
            tcp_timeout,
        }
    }

    /// The part of the kernel that is ours, where these families are served.
    pub fn ownership(&self, families: BTreeSet<Family>) -> Ownership {
        Ownership { families, exclude: self.exclude_cidrs.clone(), foreign: self.foreign }
    }
}
