//! The journal: the last changes of each Service that the writer has carried out, with their causes, in bounded memory.
//! Nothing here reads a clock: the caller passes the time.

pub(crate) mod change;
pub(crate) mod collect;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::SystemTime,
};

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use service::ObjectName;
use tracing::debug;

use change::ServiceChange;

/// An entry of the journal: a change of one Service in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// Its number since the start of the daemon, over all Services; the first is 1.
    pub number: u64,
    /// When its sync ended, by the node's clock.
    pub at: SystemTime,
    /// The Service, which may no longer exist.
    pub service: ObjectName,
    /// What was done, and why.
    #[serde(flatten)]
    pub change: ServiceChange,
}

/// A part of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalPage {
    /// The entries, the oldest first.
    pub entries: Vec<JournalEntry>,
    /// The number of the last entry of all Services; 0 if there was none.
    pub last: u64,
    /// When the journal began: at the start of the daemon, by the node's clock.
    pub began: SystemTime,
    /// Whether entries that belong here are no longer kept, or may be.
    pub incomplete: bool,
}

/// The entries by number, and who has them.
///
/// A Service keeps its last [`Journal::MOST_OF_SERVICE`] entries, whether or not it still exists. If all entries take
/// more than the limit, the namespace that takes most loses its oldest one, so that one tenant's churn does not
/// displace the entries of others.
#[derive(Debug)]
pub(crate) struct Journal {
    began: SystemTime,
    most_bytes: usize,
    bytes: usize,
    /// The number of the last entry.
    last: u64,
    /// The highest number of an entry that is no longer kept.
    dropped: u64,
    /// The highest number of an entry whose Service has none any more.
    forgotten: u64,
    entries: BTreeMap<u64, JournalEntry>,
    services: FxHashMap<ObjectName, OfService>,
    namespaces: FxHashMap<Arc<str>, OfNamespace>,
    /// The namespaces by the bytes of their entries.
    by_size: BTreeSet<(usize, Arc<str>)>,
}

#[derive(Debug)]
struct OfService {
    numbers: VecDeque<u64>,
    /// The highest number of an entry of it that is no longer kept, or may have been one.
    dropped: u64,
}

#[derive(Debug, Default)]
struct OfNamespace {
    bytes: usize,
    numbers: BTreeSet<u64>,
}

impl Journal {
    /// The number of entries that are kept of a Service.
    pub(crate) const MOST_OF_SERVICE: usize = 20;
    /// The bytes that all entries take at most, about.
    pub(crate) const MOST_BYTES: usize = 2 << 20;
    /// The bytes that the indexes and the name of a Service take for each entry, about.
    const INDEX_BYTES: usize = 150;

    /// An empty journal.
    pub(crate) fn new(began: SystemTime, most_bytes: usize) -> Self {
        Self {
            began,
            most_bytes,
            bytes: 0,
            last: 0,
            dropped: 0,
            forgotten: 0,
            entries: BTreeMap::new(),
            services: FxHashMap::default(),
            namespaces: FxHashMap::default(),
            by_size: BTreeSet::new(),
        }
    }

    /// Adds the changes of a sync that ended at this time, and logs them.
    pub(crate) fn add(
        &mut self,
        changes: impl IntoIterator<Item = (ObjectName, ServiceChange)>,
        at: SystemTime,
    ) {
        for (service, change) in changes {
            self.last += 1;
            let entry = JournalEntry { number: self.last, at, service, change };
            log(&entry);
            self.insert(entry);
        }
    }

    /// The entries after a number, of one Service or of all.
    pub(crate) fn page(&self, of: Option<&ObjectName>, after: u64) -> JournalPage {
        let (began, last) = (self.began, self.last);
        let mut page = JournalPage { entries: Vec::new(), last, began, incomplete: self.forgotten > after };
        match of {
            None => {
                page.incomplete = self.dropped > after;
                let entries = self.entries.range(after.saturating_add(1)..);
                page.entries.extend(entries.map(|(_, entry)| entry.clone()));
            }
            Some(service) => {
                if let Some(OfService { numbers, dropped }) = self.services.get(service) {
                    let numbers = numbers.iter().filter(|number| **number > after);
                    page.entries.extend(numbers.filter_map(|number| self.entries.get(number)).cloned());
                    page.incomplete = *dropped > after;
                }
            }
        }
        page
    }

    fn insert(&mut self, entry: JournalEntry) {
        let (number, bytes) = (entry.number, size(&entry));
        let new = || OfService { numbers: VecDeque::new(), dropped: self.forgotten };
        let of_service = self.services.entry(entry.service.clone()).or_insert_with(new);
        of_service.numbers.push_back(number);
        let surplus = of_service.numbers.len() > Self::MOST_OF_SERVICE;
        let oldest = of_service.numbers.front().copied().filter(|_| surplus);
        let namespace = entry.service.namespace();
        if !self.namespaces.contains_key(namespace) {
            self.namespaces.insert(namespace.into(), OfNamespace::default());
        }
        self.change(namespace, |of_namespace| {
            of_namespace.numbers.insert(number);
            of_namespace.bytes += bytes;
        });
        self.entries.insert(number, entry);
        if let Some(oldest) = oldest {
            self.remove(oldest);
        }
        while self.bytes > self.most_bytes {
            let largest = self.by_size.last().and_then(|(_, name)| self.namespaces.get(name));
            let Some(oldest) = largest.and_then(|it| it.numbers.first().copied()) else { return };
            self.remove(oldest);
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(entry) = self.entries.remove(&number) else { return };
        self.dropped = self.dropped.max(number);
        if let Some(of_service) = self.services.get_mut(&entry.service) {
            of_service.numbers.retain(|it| *it != number);
            of_service.dropped = of_service.dropped.max(number);
            if of_service.numbers.is_empty() {
                self.forgotten = self.forgotten.max(number);
                self.services.remove(&entry.service);
            }
        }
        self.change(entry.service.namespace(), |of_namespace| {
            of_namespace.numbers.remove(&number);
            of_namespace.bytes = of_namespace.bytes.saturating_sub(size(&entry));
        });
    }

    /// Changes a namespace, and forgets one without entries.
    fn change(&mut self, namespace: &str, change: impl FnOnce(&mut OfNamespace)) {
        let Some((name, _)) = self.namespaces.get_key_value(namespace) else { return };
        let name = name.clone();
        let Some(of_namespace) = self.namespaces.get_mut(namespace) else { return };
        let before = of_namespace.bytes;
        change(of_namespace);
        self.bytes = (self.bytes + of_namespace.bytes).saturating_sub(before);
        self.by_size.remove(&(before, name.clone()));
        if of_namespace.numbers.is_empty() {
            self.namespaces.remove(namespace);
        } else {
            self.by_size.insert((of_namespace.bytes, name));
        }
    }
}

/// The bytes that an entry takes, about.
fn size(JournalEntry { service, change, .. }: &JournalEntry) -> usize {
    let (namespace, name) = service.parts();
    size_of::<JournalEntry>() + Journal::INDEX_BYTES + namespace.len() + name.len() + change.heap_bytes()
}

/// Logs an entry with its fields, at the level DEBUG: `-v 3`.
fn log(JournalEntry { service, change, .. }: &JournalEntry) {
    debug!(
        %service,
        change = %change.kind,
        endpoint = change.endpoint.map(display),
        virtual_server = change.virtual_server.map(display),
        vip = change.vip.map(display),
        cause = change.cause.as_deref(),
        repair = change.repair,
        "{change}"
    );
}

#[cfg(test)]
mod tests;
