use netlink::KernelError;

use super::*;
use crate::{Protocol, RealServer, Scheduler, ServiceAddress, VirtualServer};

fn id() -> VirtualServerId {
    ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 1].into(), port: 80 }.into()
}

fn server() -> VirtualServer {
    VirtualServer::new(id(), Scheduler::RR)
}

fn pod() -> RealServer {
    RealServer::masquerade([10, 1, 0, 4].into(), 8080)
}

/// The positions and verbs sent again, and the positions that failed.
fn sorted(commands: &[Command], refused: &[(usize, Errno)]) -> (Vec<(usize, Verb)>, Vec<usize>) {
    let refused = refused
        .iter()
        .map(|(index, errno)| FailedRequest { index: *index, error: KernelError::new(*errno) })
        .collect();
    let (again, failed) = sort(commands, refused);
    (
        again.iter().map(|step| (step.index, step.verb)).collect(),
        failed.iter().map(|failed| failed.index).collect(),
    )
}

#[test]
fn the_other_verb_is_tried_when_an_object_exists_or_does_not() {
    let commands = [
        Command::AddVirtualServer(server()),
        Command::AddRealServer(id(), pod()),
        Command::EditRealServer(id(), RealServer::masquerade([10, 1, 0, 5].into(), 8080)),
    ];
    let refused = [(0, Errno::EEXIST), (1, Errno::EEXIST), (2, Errno::ENOENT)];
    assert_eq!(sorted(&commands, &refused), (vec![(0, Verb::Set), (1, Verb::Set), (2, Verb::New)], vec![]));
}

#[test]
fn what_is_gone_counts_as_deleted() {
    let commands = [Command::DeleteRealServer(id(), pod().address), Command::DeleteVirtualServer(id())];
    for errno in [Errno::ESRCH, Errno::ENOENT] {
        assert_eq!(sorted(&commands, &[(0, errno), (1, errno)]), (vec![], vec![]));
    }
}

#[test]
fn real_servers_follow_a_virtual_server_that_is_created_after_all() {
    let commands = [Command::EditVirtualServer(server()), Command::EditRealServer(id(), pod())];
    let refused = [(0, Errno::ESRCH), (1, Errno::ESRCH)];
    assert_eq!(sorted(&commands, &refused), (vec![(0, Verb::New), (1, Verb::New)], vec![]));
}

#[test]
fn a_real_server_without_a_virtual_server_fails() {
    let commands = [Command::AddVirtualServer(server()), Command::AddRealServer(id(), pod())];
    let refused = [(0, Errno::ENOENT), (1, Errno::ESRCH)];
    assert_eq!(sorted(&commands, &refused), (vec![], vec![0, 1]));
}

#[test]
fn a_later_command_about_the_same_object_wins() {
    for later in
        [Command::EditRealServer(id(), pod().weight(5)), Command::DeleteRealServer(id(), pod().address)]
    {
        let commands = [Command::AddRealServer(id(), pod()), later];
        assert_eq!(sorted(&commands, &[(0, Errno::EEXIST)]), (vec![], vec![]));
    }
    let commands = [
        Command::AddRealServer(id(), pod()),
        Command::DeleteVirtualServer(id()),
        Command::AddVirtualServer(server()),
    ];
    assert_eq!(sorted(&commands, &[(0, Errno::EEXIST)]), (vec![], vec![]), "it went with its virtual server");
}

#[test]
fn a_later_command_about_another_object_does_not_matter() {
    let other = RealServerAddress { port: 8081, ..pod().address };
    let commands = [
        Command::AddRealServer(id(), pod()),
        Command::DeleteRealServer(id(), other),
        Command::EditVirtualServer(server()),
    ];
    assert_eq!(sorted(&commands, &[(0, Errno::EEXIST)]), (vec![(0, Verb::Set)], vec![]));
}

#[test]
fn a_later_command_that_failed_does_not_win() {
    let commands = [Command::AddVirtualServer(server()), Command::EditVirtualServer(server())];
    let refused = [(0, Errno::EEXIST), (1, Errno::ENOENT)];
    assert_eq!(sorted(&commands, &refused), (vec![(0, Verb::Set)], vec![1]));
}
