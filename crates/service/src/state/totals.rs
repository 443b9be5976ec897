//! Totals over all Services: the keys that several can want at once, and what load balancers, metrics and `status` need
//! beyond the kernel's state.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use netfilter::Element;

use super::{Computed, Dirty};
use crate::{
    collections::RefCounts,
    compute::{
        DesiredService, EjectedEndpoint, EjectionState, HealthCheck, RefusedAddress, Urgency,
        WithoutLocalEndpoint,
    },
    input::ObjectName,
};

/// The VIPs, and the elements that belong to no virtual server, that at least one Service wants.
#[derive(Debug, Default)]
pub(crate) struct SharedKeys {
    pub(crate) vips: RefCounts<IpAddr>,
    pub(crate) elements: RefCounts<Element>,
    /// Every address at which an urgent Service is served, once for each port.
    pub(crate) urgent_ips: RefCounts<IpAddr>,
}

impl SharedKeys {
    /// Adds the keys of a Service to the counts, or removes them.
    pub(crate) fn count(&mut self, computed: &Computed, wanted: bool, dirty: &mut Dirty) {
        for vip in computed.desired.vips() {
            if self.vips.set(&vip, wanted) {
                dirty.toggle_vip(vip);
                dirty.toggle_element(Element::Vip(vip));
            }
        }
        for element in computed.desired.shared_elements() {
            if self.elements.set(element, wanted) {
                dirty.toggle_element(*element);
            }
        }
        if computed.urgency == Urgency::First {
            for address in computed.addresses() {
                self.urgent_ips.set(&address.ip, wanted);
            }
        }
    }
}

/// Reports on the Services. They are kept, since they are read often and few Services have any.
#[derive(Debug, Default)]
pub struct Reports {
    health_checks: BTreeMap<ObjectName, HealthCheck>,
    without_local_endpoint: RefCounts<WithoutLocalEndpoint>,
    served: usize,
    lacking_endpoints: BTreeSet<ObjectName>,
    refused: BTreeMap<ObjectName, Box<[RefusedAddress]>>,
    ejected: BTreeMap<ObjectName, Box<[EjectedEndpoint]>>,
    problems: BTreeMap<ObjectName, Vec<String>>,
    /// Changes whenever the refusals or the problems do.
    pub(super) revision: u64,
}

impl Reports {
    /// The Services with a health check port for load balancers, with the answers, sorted by name. An answer can
    /// change alone: the last pod here that begins to terminate stays a real server.
    pub fn health_checks(&self) -> impl Iterator<Item = (&ObjectName, &HealthCheck)> {
        self.health_checks.iter()
    }

    /// How many Services are in this case with at least one port: upstream's metric
    /// `sync_proxy_rules_no_local_endpoints_total`.
    pub fn without_local_endpoint(&self, case: WithoutLocalEndpoint) -> usize {
        self.without_local_endpoint.count(&case)
    }

    /// The number of Services that are served on this node.
    pub fn served(&self) -> usize {
        self.served
    }

    /// The served Services of which no port has an endpoint, sorted by name. Those that lack one only because of a
    /// policy Local are left out.
    pub fn lacking_endpoints(&self) -> &BTreeSet<ObjectName> {
        &self.lacking_endpoints
    }

    /// The Services with refused external addresses, sorted by name, each with these addresses.
    pub fn refused(&self) -> impl Iterator<Item = (&ObjectName, &[RefusedAddress])> {
        self.refused.iter().map(|(service, refused)| (service, &refused[..]))
    }

    /// The number of refused addresses.
    pub fn refused_count(&self) -> usize {
        self.refused.values().map(|refused| refused.len()).sum()
    }

    /// The Services with an [`EjectedEndpoint`], sorted by name, each with these endpoints.
    pub fn ejected(&self) -> impl Iterator<Item = (&ObjectName, &[EjectedEndpoint])> {
        self.ejected.iter().map(|(service, ejected)| (service, &ejected[..]))
    }

    /// How many endpoints are ejected, and how many on trial after that; each counted once for each Service.
    pub fn ejected_count(&self) -> [usize; 2] {
        let count = |state| self.ejected.values().flatten().filter(|it| it.state == state).count();
        [count(EjectionState::Out), count(EjectionState::OnTrial)]
    }

    /// The Services that have problems, or whose slices have, sorted by name, each with its problems. Some exist on
    /// every node, some on this one only.
    pub fn problems(&self) -> impl Iterator<Item = (&ObjectName, &[String])> {
        self.problems.iter().map(|(service, problems)| (service, &problems[..]))
    }

    /// The number of problems.
    pub fn problem_count(&self) -> usize {
        self.problems.values().map(Vec::len).sum()
    }

    /// Replaces the reports on a Service. Returns whether they differ.
    pub(super) fn update(
        &mut self,
        service: &ObjectName,
        before: Option<&DesiredService>,
        now: Option<&DesiredService>,
    ) -> bool {
        let [check_before, check_now] = [before, now].map(|it| it.and_then(DesiredService::health_check));
        match check_now {
            Some(check) => drop(self.health_checks.insert(service.clone(), check)),
            None => drop(self.health_checks.remove(service)),
        }
        let [without_before, without_now] =
            [before, now].map(|it| it.map_or(&[][..], DesiredService::without_local_endpoint));
        for (cases, wanted) in [(without_before, false), (without_now, true)] {
            for case in cases {
                self.without_local_endpoint.set(case, wanted);
            }
        }
        let [served_before, served_now] =
            [before, now].map(|it| usize::from(it.is_some_and(DesiredService::is_served)));
        self.served = self.served + served_now - served_before;
        match now.is_some_and(DesiredService::lacks_endpoints) {
            true => _ = self.lacking_endpoints.insert(service.clone()),
            false => _ = self.lacking_endpoints.remove(service),
        }
        let refused_changed = replace(&mut self.refused, service, [before, now], DesiredService::refused);
        let ejected_changed = replace(&mut self.ejected, service, [before, now], DesiredService::ejected);
        self.revision += u64::from(refused_changed || ejected_changed);
        check_before != check_now || without_before != without_now || refused_changed
    }

    /// Replaces the problems of a Service.
    pub(super) fn set_problems(&mut self, service: &ObjectName, problems: Vec<String>) {
        let before = match problems.is_empty() {
            true => self.problems.remove(service),
            false => self.problems.insert(service.clone(), problems),
        };
        if before.as_ref() != self.problems.get(service) {
            self.revision += 1;
        }
    }
}

/// Replaces a list that few Services have. Returns whether it differs.
fn replace<T: Clone + PartialEq>(
    lists: &mut BTreeMap<ObjectName, Box<[T]>>,
    service: &ObjectName,
    before_and_now: [Option<&DesiredService>; 2],
    list: impl Fn(&DesiredService) -> &[T],
) -> bool {
    let [before, now] = before_and_now.map(|it| it.map_or(&[][..], &list));
    match now {
        _ if before == now => return false,
        [] => drop(lists.remove(service)),
        now => drop(lists.insert(service.clone(), now.into())),
    }
    true
}
