//! A list that is being read.

use std::{collections::BTreeMap, mem};

use rustc_hash::FxHashSet;
use service::{Event, ObjectName};

use crate::objects::Kind;

/// How many objects are sent together: waking the receiver costs more than one object.
const AT_ONCE: usize = 100;

/// The objects of a list that have been read so far.
pub(super) enum Listing<T> {
    /// The first list. Nothing is acted on before its end, so objects are sent as they arrive: they need not
    /// be kept, and the desired state is computed by the time the last one is there.
    First {
        /// The names of all objects read.
        names: FxHashSet<ObjectName>,
        /// The objects that have not been sent yet.
        objects: Vec<T>,
    },
    /// A later list. It is sent as a whole, so that objects that are gone leave before their successors come.
    Later(BTreeMap<ObjectName, T>),
}

impl<T: Kind> Listing<T> {
    pub(super) fn first() -> Self {
        Self::First { names: FxHashSet::default(), objects: Vec::new() }
    }

    pub(super) fn later() -> Self {
        Self::Later(BTreeMap::new())
    }

    /// Adds an object, and returns the event to send now.
    pub(super) fn add(&mut self, name: ObjectName, object: T) -> Option<Event<T>> {
        match self {
            Self::First { names, objects } => {
                names.insert(name);
                objects.push(object);
                (objects.len() >= AT_ONCE).then(|| Event::InitApply(mem::take(objects)))
            }
            Self::Later(objects) => {
                objects.insert(name, object);
                None
            }
        }
    }

    /// Removes an object that is gone, or has become useless.
    pub(super) fn remove(&mut self, name: &ObjectName) {
        match self {
            Self::First { names, .. } => _ = names.remove(name),
            Self::Later(objects) => _ = objects.remove(name),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::First { names, .. } => names.is_empty(),
            Self::Later(objects) => objects.is_empty(),
        }
    }

    /// Ends the list, and returns the events to send.
    pub(super) fn finish(self) -> Vec<Event<T>> {
        match self {
            Self::First { names, objects } if objects.is_empty() => vec![Event::InitDone(names)],
            Self::First { names, objects } => vec![Event::InitApply(objects), Event::InitDone(names)],
            Self::Later(objects) => vec![Event::Replace(objects.into_values().collect())],
        }
    }
}
