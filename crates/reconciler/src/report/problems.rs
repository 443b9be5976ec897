//! The problems that the status lists.

use ipvs::Family;
use service::{Conflict, State};
use watcher::Ownership;

use super::sync_log::NO_NODE_PORTS;
use crate::SyncStatus;

/// How many of the Services that wait for an address are named: all of a namespace may want the same.
const NAMED_WAITING: usize = 3;

/// Lists the first of what is wrong with the inputs, or with the node for these inputs. `read` says whether the node's
/// addresses are known.
pub(crate) fn problems(state: &State, ours: &Ownership, read: bool) -> Vec<String> {
    let unserved = unserved_families(state, ours).map(|family| {
        let count = state.virtual_server_count(family);
        format!("this node has no {family}; virtual servers that are not served: {count}")
    });
    let no_node_ports = (read && state.node_ports_are_nowhere()).then(|| NO_NODE_PORTS.to_owned());
    let conflicts = state.conflicts().map(|Conflict { address, holder, waiting }| {
        let named: Vec<_> = waiting.iter().take(NAMED_WAITING).map(ToString::to_string).collect();
        let more = match waiting.len().saturating_sub(NAMED_WAITING) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let named = named.join(", ");
        format!("{address} belongs to {holder}, whose claim comes first; {named}{more} cannot have it")
    });
    let refused = state
        .refused()
        .flat_map(|(service, refused)| refused.iter().map(move |refused| format!("{service}: {refused}")));
    let in_objects = state.problems().map(|problem| problem.to_string());
    unserved
        .chain(no_node_ports)
        .chain(refused)
        .chain(conflicts)
        .chain(in_objects)
        .take(SyncStatus::MOST_PROBLEMS)
        .collect()
}

/// Counts what [`problems`] lists and what is beyond its limit, without a look at every object.
pub(crate) fn count_problems(state: &State, ours: &Ownership, read: bool) -> usize {
    unserved_families(state, ours).count()
        + usize::from(read && state.node_ports_are_nowhere())
        + state.refused_count()
        + state.conflict_count()
        + state.problem_count()
}

/// The families of virtual servers that this node does not serve.
fn unserved_families(state: &State, ours: &Ownership) -> impl Iterator<Item = Family> {
    let others = Family::BOTH.into_iter().filter(|family| !ours.families.contains(family));
    others.filter(|family| state.virtual_server_count(*family) > 0)
}
