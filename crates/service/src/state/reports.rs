//! What load balancers, metrics and `status` need of the Services, beyond the kernel's state.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    compute::{DesiredService, HealthCheck, WithoutLocalEndpoint},
    input::ObjectName,
    ref_counts::RefCounts,
};

/// Reports on the Services. They are kept, since they are read often and few Services have any.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    pub(crate) health_checks: BTreeMap<ObjectName, HealthCheck>,
    pub(crate) without_local_endpoint: RefCounts<WithoutLocalEndpoint>,
    /// The Services with a refused address.
    pub(crate) refused: BTreeSet<ObjectName>,
    /// How many addresses these have together.
    pub(crate) refused_count: usize,
    /// Changes whenever an address is refused that was not, or the other way round.
    pub(crate) refused_revision: u64,
    /// The problems of each Service that has any, in words.
    pub(crate) problems: BTreeMap<ObjectName, Vec<String>>,
    /// How many problems these have together.
    pub(crate) problem_count: usize,
    /// Changes whenever the problems do.
    pub(crate) problems_revision: u64,
}

impl Reports {
    /// Replaces the reports on a Service. Returns whether they differ.
    pub(crate) fn update(
        &mut self,
        service: &ObjectName,
        before: Option<&DesiredService>,
        now: Option<&DesiredService>,
    ) -> bool {
        let health_check = |desired: Option<&DesiredService>| desired.and_then(DesiredService::health_check);
        match health_check(now) {
            Some(health_check) => drop(self.health_checks.insert(service.clone(), health_check)),
            None => drop(self.health_checks.remove(service)),
        }
        let [without_before, without_now] =
            [before, now].map(|desired| desired.map_or(&[][..], DesiredService::without_local_endpoint));
        for case in without_before {
            self.without_local_endpoint.remove(case);
        }
        for case in without_now {
            self.without_local_endpoint.add(*case);
        }
        let [refused_before, refused_now] =
            [before, now].map(|desired| desired.map_or(&[][..], DesiredService::refused));
        if refused_before != refused_now {
            self.refused_revision += 1;
            self.refused_count = self.refused_count + refused_now.len() - refused_before.len();
            if refused_now.is_empty() {
                self.refused.remove(service);
            } else {
                self.refused.insert(service.clone());
            }
        }
        health_check(before) != health_check(now)
            || without_before != without_now
            || refused_before != refused_now
    }

    /// Replaces the problems of a Service.
    pub(crate) fn set_problems(&mut self, service: &ObjectName, problems: Vec<String>) {
        self.problem_count += problems.len();
        let before = match problems.is_empty() {
            true => self.problems.remove(service),
            false => self.problems.insert(service.clone(), problems),
        };
        self.problem_count -= before.as_ref().map_or(0, Vec::len);
        if before.as_ref() != self.problems.get(service) {
            self.problems_revision += 1;
        }
    }
}
