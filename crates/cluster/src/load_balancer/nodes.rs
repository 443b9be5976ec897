//! The nodes that load balancers may lead to.

use std::{collections::BTreeSet, sync::Mutex};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::locked;
use crate::kubectl;

/// The label of nodes that load balancers leave out, as before maintenance.
pub(crate) const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// The names of the nodes that take part: those that have been ready and are not left out. Later only health checks
/// decide, whatever a node says of itself (KEP-3458).
pub(super) type TakingPart = BTreeSet<String>;

/// Forgets the nodes that are not there any more: nobody says later what was deleted meanwhile.
pub(super) fn forget_deleted(taking_part: &Mutex<TakingPart>) -> Result<()> {
    let printed = kubectl::output(&["get", "nodes", "--output=jsonpath={.items[*].metadata.name}"])?;
    let there: BTreeSet<_> = printed.split_whitespace().collect();
    locked(taking_part).retain(|name| there.contains(name.as_str()));
    Ok(())
}

/// Notes what an event says of a node.
pub(super) fn note(event: &Value, taking_part: &Mutex<TakingPart>) -> Result<()> {
    let node = event.pointer("/object").context("an event without an object")?;
    let name = node.pointer("/metadata/name").and_then(Value::as_str).context("a Node without name")?;
    let is_gone = event.pointer("/type") == Some(&json!("DELETED"));
    let is_excluded = node.pointer("/metadata/labels").is_some_and(|labels| labels.get(EXCLUDED).is_some());
    if is_gone || is_excluded {
        locked(taking_part).remove(name);
    } else if is_ready(node) {
        locked(taking_part).insert(name.to_owned());
    }
    Ok(())
}

fn is_ready(node: &Value) -> bool {
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
    let says_so =
        |one: &Value| one.get("type") == Some(&json!("Ready")) && one.get("status") == Some(&json!("True"));
    conditions.is_some_and(|all| all.iter().any(says_so))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, labels: &Value, ready: &str) -> Value {
        let status = json!({ "conditions": [{ "type": "Ready", "status": ready }] });
        json!({ "type": kind, "object": { "metadata": { "name": "worker", "labels": labels }, "status": status } })
    }

    #[test]
    fn a_node_takes_part_from_when_it_is_ready_until_it_is_taken_out_or_deleted() {
        let taking_part = Mutex::default();
        let excluded = json!({ EXCLUDED: "" });
        for (event, takes_part) in [
            (event("ADDED", &Value::Null, "False"), false),
            (event("MODIFIED", &Value::Null, "True"), true),
            (event("MODIFIED", &json!({}), "Unknown"), true),
            (event("MODIFIED", &excluded, "True"), false),
            (event("MODIFIED", &json!({}), "True"), true),
            (event("DELETED", &json!({}), "True"), false),
        ] {
            note(&event, &taking_part).unwrap();
            assert_eq!(locked(&taking_part).contains("worker"), takes_part, "{event}");
        }
    }
}
