//! The log of problems of objects.

use rustc_hash::FxHashMap;
use service::ObjectName;
use tracing::{debug, info, warn};

use crate::objects::{Decoded, Kind};

/// Logs the problems of each object once, and again when they change.
#[derive(Debug, Default)]
pub(crate) struct ProblemLog(FxHashMap<(&'static str, ObjectName), Logged>);

/// The last line logged about an object.
#[derive(Debug, Default)]
struct Logged {
    line: String,
    /// Whether nothing of the object can be used.
    is_skipped: bool,
    /// Whether the object was read since the last list began.
    is_listed: bool,
}

impl ProblemLog {
    /// Starts a list, which reads every object again.
    pub(crate) fn list_begins(&mut self) {
        self.0.values_mut().for_each(|logged| logged.is_listed = false);
    }

    /// Forgets the objects that were not read since the list began: they are gone.
    pub(crate) fn list_ends(&mut self) {
        self.0.retain(|_, logged| logged.is_listed);
    }

    /// Lists the objects of which nothing can be used, with the reason, in no particular order.
    pub(crate) fn skipped(&self) -> impl Iterator<Item = &String> {
        self.0.values().filter(|logged| logged.is_skipped).map(|logged| &logged.line)
    }

    /// Returns the object if there is something to serve, and logs its problems.
    pub(crate) fn usable<T: Kind>(&mut self, name: &ObjectName, decoded: Decoded<T>) -> Option<T> {
        match decoded {
            Decoded::Object(object) => {
                self.about(T::KIND, name, false, object.problems());
                Some(object)
            }
            Decoded::NotOurs(reason) => {
                debug!("{} {name} is ignored: {reason}", T::KIND);
                self.0.remove(&(T::KIND, name.clone()));
                None
            }
            Decoded::Unusable(reason) => {
                self.about(T::KIND, name, true, &[reason]);
                None
            }
        }
    }

    /// Forgets an object that is gone.
    pub(crate) fn forget<T: Kind>(&mut self, name: &ObjectName) {
        self.0.remove(&(T::KIND, name.clone()));
    }

    fn about(&mut self, kind: &'static str, name: &ObjectName, is_skipped: bool, problems: &[String]) {
        // Almost no object has a problem, or had one.
        if problems.is_empty() {
            if !self.0.is_empty() && self.0.remove(&(kind, name.clone())).is_some() {
                info!(namespace = name.namespace(), object = %name, "{kind} {name} no longer has problems");
            }
            return;
        }
        let consequence = if is_skipped { "the whole object is skipped" } else { "in part" };
        let line = format!("{kind} {name}: {consequence}: {}", problems.join("; "));
        let last = self.0.entry((kind, name.clone())).or_default();
        if last.line != line {
            warn!(namespace = name.namespace(), object = %name, "{line}");
        }
        *last = Logged { line, is_skipped, is_listed: true };
    }
}

#[cfg(test)]
mod tests {
    use service::Service;
    use testkit::log::Log;

    use super::*;

    /// What the log says when an object is read so, one time after the other.
    fn logged(readings: &[Decoded<Service>]) -> Vec<String> {
        let log = Log::start().unwrap();
        let mut problem_log = ProblemLog::default();
        for reading in readings {
            problem_log.usable(&name(), reading.clone());
        }
        log.lines().unwrap()
    }

    fn name() -> ObjectName {
        ObjectName::new("default", "web")
    }

    fn with_problems(problems: &[&str]) -> Decoded<Service> {
        let problems = problems.iter().map(|&problem| problem.to_owned()).collect();
        Decoded::Object(Service { problems, ..Service::new(name()) })
    }

    #[test]
    fn what_is_wrong_with_an_object_is_logged_once_and_again_when_it_changes() {
        let open = "spec.loadBalancerSourceRanges: none is IPv6; every client is let in at 2001:db8::7";
        let readings = [&[open][..], &[open], &["spec.ports: 7 is not a list", open], &[], &[]];
        assert_eq!(
            logged(&readings.map(with_problems)),
            [
                format!("WARN Service default/web: in part: {open}"),
                format!("WARN Service default/web: in part: spec.ports: 7 is not a list; {open}"),
                "INFO Service default/web no longer has problems".to_owned(),
            ]
        );
    }

    #[test]
    fn an_object_of_which_nothing_can_be_used_is_logged_with_the_reason() {
        let unusable = Decoded::Unusable("metadata has no name".to_owned());
        assert_eq!(
            logged(&[unusable.clone(), unusable]),
            ["WARN Service default/web: the whole object is skipped: metadata has no name"]
        );
    }
}
