//! Flowtables of other programs, which would take the flows of Services past IPVS.

use host_rules::flowtables::Flowtable;
use service::one_line;
use tracing::debug;

use super::{BeforeStart, while_running::WhileRunning};
use crate::finding::{Finding, first_few};

/// How many flowtables are named.
const NAMED: usize = 3;

/// The flowtables before the start.
pub(super) fn before(node: &mut BeforeStart<'_>) -> Vec<Finding> {
    match node.kernel.modules.ask_nf_tables(Flowtable::in_use) {
        Some(Ok(found)) => in_use(&found).into_iter().collect(),
        Some(Err(error)) => vec![Finding::note("flowtables", format!("not checked: {}", one_line(&error)))],
        None => Vec::new(),
    }
}

/// The flowtables while the daemon runs.
pub(super) fn running(_: &mut WhileRunning) -> Vec<Finding> {
    let found =
        Flowtable::in_use().inspect_err(|error| debug!("flowtables are not known: {}", one_line(error)));
    in_use(&found.unwrap_or_default()).into_iter().collect()
}

fn in_use(found: &[Flowtable]) -> Option<Finding> {
    let what = format!(
        "another program offloads flows, by a rule with `flow add`: {}. Flows of Services must not be among them: they \
         would pass IPVS by, with wrong addresses",
        first_few(found.iter().map(ToString::to_string), NAMED)
    );
    let remedy = "exempt addresses of Services and pods from the rule (`nft list ruleset` shows it), or switch the \
                  offload off in its program (firewalld: NftablesFlowtable=off)";
    (!found.is_empty()).then(|| Finding::warning("flowtables", what).remedy(remedy))
}
