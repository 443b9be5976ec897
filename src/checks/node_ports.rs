//! NodePorts that others have too: a pod as its hostPort, or the node for its own connections.
//!
//! No program listens at a NodePort, so the kernel takes it for free and may give it to a connection of the
//! node itself. The answer, SYN and ACK, comes to an address and port that a virtual server has, and IPVS
//! sends it to a pod: it schedules whatever has SYN set (`tcp_conn_schedule` in
//! net/netfilter/ipvs/ip_vs_proto_tcp.c). No verdict of nf_tables makes a packet pass IPVS by, so the port
//! must not be chosen in the first place.

use std::{collections::BTreeSet, ops::RangeInclusive};

use host_rules::host_ports::host_ports;
use service::one_line;
use tracing::debug;

use super::{BeforeStart, facts::Facts, while_running::WhileRunning};
use crate::finding::{Finding, first_few};

/// First and last port for the node's own connections, in both families.
const LOCAL_PORTS: &str = "net.ipv4.ip_local_port_range";
/// Ports and ranges that the kernel does not choose by itself.
const RESERVED_PORTS: &str = "net.ipv4.ip_local_reserved_ports";

/// The API server's `--service-node-port-range`, by default.
const USUAL_NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// How many ports are listed; every other Service may have one.
const MOST_LISTED: usize = 5;

/// Whether the node may open a connection of its own from a NodePort that is served.
pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let Ok(local) = facts.sysctl.read(LOCAL_PORTS) else { return Vec::new() };
    let reserved = facts.sysctl.read(RESERVED_PORTS).unwrap_or_default();
    exposed(&facts.in_use.node_ports, &local, &reserved).into_iter().collect()
}

/// Compares the NodePorts that are served with the two parameters, as the kernel shows them.
fn exposed(node_ports: &BTreeSet<u16>, local: &str, reserved: &str) -> Option<Finding> {
    let local = ends(local.split_whitespace())?;
    let reserved = reserved.trim();
    let is_reserved = |port: &u16| ranges(reserved).any(|range| range.contains(port));
    let exposed: BTreeSet<u16> =
        node_ports.iter().copied().filter(|port| local.contains(port) && !is_reserved(port)).collect();
    if exposed.is_empty() {
        return None;
    }
    let (first, last) = (local.start(), local.end());
    let before = if reserved.is_empty() { String::new() } else { format!("{reserved},") };
    let (to_reserve, better) = if exposed.iter().all(|port| USUAL_NODE_PORTS.contains(port)) {
        (format!("{}-{}", USUAL_NODE_PORTS.start(), USUAL_NODE_PORTS.end()), "")
    } else {
        (in_ranges(&exposed), ", or better all of the API server's --service-node-port-range")
    };
    let what = format!(
        "the kernel may use NodePort{} {} for connections of the node itself, and the answers would go to pods: \
         {LOCAL_PORTS} is {first} to {last}",
        if exposed.len() == 1 { "" } else { "s" },
        first_few(exposed.iter().map(ToString::to_string), MOST_LISTED),
    );
    let remedy = format!("sysctl -w {RESERVED_PORTS}={before}{to_reserve}{better}");
    Some(Finding::warning(LOCAL_PORTS, what).remedy(remedy))
}

/// `8080,30000-32767`. What cannot be read is left out.
fn ranges(text: &str) -> impl Iterator<Item = RangeInclusive<u16>> {
    text.split(',').filter_map(|range| ends(range.split('-')))
}

/// The range from the first number to the last one.
fn ends<'a>(mut numbers: impl Iterator<Item = &'a str>) -> Option<RangeInclusive<u16>> {
    let first = numbers.next()?.trim().parse().ok()?;
    let last = numbers.last().map_or(Ok(first), |last| last.trim().parse()).ok()?;
    Some(first..=last)
}

/// The ports as ranges, in the notation of `ip_local_reserved_ports`.
fn in_ranges(ports: &BTreeSet<u16>) -> String {
    let mut ranges = Vec::<(u16, u16)>::new();
    for &port in ports {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(port) => *last = port,
            _ => ranges.push((port, port)),
        }
    }
    let range = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    ranges.into_iter().map(range).collect::<Vec<_>>().join(",")
}

/// hostPorts of pods that are NodePorts too: at the node's addresses the Service gets the connections. Before the start.
pub(super) fn host_ports_before_start(node: &mut BeforeStart<'_>) -> Vec<Finding> {
    let node_ports = &node.facts.in_use.node_ports;
    match node.kernel.modules.ask_nf_tables(host_ports) {
        Some(Ok(host_ports)) => overridden(node_ports, &host_ports).into_iter().collect(),
        Some(Err(error)) => vec![Finding::note("hostPorts", format!("not checked: {}", one_line(&error)))],
        None => Vec::new(),
    }
}

/// The same while the daemon runs.
pub(super) fn host_ports_while_running(node: &mut WhileRunning) -> Vec<Finding> {
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
        first_few(both.iter().cloned(), MOST_LISTED)
    );
    let remedy = "give the Service another nodePort or the pod another hostPort; hostPorts belong outside of the API \
                  server's --service-node-port-range";
    (!both.is_empty()).then(|| Finding::warning("hostPorts", what).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(node_ports: &[u16], local: &str, reserved: &str) -> Option<(String, String)> {
        exposed(&node_ports.iter().copied().collect(), local, reserved)
            .map(|found| (found.what, found.remedy.unwrap()))
    }

    fn remedy(node_ports: &[u16], local: &str, reserved: &str) -> Option<String> {
        found(node_ports, local, reserved).map(|(_, remedy)| remedy)
    }

    #[test]
    fn with_linux_s_own_range_and_kubernetes_usual_one_there_is_nothing_to_say() {
        assert_eq!(found(&[30_000, 32_767], "32768\t60999\n", "\n"), None);
        assert_eq!(found(&[], "1024\t65535\n", "\n"), None, "no Service has a NodePort");
    }

    #[test]
    fn a_node_port_that_the_kernel_may_choose_is_named_with_the_range_to_reserve() {
        let (what, remedy) = found(&[30_080, 31_000], "30500\t60999\n", "\n").unwrap();
        assert_eq!(
            what,
            "the kernel may use NodePort 31000 for connections of the node itself, and the answers would go to pods: \
             net.ipv4.ip_local_port_range is 30500 to 60999"
        );
        assert_eq!(remedy, "sysctl -w net.ipv4.ip_local_reserved_ports=30000-32767");
    }

    #[test]
    fn what_is_reserved_already_stays_so_in_the_remedy_and_is_not_a_danger() {
        assert_eq!(found(&[30_080], "1024 65535", "8080,30000-32767\n"), None);
        assert_eq!(found(&[30_080], "1024 65535", "30080\n"), None);
        assert_eq!(
            remedy(&[30_080], "1024 65535", "8080,30081\n").unwrap(),
            "sysctl -w net.ipv4.ip_local_reserved_ports=8080,30081,30000-32767"
        );
    }

    #[test]
    fn of_a_range_of_one_s_own_the_ports_in_use_are_reserved_and_no_others() {
        assert_eq!(
            remedy(&[40_000, 40_001, 40_002, 50_000, 65_535], "32768 65535", "").unwrap(),
            "sysctl -w net.ipv4.ip_local_reserved_ports=40000-40002,50000,65535, \
             or better all of the API server's --service-node-port-range"
        );
    }

    #[test]
    fn of_many_node_ports_the_first_are_listed_and_the_rest_counted() {
        let ports: Vec<_> = (30_000..30_100).collect();
        let (what, _) = found(&ports, "1024 65535", "").unwrap();
        assert!(what.contains("NodePorts 30000, 30001, 30002, 30003, 30004 and 95 more for"), "{what}");
    }

    #[test]
    fn a_parameter_that_makes_no_sense_causes_no_warning() {
        for local in ["", "\n", "many", "32768 many", "70000 80000"] {
            assert_eq!(found(&[30_080], local, ""), None, "{local:?}");
        }
        assert_eq!(
            remedy(&[30_080], "1024 65535", "many,1-x").unwrap(),
            "sysctl -w net.ipv4.ip_local_reserved_ports=many,1-x,30000-32767"
        );
    }

    #[test]
    fn only_a_host_port_that_is_a_node_port_too_is_a_warning() {
        let (one, both) = (BTreeSet::from([30_080]), BTreeSet::from([8_080, 30_080]));
        let found = overridden(&one, &both).unwrap();
        assert!(found.what.contains("NodePorts too: 30080. At"), "{}", found.what);
        assert_eq!(overridden(&one, &BTreeSet::from([8_080])), None);
        assert_eq!(overridden(&BTreeSet::new(), &both), None);
    }
}
