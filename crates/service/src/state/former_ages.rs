//! The age that a Service keeps when it is deleted and created again.

use std::collections::VecDeque;

use crate::input::{ObjectName, Options, Service};

/// The most Services that are remembered.
const MAX: usize = 4_096;
/// The most of one namespace: its further deletions must not push out those of others.
const MAX_PER_NAMESPACE: usize = 64;

/// The creation times of deleted Services that had external addresses.
///
/// Such an address belongs to the oldest Service that asks for it. A Service that `kubectl replace --force` or a
/// chart's upgrade creates again would be the youngest and lose its addresses to a Service of another namespace that
/// has been waiting for them, so it counts as old as the one it replaces. Only this daemon remembers that: one that
/// starts later knows the new Service's own creation time alone.
#[derive(Debug, Default)]
pub(crate) struct FormerAges {
    /// The last one was deleted last.
    deleted: VecDeque<(ObjectName, Option<i64>)>,
}

impl FormerAges {
    /// Remembers a Service that is deleted, or has no external address any more.
    pub(crate) fn remember(&mut self, service: &Service, options: &Options) {
        if !service.has_external_addresses(options) {
            return;
        }
        let namespace = service.name.namespace();
        let mut of_namespace = (0..)
            .zip(&self.deleted)
            .filter(|(_, (name, _))| name.namespace() == namespace)
            .map(|(index, _)| index);
        match (of_namespace.next(), of_namespace.count()) {
            (Some(oldest), more) if 1 + more >= MAX_PER_NAMESPACE => drop(self.deleted.remove(oldest)),
            _ if self.deleted.len() >= MAX => drop(self.deleted.pop_front()),
            _ => {}
        }
        self.deleted.push_back((service.name.clone(), service.created));
    }

    /// Gives a Service with external addresses the creation time of the one it replaces, if that is earlier: of its
    /// version `before`, or of the deleted one. A load balancer's new Service has no address at first.
    pub(crate) fn apply(&mut self, service: &mut Service, before: Option<&Service>, options: &Options) {
        let before = before.filter(|before| before.has_external_addresses(options));
        if service.has_external_addresses(options) {
            let known = before.map(|before| before.created);
            if let Some(former) = known.or_else(|| self.forget(&service.name).map(|(_, created)| created)) {
                service.created = service.created.min(former);
            }
        } else if let Some(before) = before {
            self.remember(before, options);
        }
    }

    fn forget(&mut self, name: &ObjectName) -> Option<(ObjectName, Option<i64>)> {
        let index = self.deleted.iter().position(|(deleted, _)| deleted == name)?;
        self.deleted.remove(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(namespace: &str, name: &str, created: i64) -> Service {
        Service {
            external_ips: vec![[192, 0, 2, 1].into()],
            created: Some(created),
            ..Service::new(ObjectName::new(namespace, name))
        }
    }

    #[test]
    fn the_age_is_that_of_the_deleted_service_once_the_new_one_has_an_address() {
        let (mut ages, options) = (FormerAges::default(), Options::new("n1"));
        let old = service("a", "web", 1);
        let without_address = || Service { external_ips: Vec::new(), ..service("a", "web", 9) };
        let mut versions = vec![old.clone()];
        ages.remember(&old, &options);
        for mut version in
            [without_address(), without_address(), service("a", "web", 9), service("a", "web", 9)]
        {
            let before = versions.last().filter(|_| versions.len() > 1).cloned();
            ages.apply(&mut version, before.as_ref(), &options);
            versions.push(version);
        }
        let created: Vec<_> = versions.iter().map(|version| version.created).collect();
        assert_eq!(created, [Some(1), Some(9), Some(9), Some(1), Some(1)]);
        let mut unseen = without_address();
        ages.apply(&mut unseen, Some(&old), &options);
        assert_eq!(unseen.created, Some(9));
        let mut again = service("a", "web", 9);
        ages.apply(&mut again, Some(&unseen), &options);
        assert_eq!(again.created, Some(1));
    }

    #[test]
    fn a_namespace_that_deletes_many_services_pushes_out_no_others() {
        let (mut ages, options) = (FormerAges::default(), Options::new("n1"));
        ages.remember(&service("a", "web", 1), &options);
        for index in 0..2 * MAX {
            ages.remember(&service("b", &format!("web-{index}"), 1), &options);
        }
        assert_eq!(ages.deleted.len(), 1 + MAX_PER_NAMESPACE);
        let mut again = service("a", "web", 9);
        ages.apply(&mut again, None, &options);
        assert_eq!(again.created, Some(1));
        for index in 0..2 * MAX {
            ages.remember(&service(&format!("namespace-{index}"), "web", 1), &options);
        }
        assert_eq!(ages.deleted.len(), MAX);
    }
}
