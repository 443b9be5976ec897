//! Rotation: each node adds real servers in its own order, so that not every node begins with the same one,
//! unless the scheduler hashes.

use std::fmt::{self, Write};

use ipvs::{Command, VirtualServerId};
use watcher::{Batch, Plan};

/// Rotates the real servers that a plan adds to each virtual server, by the name of this node and the virtual
/// server.
///
/// Round robin, and whatever has to choose among equals, begins with the first real server in the kernel's
/// list. With the same order on all nodes, the first connections of all of them would go to one endpoint.
/// Mostly a Service exists before its endpoints, so whatever is added together is rotated; real servers that
/// exist stay in their order.
///
/// With a scheduler that hashes, the order decides where each client's connections go, and is the same on all
/// nodes: the plan's, by address.
pub(crate) fn rotate(plan: &mut Plan, node_name: &str, is_hashing: impl Fn(VirtualServerId) -> bool) {
    let commands = plan.batches.iter_mut().filter_map(|batch| match batch {
        Batch::Ipvs(commands) => Some(commands),
        Batch::Netfilter(_) | Batch::DummyInterface(_) => None,
    });
    for run in commands.flat_map(|commands| commands.chunk_by_mut(same_virtual_server)) {
        if let [Command::AddRealServer(id, _), _, ..] = run
            && !is_hashing(*id)
        {
            let turn = turn(node_name, *id).checked_rem(run.len() as u64).unwrap_or_default();
            run.rotate_left(usize::try_from(turn).unwrap_or_default());
        }
    }
}

/// Whether both add a real server to one virtual server.
fn same_virtual_server(before: &Command, command: &Command) -> bool {
    match (before, command) {
        (Command::AddRealServer(one, _), Command::AddRealServer(other, _)) => one == other,
        _ => false,
    }
}

/// How far a node rotates the real servers of a virtual server. It is the same in every release, so that a
/// node that is upgraded goes on as before.
fn turn(node_name: &str, id: VirtualServerId) -> u64 {
    let mut hash = Fnv::default();
    // The hash takes all that is written to it.
    let _ = write!(hash, "{node_name} {id}");
    hash.0
}

/// FNV-1a of 64 bits. What the standard library hashes with may be another function in its next release.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use ipvs::{Protocol, RealServer, Scheduler, ServiceAddress, VirtualServer};
    use watcher::Operation;

    use super::*;

    fn at(port: u16) -> ServiceAddress {
        ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 1].into(), port }
    }

    /// The addition of a virtual server with this many real servers.
    fn addition(port: u16, real_servers: u8) -> impl Iterator<Item = Command> {
        let server = Command::AddVirtualServer(VirtualServer::new(at(port), Scheduler::RR));
        let real = |last| RealServer::masquerade([10, 244, 0, last].into(), 8080);
        [server]
            .into_iter()
            .chain((1..=real_servers).map(move |n| Command::AddRealServer(at(port).into(), real(n))))
    }

    fn plan(commands: impl Iterator<Item = Command>) -> Plan {
        commands.map(Operation::from).collect()
    }

    fn rotated(plan: &Plan, node_name: &str) -> Vec<Command> {
        let mut plan = plan.clone();
        rotate(&mut plan, node_name, |_| false);
        plan.commands().cloned().collect()
    }

    #[test]
    fn nodes_begin_with_different_real_servers_and_each_always_with_the_same() {
        let plan = plan(addition(80, 3));
        let mut first: BTreeMap<String, usize> = BTreeMap::new();
        for number in 0..300 {
            let node = format!("node-{number}");
            let commands = rotated(&plan, &node);
            assert_eq!(commands, rotated(&plan, &node));
            *first.entry(commands[1].to_string()).or_default() += 1;
        }
        assert_eq!(first.len(), 3, "{first:?}");
        assert!(first.values().all(|count| (70..130).contains(count)), "{first:?}");
    }

    #[test]
    fn virtual_servers_of_one_node_begin_with_different_real_servers() {
        let first = |port| {
            rotated(&plan(addition(port, 5)), "node")[1].to_string().split(" -> ").nth(1).map(str::to_owned)
        };
        let all: BTreeSet<_> = (1..100).map(first).collect();
        assert_eq!(all.len(), 5, "{all:?}");
    }

    #[test]
    fn each_real_server_stays_behind_its_own_virtual_server() {
        let sizes = [(80, 3), (81, 0), (82, 1), (83, 4)];
        let plan = plan(sizes.into_iter().flat_map(|(port, size)| addition(port, size)));
        let commands = rotated(&plan, "node");
        assert_eq!(
            commands.iter().map(Command::virtual_server).collect::<Vec<_>>(),
            plan.commands().map(Command::virtual_server).collect::<Vec<_>>()
        );
        let all = |commands: Vec<Command>| commands.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        assert_eq!(all(commands), all(plan.commands().cloned().collect()));
    }

    #[test]
    fn endpoints_that_come_after_their_service_are_rotated_too() {
        let first = |node: String| {
            let later = plan(addition(80, 3).skip(1));
            rotated(&later, &node)[0].to_string()
        };
        let all: BTreeSet<_> = (0..30).map(|number| first(format!("node-{number}"))).collect();
        assert_eq!(all.len(), 3, "{all:?}");
    }

    #[test]
    fn what_a_scheduler_hashes_into_is_in_one_order_on_all_nodes() {
        let plan = plan(addition(80, 3).chain(addition(81, 3)));
        let mut first: [BTreeSet<String>; 2] = Default::default();
        for number in 0..30 {
            let mut rotated = plan.clone();
            rotate(&mut rotated, &format!("node-{number}"), |id| id == at(80).into());
            for (first, command) in first.iter_mut().zip([1, 5]) {
                first.insert(rotated.commands().nth(command).unwrap().to_string());
            }
        }
        assert_eq!(first.map(|first| first.len()), [1, 3]);
    }

    #[test]
    fn the_turn_is_the_same_in_every_release() {
        let turn_of = |text| {
            let mut hash = Fnv::default();
            hash.write_str(text).unwrap();
            hash.0
        };
        // The published values of FNV-1a.
        assert_eq!(turn_of(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(turn_of("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(turn_of("foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(turn("node-1", at(80).into()), turn_of("node-1 TCP 10.96.0.1:80"));
    }
}
