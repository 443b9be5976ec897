//! Changes of objects that wait for the writer thread.
//!
//! Only the last change of each object is kept, and a whole list replaces all earlier changes of its kind. So no
//! more changes wait than there are objects, however often these change and however long the kernel takes. (The
//! exception is the Node, which changes rarely.)

use std::mem;

use rustc_hash::FxHashMap;
use service::{Change, ObjectName};

use crate::ObjectKind;

/// The changes that wait, in the order in which they are applied.
#[derive(Debug, Default)]
pub(crate) struct PendingChanges {
    changes: Vec<PendingChange>,
    /// The index of each object's change, unless a list has come since: what follows a list must stay behind it.
    indices: FxHashMap<ObjectKey, usize>,
}

/// A change that waits. It stands for all those that it replaced.
#[derive(Debug)]
pub(crate) struct PendingChange {
    pub(crate) change: Change,
    /// The kind of its objects.
    pub(crate) kind: ObjectKind,
    /// The number of objects, in this change and in those that it replaced.
    pub(crate) objects: usize,
    /// How many changes it stands for: itself, and those that it replaced.
    pub(crate) changes: usize,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum ObjectKey {
    Service(ObjectName),
    Slice(ObjectName),
    Peer(ObjectName),
}

impl PendingChanges {
    /// Adds a change. It takes the place of the earlier change of the same object.
    ///
    /// That moves it ahead of changes of other objects, which makes no difference in the end: the desired state
    /// does not depend on the order.
    pub(crate) fn push(&mut self, change: Change) {
        let end = self.changes.len();
        let index = match object_key(&change) {
            Some(key) => *self.indices.entry(key).or_insert(end),
            None => end,
        };
        match self.changes.get_mut(index) {
            Some(earlier) => earlier.replace(change),
            None => self.append(PendingChange::new(change)),
        }
    }

    /// Appends a change. A whole list takes the place of all earlier changes of its kind. A change of the Node
    /// replaces nothing: a Node that is gone, or lists no addresses, keeps those that it had.
    fn append(&mut self, mut pending: PendingChange) {
        if pending.kind != ObjectKind::Node && object_key(&pending.change).is_none() {
            self.indices.clear();
        }
        let is_list = matches!(
            pending.change,
            Change::ReplaceServices(_) | Change::ReplaceSlices(_) | Change::ReplacePeers(_)
        );
        if is_list {
            for outdated in self.changes.extract_if(.., |earlier| earlier.kind == pending.kind) {
                pending.objects += outdated.objects;
                pending.changes += outdated.changes;
            }
        }
        self.changes.push(pending);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Takes all changes.
    pub(crate) fn take(&mut self) -> Vec<PendingChange> {
        self.indices.clear();
        mem::take(&mut self.changes)
    }
}

impl PendingChange {
    fn new(change: Change) -> Self {
        let (kind, objects) = ObjectKind::from_change(&change);
        Self { change, kind, objects, changes: 1 }
    }

    fn replace(&mut self, mut later: Change) {
        // The delay of a change is measured from the one that has waited longest.
        if let (Change::ApplySlice(earlier), Change::ApplySlice(later)) = (&self.change, &mut later) {
            later.triggered_at = later.triggered_at.into_iter().chain(earlier.triggered_at).min();
        }
        let (objects, changes) = (self.objects, self.changes);
        *self = Self::new(later);
        self.objects += objects;
        self.changes += changes;
    }
}

/// The one object of a change; `None` if the change is about all of a kind, or about this node.
fn object_key(change: &Change) -> Option<ObjectKey> {
    match change {
        Change::ApplyService(service) => Some(ObjectKey::Service(service.name.clone())),
        Change::DeleteService(name) => Some(ObjectKey::Service(name.clone())),
        Change::ApplySlice(slice) => Some(ObjectKey::Slice(slice.name.clone())),
        Change::DeleteSlice(name) => Some(ObjectKey::Slice(name.clone())),
        Change::ApplyPeer(peer) => Some(ObjectKey::Peer(ObjectName::new("", &*peer.name))),
        Change::DeletePeer(name) => Some(ObjectKey::Peer(name.clone())),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
