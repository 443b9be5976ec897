//! What cannot be watched, for whoever asks how things stand.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// The resources that cannot be watched, since when and why. Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Troubles {
    resources: Arc<Mutex<BTreeMap<&'static str, (Instant, String)>>>,
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
        self.lock().iter().map(line).collect()
    }

    pub(super) fn begin(&self, resource: &'static str, cause: &str) {
        let since = |now| (now, cause.to_owned());
        self.lock()
            .entry(resource)
            .and_modify(|(_, said)| cause.clone_into(said))
            .or_insert_with(|| since(Instant::now()));
    }

    pub(super) fn end(&self, resource: &'static str) {
        self.lock().remove(resource);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, (Instant, String)>> {
        self.resources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
