//! The objects of a whole directory.

use std::collections::{BTreeMap, BTreeSet};

use service::{Change, EndpointSlice, Event, Node, ObjectName, Service};

use crate::{
    objects::{Kind, View},
    problem_log::ProblemLog,
};

/// The objects of all files.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Contents {
    pub(super) services: BTreeMap<ObjectName, Service>,
    pub(super) slices: BTreeMap<ObjectName, EndpointSlice>,
    /// The Node of this node, if there is one.
    pub(super) node: Option<Node>,
    /// The other Nodes.
    pub(super) peers: BTreeMap<ObjectName, Node>,
}

impl Contents {
    /// Returns everything, as after a first list. The Node comes before the lists: once these are
    /// complete, the desired state is acted on, and zones and the NodePort address `primary` depend on the Node.
    pub(super) fn all(&self) -> Vec<Change> {
        let node = self.node.clone().map(|node| Change::Node(Some(node)));
        let services = Change::Services(Event::Replace(self.services.values().cloned().collect()));
        let slices = Change::Slices(Event::Replace(self.slices.values().cloned().collect()));
        let peers = Change::Peers(Event::Replace(self.peers.values().cloned().collect()));
        node.into_iter().chain([peers, services, slices]).collect()
    }

    /// Returns the changes since an earlier reading. A new Service comes after its slices: otherwise it would have no
    /// endpoints for a moment.
    pub(super) fn since(&self, before: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.node != before.node {
            // A Node that is gone keeps its last zone, as with the API server.
            changes.extend(self.node.clone().map(|node| Change::Node(Some(node))));
        }
        changes.extend(differences(&before.peers, &self.peers).map(Change::Peers));
        changes.extend(differences(&before.slices, &self.slices).map(Change::Slices));
        changes.extend(differences(&before.services, &self.services).map(Change::Services));
        changes
    }
}

fn differences<'a, T: Kind>(
    before: &'a BTreeMap<ObjectName, T>,
    after: &'a BTreeMap<ObjectName, T>,
) -> impl Iterator<Item = Event<T>> + 'a {
    let gone = before.keys().filter(|name| !after.contains_key(name));
    let different = after.iter().filter(|(name, object)| before.get(name) != Some(object));
    gone.cloned().map(Event::Delete).chain(different.map(|(_, object)| Event::Apply(object.clone())))
}

/// Puts the views of one kind together. A name that comes again wins over the earlier one.
pub(super) fn gather<'a, T: Kind>(
    views: impl Iterator<Item = &'a View<T>>,
    problem_log: &mut ProblemLog,
    duplicates: &mut BTreeSet<(&'static str, ObjectName)>,
) -> BTreeMap<ObjectName, T> {
    let mut last = BTreeMap::new();
    for view in views {
        let name = view.name.clone();
        if last.insert(name.clone(), view).is_some() {
            duplicates.insert((T::KIND, name));
        }
    }
    last.into_iter()
        .filter_map(|(name, view)| {
            let object = problem_log.usable(&name, view.decoded.clone())?;
            Some((name, object))
        })
        .collect()
}
