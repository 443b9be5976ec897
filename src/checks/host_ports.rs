//! hostPorts of pods that are NodePorts too: at the node's addresses the Service gets the connections.

use std::collections::BTreeSet;

use host_rules::host_ports::host_ports;
use service::one_line;
use tracing::debug;

use super::{BeforeStart, while_running::WhileRunning};
use crate::finding::{Finding, first_few};

/// How many ports are named.
const NAMED: usize = 5;

/// The hostPorts before the start.
pub(super) fn before(node: &mut BeforeStart<'_>) -> Vec<Finding> {
    let node_ports = &node.facts.in_use.node_ports;
    match node.kernel.modules.ask_nf_tables(host_ports) {
        Some(Ok(host_ports)) => overridden(node_ports, &host_ports).into_iter().collect(),
        Some(Err(error)) => vec![Finding::note("hostPorts", format!("not checked: {}", one_line(&error)))],
        None => Vec::new(),
    }
}

/// The hostPorts while the daemon runs.
pub(super) fn running(node: &mut WhileRunning) -> Vec<Finding> {
    let node_ports = &node.facts.in_use.node_ports;
    if node_ports.is_empty() {
        return Vec::new();
    }
    let host_ports = host_ports().inspect_err(|error| debug!("hostPorts are not known: {}", one_line(error)));
    overridden(node_ports, &host_ports.unwrap_or_default()).into_iter().collect()
}

fn overridden(node_ports: &BTreeSet<u16>, host_ports: &BTreeSet<u16>) -> Option<Finding> {
    let both: Vec<_> = node_ports.intersection(host_ports).map(ToString::to_string).collect();
    let what = format!(
        "hostPorts of pods on this node are NodePorts too: {}. At the node's addresses, with the same protocol, the \
         Service gets the connections, and not the pod",
        first_few(both.iter().cloned(), NAMED)
    );
    let remedy = "give the Service another nodePort or the pod another hostPort; hostPorts belong outside of the API \
                  server's --service-node-port-range";
    (!both.is_empty()).then(|| Finding::warning("hostPorts", what).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_port_of_both_kinds_is_a_warning() {
        let (one, both) = (BTreeSet::from([30_080]), BTreeSet::from([8_080, 30_080]));
        let found = overridden(&one, &both).unwrap();
        assert!(found.what.contains("NodePorts too: 30080. At"), "{}", found.what);
        assert_eq!(overridden(&one, &BTreeSet::from([8_080])), None);
        assert_eq!(overridden(&BTreeSet::new(), &both), None);
    }
}
