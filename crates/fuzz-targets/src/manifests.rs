//! Manifests: the text, the objects, the desired state, the plan.

use std::{collections::BTreeSet, path::Path};

use ipvs::Family;
use kubernetes::directory::read_text;
use service::{Change, Options, State};
use watcher::{Foreign, Observed, Ownership, Plan, diff_everything};

/// Reads the text as YAML and as JSON, and plans its desired state.
///
/// The order of Services, EndpointSlices and the Node makes no difference. A plan that was carried out leaves nothing
/// to do.
pub fn fuzz(input: &[u8]) {
    for name in ["manifests.yaml", "manifests.json"] {
        let Ok(changes) = read_text(Path::new(name), input, "node") else { continue };
        let (plan, backwards) = (planned(changes.iter()), planned(changes.iter().rev()));
        assert_eq!(plan, backwards, "the order matters");
    }
}

fn planned<'a>(changes: impl Iterator<Item = &'a Change>) -> Plan {
    let mut state = State::new(Options::new("node"));
    for change in changes {
        state.apply(change.clone());
    }
    state.apply(Change::NodeAddresses { here: [[192, 0, 2, 1].into()].into(), lost: BTreeSet::new() });
    let ours = Ownership { families: Family::BOTH.into(), exclude: Vec::new(), foreign: Foreign::Delete };
    let mut observed = Observed::default();
    let plan = diff_everything(&state, &observed, &ours);
    for operation in plan.operations() {
        observed.carried_out(&operation);
    }
    let left = diff_everything(&state, &observed, &ours);
    assert!(left.is_empty(), "still to do: {left}");
    plan
}
