//! What cannot be watched, and when the server was last heard, for whoever asks how things stand.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Instant, SystemTime},
};

/// The resources that cannot be watched, since when and why. Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Troubles(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    resources: BTreeMap<&'static str, (Instant, String)>,
    last_heard: Option<SystemTime>,
}

impl Troubles {
    /// One line for each resource that cannot be watched now.
    pub fn lines(&self) -> Vec<String> {
        let line = |(resource, (since, cause)): (&&str, &(Instant, String))| {
            let seconds = since.elapsed().as_secs_f64();
            format!(
                "API server: {resource} not watched for {seconds:.0} s: {cause}; what is programmed stays"
            )
        };
        self.lock().resources.iter().map(line).collect()
    }

    /// How many resources cannot be watched now.
    pub fn count(&self) -> usize {
        self.lock().resources.len()
    }

    /// When the server last answered, or sent an event, as it should; a quiet watch has a bookmark about once a minute.
    pub fn last_heard(&self) -> Option<SystemTime> {
        self.lock().last_heard
    }

    pub(super) fn begin(&self, resource: &'static str, cause: &str) {
        let since = |now| (now, cause.to_owned());
        self.lock()
            .resources
            .entry(resource)
            .and_modify(|(_, said)| cause.clone_into(said))
            .or_insert_with(|| since(Instant::now()));
    }

    /// The server has answered as it should.
    pub(super) fn heard(&self, resource: &'static str) {
        let mut known = self.lock();
        known.resources.remove(resource);
        known.last_heard = Some(SystemTime::now());
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_watched_is_counted_until_the_server_is_heard() {
        let troubles = Troubles::default();
        assert_eq!((troubles.count(), troubles.last_heard()), (0, None));
        troubles.begin("services", "refused");
        troubles.begin("services", "still refused");
        troubles.begin("nodes", "refused");
        assert_eq!((troubles.count(), troubles.last_heard()), (2, None));
        let before = SystemTime::now();
        troubles.heard("services");
        assert_eq!(troubles.count(), 1);
        assert!(troubles.last_heard().is_some_and(|heard| heard >= before));
    }
}
