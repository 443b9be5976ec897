//! Which addresses are ClusterIPs, and which Services have to know.

use std::{collections::BTreeSet, mem, net::IpAddr};

use rustc_hash::FxHashMap;

use super::{ObjectName, Service, ServiceKind};
use crate::ref_counts::RefCounts;

/// The ClusterIPs of all Services that are known: nobody else may have them as external addresses. Services that the
/// API server is not asked for, as their label says that another proxy serves them, are not.
#[derive(Debug, Default)]
pub(crate) struct ClusterIps {
    all: RefCounts<IpAddr>,
    /// The Services with an external address, by that. Few have any.
    wanted_by: FxHashMap<IpAddr, BTreeSet<ObjectName>>,
    /// Those whose external address has turned.
    concerned: BTreeSet<ObjectName>,
}

impl ClusterIps {
    /// Whether a Service has this ClusterIP.
    pub(crate) fn contains(&self, ip: &IpAddr) -> bool {
        self.all.contains(ip)
    }

    /// Puts a Service in the place of what it was before.
    pub(crate) fn replace(&mut self, before: Option<&Service>, now: Option<&Service>) {
        // In this order: what stays is not gone in between.
        let mut turned: Vec<IpAddr> = given(now).iter().copied().filter(|ip| self.all.add(*ip)).collect();
        turned.extend(given(before).iter().filter(|ip| self.all.remove(ip)));

        for (service, ip) in wanted(before) {
            if let Some(names) = self.wanted_by.get_mut(&ip) {
                names.remove(&service.name);
                if names.is_empty() {
                    self.wanted_by.remove(&ip);
                }
            }
        }
        for (service, ip) in wanted(now) {
            self.wanted_by.entry(ip).or_default().insert(service.name.clone());
        }
        let wanted_by = turned.iter().filter_map(|ip| self.wanted_by.get(ip));
        self.concerned.extend(wanted_by.flatten().cloned());
    }

    /// The Services with an external address that has become a ClusterIP since the last call, or is none any more.
    pub(crate) fn concerned(&mut self) -> BTreeSet<ObjectName> {
        mem::take(&mut self.concerned)
    }
}

/// The ClusterIPs that the API server gave a Service; what is left over at an `ExternalName` is none.
fn given(service: Option<&Service>) -> &[IpAddr] {
    match service {
        Some(service) if service.kind != ServiceKind::ExternalName => &service.cluster_ips,
        _ => &[],
    }
}

/// The external addresses that a Service asks for.
fn wanted(service: Option<&Service>) -> impl Iterator<Item = (&Service, IpAddr)> {
    service.into_iter().flat_map(|service| {
        let ips = service.external_ips.iter().chain(&service.load_balancer_ips);
        ips.map(move |ip| (service, *ip))
    })
}
