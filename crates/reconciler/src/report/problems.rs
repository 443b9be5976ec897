//! The problems that the status lists.

use std::fmt;

use ipvs::Family;
use service::{Conflict, ObjectName, Problem, RefusedAddress, State, in_turn};
use watcher::Ownership;

use super::sync_log::NO_NODE_PORTS;
use crate::SyncStatus;

/// How many of the Services that wait for an address are named: all of a namespace may want the same.
const NAMED_WAITING: usize = 3;

/// Lists the first of what is wrong with the node for these inputs, and then of what is wrong with the inputs, in turn by
/// namespaces: one cannot hide the others. `read` says whether the node's addresses are known.
pub(crate) fn problems(state: &State, ours: &Ownership, read: bool) -> Vec<String> {
    let unserved = unserved_families(state, ours).map(|family| {
        let count = state.virtual_server_count(family);
        format!("this node has no {family}; virtual servers that are not served: {count}")
    });
    let no_node_ports = (read && state.has_unserved_node_ports()).then(|| NO_NODE_PORTS.to_owned());
    let refused = state
        .reports()
        .refused()
        .flat_map(|(service, refused)| refused.iter().map(|refused| Listed::Refused(service, refused)));
    let conflicts = state.conflicts().map(Listed::Conflict);
    let in_objects = state.problems().map(Listed::Problem);
    let of_objects = refused.chain(conflicts).chain(in_objects);
    let of_objects = in_turn(of_objects, SyncStatus::MOST_PROBLEMS, |it| it.namespace().to_owned());
    unserved
        .chain(no_node_ports)
        .chain(of_objects.iter().map(ToString::to_string))
        .take(SyncStatus::MOST_PROBLEMS)
        .collect()
}

/// A problem of an object.
enum Listed<'a> {
    Refused(&'a ObjectName, &'a RefusedAddress),
    Conflict(Conflict<'a>),
    Problem(Problem<'a>),
}

impl Listed<'_> {
    /// The namespace of the object whose problem it is.
    fn namespace(&self) -> &str {
        match self {
            Self::Refused(service, _) => service.namespace(),
            Self::Conflict(Conflict { waiting, .. }) => waiting.first().map_or("", |name| name.namespace()),
            Self::Problem(problem) => problem.namespace(),
        }
    }
}

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(service, refused) => write!(f, "{service}: {refused}"),
            Self::Conflict(Conflict { address, holder, waiting }) => {
                let named: Vec<_> = waiting.iter().take(NAMED_WAITING).map(ToString::to_string).collect();
                let named = named.join(", ");
                write!(f, "{address} belongs to {holder}, whose claim comes first; {named}")?;
                match waiting.len().saturating_sub(NAMED_WAITING) {
                    0 => {}
                    more => write!(f, " and {more} more")?,
                }
                f.write_str(" cannot have it")
            }
            Self::Problem(problem) => problem.fmt(f),
        }
    }
}

/// Counts what [`problems`] lists and what is beyond its limit, without a look at every object.
pub(crate) fn count_problems(state: &State, ours: &Ownership, read: bool) -> usize {
    unserved_families(state, ours).count()
        + usize::from(read && state.has_unserved_node_ports())
        + state.reports().refused_count()
        + state.conflict_count()
        + state.reports().problem_count()
}

/// The families of virtual servers that this node does not serve.
fn unserved_families(state: &State, ours: &Ownership) -> impl Iterator<Item = Family> {
    let others = Family::BOTH.into_iter().filter(|family| !ours.families.contains(family));
    others.filter(|family| state.virtual_server_count(*family) > 0)
}
