//! What is of interest beyond the kernel: to load balancers, and to whoever watches the node.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    compute::{DesiredService, HealthCheck, WithoutLocalEndpoint},
    input::ObjectName,
    ref_counts::RefCounts,
};

/// Kept along with the Services, since it is asked for often and few have any of it.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    pub(crate) health_checks: BTreeMap<ObjectName, HealthCheck>,
    pub(crate) without_local_endpoint: RefCounts<WithoutLocalEndpoint>,
    /// The Services with an address that they do not get.
    pub(crate) refused: BTreeSet<ObjectName>,
    /// Another number whenever one is refused that was not, or the other way round.
    pub(crate) refused_revision: u64,
    /// The problems of each Service that has any, in words.
    pub(crate) problems: BTreeMap<ObjectName, Vec<String>>,
    /// Another number whenever something else is wrong.
    pub(crate) problems_revision: u64,
}

impl Reports {
    /// Replaces the reports on a Service by those of now. Returns whether they differ.
    pub(crate) fn update(
        &mut self,
        service: &ObjectName,
        before: Option<&DesiredService>,
        now: Option<&DesiredService>,
    ) -> bool {
        let health_check = |desired: Option<&DesiredService>| desired.and_then(|it| it.health_check);
        match health_check(now) {
            Some(health_check) => drop(self.health_checks.insert(service.clone(), health_check)),
            None => drop(self.health_checks.remove(service)),
        }
        let [without_before, without_now] =
            [before, now].map(|desired| desired.map_or(&[][..], |it| &it.without_local_endpoint));
        for case in without_before {
            self.without_local_endpoint.remove(case);
        }
        for case in without_now {
            self.without_local_endpoint.add(*case);
        }
        let [refused_before, refused_now] =
            [before, now].map(|desired| desired.map_or(&[][..], |it| &it.refused));
        if refused_before != refused_now {
            self.refused_revision += 1;
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

    /// Replaces the problems of a Service by those of now.
    pub(crate) fn set_problems(&mut self, service: &ObjectName, problems: Vec<String>) {
        let before = match problems.is_empty() {
            true => self.problems.remove(service),
            false => self.problems.insert(service.clone(), problems),
        };
        if before.as_ref() != self.problems.get(service) {
            self.problems_revision += 1;
        }
    }
}
