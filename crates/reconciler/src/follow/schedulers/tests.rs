use ipvs::{Protocol, RealServer, VirtualServer};
use proptest::{collection::vec, prelude::*, sample::select};
use watcher::{Operation, RealServerImages, VirtualServerImage};

use super::*;

fn server(port: u16, scheduler: Scheduler) -> VirtualServer {
    VirtualServer::new(at(port), scheduler)
}

fn any_scheduler() -> impl Strategy<Value = Scheduler> {
    select(vec![Scheduler::RR, Scheduler::WRR, Scheduler::WLC])
}

/// Virtual servers of these schedulers, by port.
fn image(schedulers: &[Scheduler]) -> Observed {
    let servers = (0..).zip(schedulers).map(|(port, scheduler)| server(port, *scheduler));
    let image = |config| VirtualServerImage::new(config, RealServerImages::default());
    let virtual_servers = servers.filter_map(|config| match config.id {
        ipvs::VirtualServerId::Address(at) => Some((at, image(config))),
        ipvs::VirtualServerId::Mark { .. } => None,
    });
    Observed { virtual_servers: virtual_servers.collect(), ..Observed::default() }
}

/// An edit of each virtual server, followed by a real server.
fn edits(schedulers: &[Scheduler]) -> Plan {
    let commands = (0..).zip(schedulers).flat_map(|(port, scheduler)| {
        let edited = server(port, *scheduler);
        let real = RealServer::masquerade([10, 244, 0, 1].into(), 8080);
        let id = edited.id;
        [Command::EditVirtualServer(edited), Command::AddRealServer(id, real)]
    });
    commands.map(Operation::from).collect()
}

proptest! {
    #[test]
    fn changes_of_schedulers_are_limited_per_sync_and_nothing_else_is_deferred(
        now_and_wanted in vec((any_scheduler(), any_scheduler()), 0..12),
        most in 0..6usize,
    ) {
        let (now, wanted): (Vec<_>, Vec<_>) = now_and_wanted.into_iter().unzip();
        let (image, whole) = (image(&now), edits(&wanted));
        let mut plan = whole.clone();
        let waiting = defer_changes(&mut plan, &image, &mut most.clone());

        let changed: Vec<_> = plan.commands().filter_map(|command| scheduler_change(command, &image)).collect();
        prop_assert!(changed.len() <= most);
        for new in changed.iter().map(|(_, to)| *to).filter(|to| !now.contains(to)) {
            prop_assert_eq!(changed.iter().filter(|(_, to)| *to == new).count(), 1);
        }
        let is_held_back = |command: &Command| {
            scheduler_change(command, &image).is_some_and(|(of, _)| waiting.contains(&of))
        };
        let rest: Vec<_> = whole.commands().filter(|command| !is_held_back(command)).collect();
        prop_assert_eq!(plan.commands().collect::<Vec<_>>(), rest);
    }
}

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
        rotate(&mut rotated, &format!("node-{number}"), |it| *it == at(80));
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
