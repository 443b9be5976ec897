//! Which addresses Services and endpoints have, and the Services whose addresses depend on that.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use rustc_hash::FxHashMap;

use super::{CompactSlice, ObjectName, Options, Service, ServiceKind};
use crate::collections::RefCounts;

/// The ClusterIPs of all known Services, and what else is known of each external address that a Service asks for.
///
/// A Service whose label gives it to another proxy is not listed, and so not known.
#[derive(Debug, Default)]
pub(crate) struct AddressBook {
    cluster_ips: RefCounts<IpAddr>,
    /// The external addresses that Services ask for. Few Services ask for any.
    asked: FxHashMap<IpAddr, AskedAddress>,
    /// Those among them whose endpoints are still to be counted. The reader takes them, like those below.
    pub(crate) uncounted: BTreeSet<IpAddr>,
    /// The addresses that have become or ceased to be a ClusterIP.
    pub(crate) changed_cluster_ips: BTreeSet<IpAddr>,
    /// The Services with an external address of which something else is known now.
    pub(crate) affected: BTreeSet<ObjectName>,
}

/// An external address that at least one Service asks for.
#[derive(Debug, Default)]
struct AskedAddress {
    /// The Services that ask for it; the first has the best claim.
    claims: BTreeSet<AddressClaim>,
    /// The Services with endpoints that have it, each with the number of these; the oldest comes first.
    endpoints: BTreeMap<EndpointOwner, usize>,
}

/// A Service with an endpoint, and when it was created.
pub(crate) type EndpointOwner = (Option<i64>, ObjectName);

/// The claim of a Service on an external address, whatever the port. Claims are sorted like claims on a port
/// ([`AddressKind`](crate::AddressKind)): a load balancer's address comes before an external IP, then the oldest
/// Service comes first, then the first by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AddressClaim {
    is_external_ip: bool,
    created: Option<i64>,
    service: ObjectName,
}

impl AddressBook {
    /// Whether a Service has this ClusterIP.
    pub(crate) fn is_cluster_ip(&self, ip: &IpAddr) -> bool {
        self.cluster_ips.contains(ip)
    }

    /// Whether an endpoint has this address. Known only of addresses that a Service asks for.
    pub(crate) fn is_endpoint(&self, ip: &IpAddr) -> bool {
        self.asked.get(ip).is_some_and(|asked| !asked.endpoints.is_empty())
    }

    /// Whether an endpoint of an older Service has this address. Those of younger ones may have been written to take
    /// the address from this one.
    pub(crate) fn is_endpoint_of_older(&self, ip: &IpAddr, service: &Service) -> bool {
        let oldest = self.asked.get(ip).and_then(|asked| asked.endpoints.keys().next());
        oldest.is_some_and(|(created, name)| (created, name) < (&service.created, &service.name))
    }

    /// The namespace of the Service with the best claim on an external address.
    pub(crate) fn namespace_of(&self, ip: &IpAddr) -> Option<&str> {
        Some(self.asked.get(ip)?.claims.first()?.service.namespace())
    }

    /// Whether any Service asks for an external address.
    pub(crate) fn has_external_addresses(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Replaces a Service with its new version.
    pub(crate) fn replace(&mut self, before: Option<&Service>, now: Option<&Service>, options: &Options) {
        // Adding comes first, so that what stays does not cease to be in between.
        let mut changed: Vec<IpAddr> =
            given(now).iter().copied().filter(|ip| self.cluster_ips.add(*ip)).collect();
        changed.extend(given(before).iter().filter(|ip| self.cluster_ips.remove(ip)));
        for ip in &changed {
            self.affect(ip);
        }
        self.changed_cluster_ips.extend(changed);

        let (before, now) = (claims(before, options), claims(now, options));
        for (ip, claim) in now.difference(&before) {
            self.change_claims(*ip, |claims| _ = claims.insert(claim.clone()));
        }
        for (ip, claim) in before.difference(&now) {
            self.change_claims(*ip, |claims| _ = claims.remove(claim));
        }
    }

    /// Changes the claims on an external address. The other Services that ask for it depend on whose claim is the best.
    fn change_claims(&mut self, ip: IpAddr, change: impl FnOnce(&mut BTreeSet<AddressClaim>)) {
        let before = self.namespace_of(&ip).map(ToOwned::to_owned);
        let asked = self.asked.entry(ip).or_insert_with(|| {
            self.uncounted.insert(ip);
            AskedAddress::default()
        });
        change(&mut asked.claims);
        if asked.claims.is_empty() {
            self.asked.remove(&ip);
            self.uncounted.remove(&ip);
        } else if self.namespace_of(&ip) != before.as_deref() {
            self.affect(&ip);
        }
    }

    /// Adds the endpoints of a slice of a Service.
    pub(crate) fn add_endpoints(&mut self, slice: &CompactSlice, of: &EndpointOwner) {
        self.count_endpoints(slice, |endpoints| *endpoints.entry(of.clone()).or_default() += 1);
    }

    /// Removes the endpoints of a slice that was added before.
    pub(crate) fn remove_endpoints(&mut self, slice: &CompactSlice, of: &EndpointOwner) {
        self.count_endpoints(slice, |endpoints| {
            if let Some(count) = endpoints.get_mut(of) {
                *count -= 1;
                if *count == 0 {
                    endpoints.remove(of);
                }
            }
        });
    }

    fn count_endpoints(
        &mut self,
        slice: &CompactSlice,
        change: impl Fn(&mut BTreeMap<EndpointOwner, usize>),
    ) {
        if self.asked.is_empty() {
            return;
        }
        for endpoint in &slice.endpoints {
            let Some(asked) = self.asked.get_mut(&endpoint.address) else { continue };
            let before = asked.endpoints.first_key_value().map(|(owner, _)| owner.clone());
            change(&mut asked.endpoints);
            if before.as_ref() != asked.endpoints.first_key_value().map(|(owner, _)| owner) {
                self.affect(&endpoint.address);
            }
        }
    }

    /// Counts the endpoints at addresses that Services have not asked for before: `all` are the endpoints of the
    /// cluster.
    pub(crate) fn count_new(
        &mut self,
        uncounted: &BTreeSet<IpAddr>,
        all: impl Iterator<Item = (IpAddr, EndpointOwner)>,
    ) {
        for ip in uncounted {
            self.asked.entry(*ip).and_modify(|asked| asked.endpoints.clear());
        }
        for (ip, owner) in all {
            self.asked.entry(ip).and_modify(|asked| *asked.endpoints.entry(owner).or_default() += 1);
        }
    }

    fn affect(&mut self, ip: &IpAddr) {
        let asked = self.asked.get(ip).into_iter();
        self.affected.extend(asked.flat_map(|asked| &asked.claims).map(|claim| claim.service.clone()));
    }
}

/// The ClusterIPs that the API server gave a Service; an `ExternalName` may have old ones left over, which do not
/// count.
fn given(service: Option<&Service>) -> &[IpAddr] {
    match service {
        Some(service) if service.kind != ServiceKind::ExternalName => &service.cluster_ips,
        _ => &[],
    }
}

/// The claims of a Service on external addresses, if it is served.
fn claims(service: Option<&Service>, options: &Options) -> BTreeSet<(IpAddr, AddressClaim)> {
    let served =
        service.into_iter().filter(|service| !service.other_proxy && !given(Some(service)).is_empty());
    served
        .flat_map(|service| {
            let claim = |is_external_ip| AddressClaim {
                is_external_ip,
                created: service.created,
                service: service.name.clone(),
            };
            let balancers = service.in_its_families(&service.load_balancer_ips);
            let external = service.in_its_families(service.possible_external_ips(options));
            balancers
                .map(move |ip| (ip, claim(false)))
                .chain(external.map(move |ip| (ip, claim(true))))
                .collect::<Vec<_>>()
        })
        .collect()
}
