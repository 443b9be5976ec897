//! Changes of objects that wait for the writer thread.
//!
//! Only the last change of each object is kept, a whole list replaces all earlier changes of its kind, and the parts of
//! a list that is being read are put together. So no more changes wait than there are objects, however often these
//! change, however often their list breaks off, and however long the kernel takes.

use std::{
    hash::Hash,
    mem::{self, Discriminant},
};

use rustc_hash::{FxHashMap, FxHashSet};
use service::{Change, Event, Named, ObjectName};

use crate::ObjectKind;

/// The changes that wait, in the order in which they are applied.
#[derive(Debug, Default)]
pub(crate) struct PendingChanges {
    changes: Vec<PendingChange>,
    /// The index of the change that the next one of its key replaces. What follows a list must stay behind it.
    indices: FxHashMap<Key, usize>,
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
    /// Parts of a list: how many objects there were when each was last left there once.
    distinct: usize,
}

/// The subject of a change that the next one about the same subject replaces.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    Object(ObjectKind, ObjectName),
    /// The parts of a list that is being read.
    Parts(ObjectKind),
    /// One property of this node, or of what it knows.
    OfNode(Discriminant<Change>),
}

impl PendingChanges {
    /// Adds a change. It takes the place of the earlier change of the same object.
    ///
    /// That moves it ahead of changes of other objects, which makes no difference in the end: the desired state
    /// does not depend on the order.
    pub(crate) fn push(&mut self, change: Change) {
        let index = Key::from_change(&change).and_then(|key| self.indices.get(&key)).copied();
        match index.and_then(|index| self.changes.get_mut(index)) {
            Some(earlier) => earlier.replace(change),
            None => self.append(PendingChange::new(change)),
        }
    }

    /// Appends a change. A whole list takes the place of all earlier changes of its kind.
    fn append(&mut self, mut pending: PendingChange) {
        let kind = pending.kind;
        let outdated: fn(&PendingChange, ObjectKind) -> bool = match pending.change {
            Change::Services(Event::Replace(_))
            | Change::Slices(Event::Replace(_))
            | Change::Peers(Event::Replace(_)) => |earlier, kind| earlier.kind == kind,
            Change::ForgetPeers => |earlier, kind| earlier.kind == kind || earlier.is_said_by_peers(),
            _ => |_, _| false,
        };
        let before = self.changes.len();
        for outdated in self.changes.extract_if(.., |earlier| outdated(earlier, kind)) {
            pending.objects += outdated.objects;
            pending.changes += outdated.changes;
        }
        let moved = self.changes.len() < before;
        self.changes.push(pending);
        if moved {
            self.indices.clear();
        }
        let first = if moved { 0 } else { before };
        (first..self.changes.len()).for_each(|index| self.index(index));
    }

    /// Records where the next change of the same key goes.
    fn index(&mut self, index: usize) {
        let Some(pending) = self.changes.get(index) else { return };
        let kind = pending.kind;
        let key = Key::from_change(&pending.change);
        match &key {
            // What follows a list, or a part of one, stays behind it.
            None | Some(Key::Parts(_)) => self.indices.retain(|key, _| key.kind() != kind),
            Some(_) => _ = self.indices.remove(&Key::Parts(kind)),
        }
        self.indices.extend(key.map(|key| (key, index)));
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
        let (kind, objects) = objects_of(&change);
        Self { change, kind, objects, changes: 1, distinct: 0 }
    }

    fn replace(&mut self, later: Change) {
        self.objects += objects_of(&later).1;
        self.changes += 1;
        let distinct = &mut self.distinct;
        match (&mut self.change, later) {
            (Change::Services(earlier), Change::Services(later)) => replace_event(earlier, later, distinct),
            (Change::Peers(earlier), Change::Peers(later)) => replace_event(earlier, later, distinct),
            (Change::Slices(earlier), Change::Slices(mut later)) => {
                // The delay of a change is measured from the one that has waited longest.
                if let (Event::Apply(earlier), Event::Apply(later)) = (&*earlier, &mut later) {
                    later.triggered_at = later.triggered_at.into_iter().chain(earlier.triggered_at).min();
                }
                replace_event(earlier, later, distinct);
            }
            // A Node that is gone, or lists no addresses, keeps those that it had.
            (Change::Node(Some(_)), Change::Node(None)) => {}
            (Change::Node(Some(earlier)), Change::Node(Some(mut later))) => {
                if later.ips.is_empty() {
                    later.ips = mem::take(&mut earlier.ips);
                }
                *earlier = later;
            }
            (earlier, later) => *earlier = later,
        }
    }

    /// Whether it is about what other nodes have said, which is forgotten with them.
    fn is_said_by_peers(&self) -> bool {
        matches!(self.change, Change::UnpackingPeers(_) | Change::TunnelledBefore(_))
    }
}

/// Replaces an event by a later one about the same object, or adds the next part of a list. Where the list has begun
/// anew, the earlier objects of the same names are dropped in time.
fn replace_event<T: Named>(earlier: &mut Event<T>, later: Event<T>, distinct: &mut usize) {
    /// With fewer objects nothing is dropped.
    const FEW: usize = 1_000;
    match (earlier, later) {
        (Event::InitApply(parts), Event::InitApply(part)) => {
            parts.extend(part);
            if parts.len() > 2 * (*distinct).max(FEW) {
                let mut names = FxHashSet::default();
                parts.reverse();
                parts.retain(|object| names.insert(object.object_name()));
                parts.reverse();
                *distinct = parts.len();
            }
        }
        (earlier, later) => *earlier = later,
    }
}

/// The kind of objects in a change, and their number.
fn objects_of(change: &Change) -> (ObjectKind, usize) {
    match change {
        Change::Services(event) => (ObjectKind::Services, event.objects()),
        Change::Slices(event) => (ObjectKind::EndpointSlices, event.objects()),
        Change::Peers(event) => (ObjectKind::Peers, event.objects()),
        Change::ForgetPeers | Change::PeersUnavailable => (ObjectKind::Peers, 0),
        Change::Node(_)
        | Change::NodeAddresses { .. }
        | Change::UnpackingPeers(_)
        | Change::TunnelledBefore(_)
        | Change::LinkMtu(_)
        | Change::ApiServer(_)
        | Change::Gateways(_)
        | Change::MissingTunnels(_)
        | Change::TunnelsInUse(_)
        | Change::MissingSchedulers(_)
        | Change::Answers(_)
        | Change::Time(_) => (ObjectKind::Node, 1),
    }
}

impl Key {
    /// The key of a change; `None` if it is about all objects of a kind.
    fn from_change(change: &Change) -> Option<Self> {
        let (kind, _) = objects_of(change);
        match change {
            Change::Services(event) => Self::from_event(kind, event),
            Change::Slices(event) => Self::from_event(kind, event),
            Change::Peers(event) => Self::from_event(kind, event),
            Change::ForgetPeers => None,
            _ => Some(Self::OfNode(mem::discriminant(change))),
        }
    }

    fn from_event<T: Named>(kind: ObjectKind, event: &Event<T>) -> Option<Self> {
        match event {
            Event::Apply(object) => Some(Self::Object(kind, object.object_name())),
            Event::Delete(name) => Some(Self::Object(kind, name.clone())),
            Event::InitApply(_) => Some(Self::Parts(kind)),
            Event::Replace(_) | Event::InitDone(_) => None,
        }
    }

    /// The kind of what it is about.
    fn kind(&self) -> ObjectKind {
        match self {
            Self::Object(kind, _) | Self::Parts(kind) => *kind,
            Self::OfNode(_) => ObjectKind::Node,
        }
    }
}

#[cfg(test)]
mod tests;
