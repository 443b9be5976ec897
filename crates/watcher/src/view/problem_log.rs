//! Problems of objects in the log.

use rustc_hash::FxHashMap;
use service::ObjectName;
use tracing::{debug, info, warn};

use super::{Decoded, Kind};

/// Logs what is wrong with each object once, and again when that changes.
#[derive(Debug, Default)]
pub(crate) struct ProblemLog(FxHashMap<(&'static str, ObjectName), String>);

impl ProblemLog {
    /// Returns what there is to serve of an object, and logs what is wrong with it.
    pub(crate) fn usable<T: Kind>(&mut self, name: &ObjectName, decoded: Decoded<T>) -> Option<T> {
        match decoded {
            Decoded::Object(object) => {
                self.about(T::KIND, name, "in part", object.problems());
                Some(object)
            }
            Decoded::NotOurs(reason) => {
                debug!("{} {name} is ignored: {reason}", T::KIND);
                self.0.remove(&(T::KIND, name.clone()));
                None
            }
            Decoded::Unusable(reason) => {
                self.about(T::KIND, name, "the whole object is skipped", &[reason]);
                None
            }
        }
    }

    /// Forgets an object that is gone.
    pub(crate) fn forget<T: Kind>(&mut self, name: &ObjectName) {
        self.0.remove(&(T::KIND, name.clone()));
    }

    fn about(&mut self, kind: &'static str, name: &ObjectName, consequence: &str, problems: &[String]) {
        // Almost every object is sound, and almost none ever had a problem.
        if problems.is_empty() {
            if !self.0.is_empty() && self.0.remove(&(kind, name.clone())).is_some() {
                info!("{kind} {name} is sound again");
            }
            return;
        }
        let words = problems.join("; ");
        let said = self.0.entry((kind, name.clone())).or_default();
        if *said != words {
            warn!("{kind} {name}: {consequence}: {words}");
            *said = words;
        }
    }
}
