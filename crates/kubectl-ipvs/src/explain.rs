//! `kubectl ipvs explain`: the answer that most nodes give, and where the others differ.
//!
//! Two answers are the same if their texts are, apart from what each node has of its own: its addresses, the endpoints
//! that its health check port counts, real servers that drain, whether its clients use an endpoint, for how long one has
//! failed there, and the connections, which are added up.

use std::{collections::BTreeMap, fmt::Write, net::IpAddr, time::Duration};

use ipvs::ObservedRealServer;
use operator::explain::{AddressAnswer, Answer, VirtualServer};
use service::{AddressKind, EndpointWeight, ExplainedPart, Explanation, Share, liveness::Answering};

use super::{
    fleet::Answered,
    node_table::{counted, first_lines, name, named, with_silent_nodes},
};

/// How many lines of a difference are shown.
const MOST_LINES: usize = 20;

/// The answer of most nodes, the difference of each other one to it, and the nodes without an answer.
pub(super) fn text(answers: &[Answered<Answer>]) -> String {
    let read = |answer: &Answer| {
        let answer = without_node(answer.clone());
        (words(&answer).join("\n"), answer)
    };
    let mut text = String::new();
    // Writing to a string cannot fail.
    if let Some(((nodes, most), others)) = grouped(answers, read, add_connections).split_first() {
        _ = writeln!(text, "{}:\n{most}", counted(nodes.len()));
        for (nodes, other) in others {
            _ = writeln!(text, "{}:\n{}", named(nodes), difference(most, other));
        }
    }
    with_silent_nodes(text, answers)
}

/// The answer of most nodes about an address or a NodePort, those of the others, and the nodes without one. What the
/// kernel has is left out: it is in the answer about the Service.
pub(super) fn address_text(answers: &[Answered<AddressAnswer>]) -> String {
    let read = |answer: &AddressAnswer| {
        let mut answer = AddressAnswer { kernel: None, ..answer.clone() };
        for served in &mut answer.explanation.served {
            *served = without_node(Answer { explanation: served.clone(), kernel: None }).explanation;
        }
        let text = answer.to_string();
        answer.explanation.served.iter_mut().for_each(remove_durations);
        (answer.to_string(), text)
    };
    let mut text = String::new();
    for (number, (nodes, answer)) in grouped(answers, read, |_, _| {}).iter().enumerate() {
        let who = if number == 0 { counted(nodes.len()) } else { named(nodes) };
        // Writing to a string cannot fail.
        _ = writeln!(text, "{who}:\n{answer}");
    }
    with_silent_nodes(text, answers)
}

/// The different answers with the nodes that give them, that of most nodes first. `read` returns the key that equal answers
/// share, and the answer; `add` adds an equal one.
fn grouped<A, T>(
    answers: &[Answered<A>],
    read: impl Fn(&A) -> (String, T),
    add: impl Fn(&mut T, T),
) -> Vec<(Vec<&str>, T)> {
    let mut groups: BTreeMap<String, (Vec<&str>, T)> = BTreeMap::new();
    for answered in answers {
        let Ok(answer) = &answered.answer else { continue };
        let (key, answer) = read(&answer.read);
        if let Some((nodes, sum)) = groups.get_mut(&key) {
            nodes.push(name(answered));
            add(sum, answer);
        } else {
            groups.insert(key, (vec![name(answered)], answer));
        }
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|(nodes, _)| usize::MAX - nodes.len());
    groups
}

/// The lines of most nodes that the other answer lacks, and its own lines instead.
fn difference(most: &Answer, other: &Answer) -> String {
    let [these, those] = [most, other].map(ToString::to_string);
    let [these_keys, those_keys] = [most, other].map(words);
    let lacking = these.lines().zip(&these_keys).filter(|(_, key)| !those_keys.contains(key));
    let own = those.lines().zip(&those_keys).filter(|(_, key)| !these_keys.contains(key));
    let lacking = lacking.map(|(line, _)| format!("- {}\n", line.trim()));
    let own = own.map(|(line, _)| format!("+ {}\n", line.trim()));
    first_lines(lacking.chain(own), MOST_LINES).concat()
}

/// The lines, without connections, durations, and the spaces that make columns of them.
fn words(answer: &Answer) -> Vec<String> {
    let mut answer = answer.clone();
    for real_server in answer.kernel.iter_mut().flatten().flat_map(real_servers) {
        *real_server = ObservedRealServer::new(real_server.config);
    }
    remove_durations(&mut answer.explanation);
    let text = answer.to_string();
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Removes what differs between nodes by design.
fn without_node(mut answer: Answer) -> Answer {
    answer.explanation.health_check = None;
    // The owner of an address depends on the node.
    let addresses = answer.explanation.parts.iter_mut().flat_map(|part| &mut part.addresses);
    addresses.for_each(|at| at.owner = None);
    // Without clients on the node an endpoint is idle there.
    for endpoint in endpoints(&mut answer.explanation) {
        endpoint.answering = endpoint.answering.filter(|it| it.liveness.is_failing());
    }
    let node_ports: Vec<_> = answer.explanation.parts.iter_mut().flat_map(node_ports_anywhere).collect();
    let mut kernel: Vec<VirtualServer> = Vec::new();
    for mut server in answer.kernel.iter_mut().flat_map(std::mem::take) {
        if node_ports.contains(&server.address) {
            server.address.ip = unspecified(server.address.ip);
        }
        if let Some(real_servers) = &mut server.real_servers {
            real_servers.retain(|real_server| real_server.config.weight > 0);
        }
        add(&mut kernel, server);
    }
    answer.kernel = answer.kernel.map(|_| kernel);
    answer
}

/// Removes for how long, and how often, endpoints have failed on a node, and for how long they are ejected.
fn remove_durations(explanation: &mut Explanation) {
    for endpoint in endpoints(explanation) {
        let without = |it| Answering { age: Duration::ZERO, failed_connections: 0, ..it };
        endpoint.answering = endpoint.answering.map(without);
        if let Some(EndpointWeight { share: Share::Ejected { age, .. }, .. }) = &mut endpoint.weight_parts {
            *age = Duration::ZERO;
        }
    }
}

fn endpoints(explanation: &mut Explanation) -> impl Iterator<Item = &mut service::ExplainedEndpoint> {
    explanation.parts.iter_mut().flat_map(|part| &mut part.endpoints)
}

/// Replaces the node's addresses of NodePorts by the unspecified address, once for all. Returns the replaced ones.
fn node_ports_anywhere(part: &mut ExplainedPart) -> Vec<ipvs::ServiceAddress> {
    let at_node_port = part.addresses.iter_mut().filter(|at| at.kind == AddressKind::NodePort);
    let before = at_node_port.map(|at| {
        let before = at.address;
        at.address.ip = unspecified(at.address.ip);
        before
    });
    let before = before.collect();
    part.addresses.dedup();
    before
}

fn unspecified(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => [0; 4].into(),
        IpAddr::V6(_) => [0; 16].into(),
    }
}

/// Adds the connections of the same answer of another node.
fn add_connections(sum: &mut Answer, other: Answer) {
    if let Some(sum) = &mut sum.kernel {
        other.kernel.into_iter().flatten().for_each(|server| add(sum, server));
    }
}

/// Adds a virtual server to others: its connections to those of the same address. Where one is missing all are.
fn add(servers: &mut Vec<VirtualServer>, server: VirtualServer) {
    let Some(sum) = servers.iter_mut().find(|sum| sum.address == server.address) else {
        return servers.push(server);
    };
    let Some(others) = server.real_servers else {
        (sum.scheduler, sum.real_servers) = (None, None);
        return;
    };
    for other in others {
        if let Some(sum) = real_servers(sum).find(|sum| sum.config.address == other.config.address) {
            sum.active_connections = sum.active_connections.saturating_add(other.active_connections);
            sum.inactive_connections = sum.inactive_connections.saturating_add(other.inactive_connections);
        }
    }
}

fn real_servers(server: &mut VirtualServer) -> impl Iterator<Item = &mut ObservedRealServer> {
    server.real_servers.iter_mut().flatten()
}

#[cfg(test)]
mod tests;
