//! Idempotent commands made of the kernel's verbs, which refuse what is done already.
//!
//! All commands are sent at once with the verb that most likely fits. Where the kernel refuses one
//! because the object exists, or does not, the other verb is sent afterwards. By then the commands
//! behind it have been executed, so it is left out if one of them was about the same object.

use std::collections::{HashMap, HashSet};

use netlink::{Errno, FailedRequest};

use super::{encode::Verb, error::explained};
use crate::{Command, RealServerAddress, VirtualServerId};

/// A command to be sent again with another verb.
#[derive(Clone, Copy, Debug)]
pub(super) struct FollowUp<'a> {
    /// The command's position in what was applied.
    pub(super) index: usize,
    pub(super) command: &'a Command,
    pub(super) verb: Verb,
}

/// The meaning of a refusal.
enum Meaning {
    /// The wanted state exists already.
    Done,
    /// The other verb fits.
    Retry(Verb),
    /// The virtual server of a real server is missing. That is not a failure if an earlier command creates
    /// it, and is itself sent again.
    Orphan,
    /// The command cannot be executed.
    Failed,
}

fn meaning(command: &Command, errno: Errno) -> Meaning {
    match (command, errno) {
        (Command::AddVirtualServer(_) | Command::AddRealServer(..), Errno::EEXIST) => {
            Meaning::Retry(Verb::Set)
        }
        (Command::EditVirtualServer(_), Errno::ESRCH) | (Command::EditRealServer(..), Errno::ENOENT) => {
            Meaning::Retry(Verb::New)
        }
        (Command::AddRealServer(..) | Command::EditRealServer(..), Errno::ESRCH) => Meaning::Orphan,
        (Command::DeleteVirtualServer(_) | Command::DeleteRealServer(..), Errno::ESRCH | Errno::ENOENT) => {
            Meaning::Done
        }
        _ => Meaning::Failed,
    }
}

/// Sorts the refusals of a pipeline, which are in order, into commands to be sent again and failures.
pub(super) fn sort(
    commands: &[Command],
    refused: Vec<FailedRequest>,
) -> (Vec<FollowUp<'_>>, Vec<FailedRequest>) {
    let (mut again, mut failed) = (Vec::new(), Vec::new());
    let mut created = HashSet::new();
    for FailedRequest { index, error } in refused {
        let Some(command) = commands.get(index) else { continue };
        match meaning(command, error.errno) {
            Meaning::Done => {}
            Meaning::Retry(verb) => {
                if let Command::EditVirtualServer(server) = command {
                    created.insert(server.id);
                }
                again.push(FollowUp { index, command, verb });
            }
            Meaning::Orphan if created.contains(&command.virtual_server()) => {
                again.push(FollowUp { index, command, verb: Verb::New });
            }
            Meaning::Orphan | Meaning::Failed => {
                failed.push(FailedRequest { index, error: explained(command, error) });
            }
        }
    }
    if !again.is_empty() {
        let last = last_uses(commands, &again, &failed);
        again.retain(|follow_up| !is_superseded(follow_up, &last));
    }
    (again, failed)
}

/// The subject of a later command by which an earlier one no longer matters.
#[derive(PartialEq, Eq, Hash)]
enum Use {
    VirtualServer(VirtualServerId),
    RemovalOf(VirtualServerId),
    RealServer(VirtualServerId, RealServerAddress),
}

/// Positions of the last executed command that is about what each follow-up is about.
fn last_uses(commands: &[Command], again: &[FollowUp<'_>], failed: &[FailedRequest]) -> HashMap<Use, usize> {
    let mut last: HashMap<_, _> =
        again.iter().flat_map(|step| supersedes(step.command)).map(|(key, _)| (key, 0)).collect();
    let mut failed = failed.iter().map(|failed| failed.index).peekable();
    for (index, command) in commands.iter().enumerate() {
        if failed.next_if_eq(&index).is_some() {
            continue;
        }
        for (key, is_use) in supersedes(command) {
            if let (true, Some(position)) = (is_use, last.get_mut(&key)) {
                *position = index;
            }
        }
    }
    last
}

/// The subjects of the command, each with whether executing the command is such a use.
fn supersedes(command: &Command) -> impl Iterator<Item = (Use, bool)> {
    let id = command.virtual_server();
    let (first, second) = match command {
        Command::AddVirtualServer(_) | Command::EditVirtualServer(_) => (Use::VirtualServer(id), None),
        Command::DeleteVirtualServer(_) => (Use::VirtualServer(id), Some((Use::RemovalOf(id), true))),
        Command::AddRealServer(_, server) | Command::EditRealServer(_, server) => {
            (Use::RealServer(id, server.address), Some((Use::RemovalOf(id), false)))
        }
        Command::DeleteRealServer(_, address) => (Use::RealServer(id, *address), None),
    };
    std::iter::once((first, true)).chain(second)
}

fn is_superseded(step: &FollowUp<'_>, last: &HashMap<Use, usize>) -> bool {
    supersedes(step.command).any(|(key, _)| last.get(&key).is_some_and(|index| *index > step.index))
}

#[cfg(test)]
mod tests;
