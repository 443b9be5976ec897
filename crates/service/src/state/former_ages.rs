//! The age that a Service keeps when it is deleted and created again.

use std::collections::VecDeque;

use crate::input::{ObjectName, Service};

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
    /// Remembers a Service that is deleted.
    pub(crate) fn remember(&mut self, service: &Service) {
        if !service.has_external_addresses() {
            return;
        }
        let namespace = service.name.namespace();
        let of_namespace =
            || self.deleted.iter().enumerate().filter(|(_, (name, _))| name.namespace() == namespace);
        let oldest = of_namespace().next().map(|(index, _)| index);
        if of_namespace().count() >= MAX_PER_NAMESPACE
            && let Some(oldest) = oldest
        {
            self.deleted.remove(oldest);
        } else if self.deleted.len() >= MAX {
            self.deleted.pop_front();
        }
        self.deleted.push_back((service.name.clone(), service.created));
    }

    /// Gives a Service the creation time of the one it replaces, if that is earlier: of its version `before`, or of the
    /// deleted one.
    pub(crate) fn apply(&mut self, service: &mut Service, before: Option<&Service>) {
        let deleted = self.deleted.iter().position(|(name, _)| *name == service.name);
        let former = match before {
            Some(before) => before.has_external_addresses().then_some(before.created),
            None => deleted.and_then(|index| self.deleted.remove(index)).map(|(_, created)| created),
        };
        if let Some(former) = former {
            service.created = service.created.min(former);
        }
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
    fn a_namespace_that_deletes_many_services_pushes_out_no_others() {
        let mut ages = FormerAges::default();
        ages.remember(&service("a", "web", 1));
        for index in 0..2 * MAX {
            ages.remember(&service("b", &format!("web-{index}"), 1));
        }
        assert_eq!(ages.deleted.len(), 1 + MAX_PER_NAMESPACE);
        let mut again = service("a", "web", 9);
        ages.apply(&mut again, None);
        assert_eq!(again.created, Some(1));
        for index in 0..2 * MAX {
            ages.remember(&service(&format!("namespace-{index}"), "web", 1));
        }
        assert_eq!(ages.deleted.len(), MAX);
    }
}
