//! Not every node begins with the same real server.

use std::hash::{DefaultHasher, Hash, Hasher};

use ipvs::Command;
use watcher::{Batch, Plan};

/// Rotates the real servers of each virtual server that a plan adds, by the name of this node and the virtual server.
///
/// Round robin, and whatever has to choose among equals, begins with the first in the kernel's list: with the same
/// order on all nodes, the first connections of all of them would go to one endpoint. What is there stays in its
/// order, so after the first sync this costs nothing.
pub(crate) fn rotate(plan: &mut Plan, node_name: &str) {
    let commands = plan.batches.iter_mut().filter_map(|batch| match batch {
        Batch::Ipvs(commands) => Some(commands),
        Batch::Netfilter(_) | Batch::Link(_) => None,
    });
    for block in commands.flat_map(|commands| commands.chunk_by_mut(belongs)) {
        if let [Command::AddVirtualServer(server), real_servers @ ..] = block {
            let mut hasher = DefaultHasher::new();
            (node_name, &server.id).hash(&mut hasher);
            let turn = hasher.finish().checked_rem(real_servers.len() as u64).unwrap_or_default();
            real_servers.rotate_left(usize::try_from(turn).unwrap_or_default());
        }
    }
}

/// Whether a command adds a real server to the virtual server of the one before.
fn belongs(before: &Command, command: &Command) -> bool {
    matches!(command, Command::AddRealServer(id, _) if *id == before.virtual_server())
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
        rotate(&mut plan, node_name);
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
    fn what_is_there_keeps_its_order() {
        let more = |n: u8| {
            Command::AddRealServer(at(80).into(), RealServer::masquerade([10, 244, 0, n].into(), 8080))
        };
        let plan = plan((1..9).map(more));
        assert_eq!(rotated(&plan, "node"), plan.commands().cloned().collect::<Vec<_>>());
    }
}
