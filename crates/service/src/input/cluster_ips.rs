//! The ClusterIPs of all Services, and the Services whose external addresses they can be.

use std::{collections::BTreeSet, mem, net::IpAddr};

use rustc_hash::FxHashMap;

use super::{ObjectName, Service, ServiceKind};
use crate::ref_counts::RefCounts;

/// The ClusterIPs of all known Services. No other Service may have them as external addresses. A Service whose label
/// gives it to another proxy is not listed, and so not known.
#[derive(Debug, Default)]
pub(crate) struct ClusterIps {
    all: RefCounts<IpAddr>,
    /// The Services with an external address, by that. Few have any.
    wanted_by: FxHashMap<IpAddr, BTreeSet<ObjectName>>,
    /// The Services with an external address that has become a ClusterIP, or is none any more.
    affected: BTreeSet<ObjectName>,
}

impl ClusterIps {
    /// Whether a Service has this ClusterIP.
    pub(crate) fn contains(&self, ip: &IpAddr) -> bool {
        self.all.contains(ip)
    }

    /// Replaces a Service with its new version.
    pub(crate) fn replace(&mut self, before: Option<&Service>, now: Option<&Service>) {
        // Adding comes first, so that what stays does not cease to be in between.
        let mut changed: Vec<IpAddr> = given(now).iter().copied().filter(|ip| self.all.add(*ip)).collect();
        changed.extend(given(before).iter().filter(|ip| self.all.remove(ip)));

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
        let wanted_by = changed.iter().filter_map(|ip| self.wanted_by.get(ip));
        self.affected.extend(wanted_by.flatten().cloned());
    }

    /// Takes the Services with an external address that has become a ClusterIP since the last call, or is none any
    /// more.
    pub(crate) fn affected(&mut self) -> BTreeSet<ObjectName> {
        mem::take(&mut self.affected)
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
