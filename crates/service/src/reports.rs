//! What is of interest beyond the kernel: to load balancers, and to whoever watches the node.

use std::collections::BTreeMap;

use crate::{DesiredService, HealthCheck, ObjectName, WithoutLocalEndpoint, counted::Counted};

/// Kept along with the Services, since it is asked for often and few have any of it.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    pub(crate) health_checks: BTreeMap<ObjectName, HealthCheck>,
    pub(crate) without_local_endpoint: Counted<WithoutLocalEndpoint>,
}

impl Reports {
    /// Puts what there is to say of a Service now in the place of what there was before. Whether it is something
    /// else.
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
        health_check(before) != health_check(now) || without_before != without_now
    }
}
