//! A list that is being read.

use std::{collections::BTreeMap, mem};

use rustc_hash::FxHashSet;
use service::{Change, ObjectName};

use crate::objects::Kind;

/// How many objects are passed on together: to wake up whoever takes them costs more than to take one.
const AT_ONCE: usize = 100;

/// The objects of a list that have been read so far.
pub(super) enum Listing<T> {
    /// The first list. Nothing is acted on before its end, so objects are passed on as they come: they need
    /// not be kept, and what follows from them is computed by the time the last one is there.
    First {
        /// The names of all objects read.
        names: FxHashSet<ObjectName>,
        /// The objects that have not been passed on yet.
        objects: Vec<T>,
    },
    /// A later list. It is passed on as a whole, so that what is gone goes before what has come in its place.
    Later(BTreeMap<ObjectName, T>),
}

impl<T: Kind> Listing<T> {
    pub(super) fn first() -> Self {
        Self::First { names: FxHashSet::default(), objects: Vec::new() }
    }

    pub(super) fn later() -> Self {
        Self::Later(BTreeMap::new())
    }

    /// Adds an object, and returns what is to be passed on now.
    pub(super) fn add(&mut self, name: ObjectName, object: T) -> Option<Change> {
        match self {
            Self::First { names, objects } => {
                names.insert(name);
                objects.push(object);
                if objects.len() < AT_ONCE { None } else { T::init_apply(mem::take(objects)) }
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

    /// Ends the list, and returns what is to be passed on.
    pub(super) fn finish(self) -> Vec<Change> {
        match self {
            Self::First { names, objects } if objects.is_empty() => T::init_done(names).into_iter().collect(),
            Self::First { names, objects } => {
                T::init_apply(objects).into_iter().chain(T::init_done(names)).collect()
            }
            Self::Later(objects) => vec![T::replace(objects.into_values().collect())],
        }
    }
}
