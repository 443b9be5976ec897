//! The tables of iptables that are in nf_tables (`iptables-nft`): read and changed by netlink.
//!
//! iptables wraps its matches in special expressions, which need not be read: a rule is deleted by its
//! handle, and its target is an nf_tables verdict as in any rule.

use std::collections::BTreeMap;

use ipvs::Family;
use netlink::{Batch, Errno, Error, Protocol, Reply, Socket};

use super::{
    chains::{Plan, Rule, Table},
    names::{NFTABLES_SERVICES, NFTABLES_TABLE, POSTROUTING},
};
use netfilter::nft::{
    chain::ListedChain,
    message::{self, Message, NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE, Nfproto},
    parts::{Verdict, decode_expression, entries},
    rule::{self, ListedRule},
};

/// How often a transaction is tried if others change nf_tables after the read that it builds on. The last
/// attempt does not check: a deletion by handle removes what was read, or the kernel refuses it.
const ATTEMPTS: u32 = 5;

/// The user of a chain that the kernel refuses to delete although none of the rules read uses it.
const UNKNOWN_USER: &str = "something that is not a rule of the table";

/// Plans the removal of kube-proxy's part of a table. Changes nothing.
pub(super) fn plan(
    socket: &mut Socket,
    family: Family,
    name: &str,
    spared: Option<&str>,
) -> Result<Plan<u64>, Error> {
    Ok(read(socket, family, name)?.plan(name, &BTreeMap::new(), spared))
}

/// Deletes kube-proxy's part of a table, in one transaction: everything or nothing. Returns the plan that was carried
/// out.
pub(super) fn remove(
    socket: &mut Socket,
    family: Family,
    name: &str,
    spared: Option<&str>,
) -> Result<Plan<u64>, Error> {
    let mut held = BTreeMap::new();
    let mut attempts = 1;
    loop {
        let checked = attempts < ATTEMPTS;
        match attempt(socket, family, name, &held, spared, checked) {
            Ok(Attempt::Done(plan)) => return Ok(plan),
            Ok(Attempt::InUse(chain)) => drop(held.insert(chain, UNKNOWN_USER.into())),
            Err(error) if checked && is_stale(&error) => attempts += 1,
            Err(error) => return Err(error),
        }
    }
}

/// The outcome of one transaction.
enum Attempt {
    Done(Plan<u64>),
    /// Nothing was done, because of this chain.
    InUse(Box<str>),
}

fn attempt(
    socket: &mut Socket,
    family: Family,
    name: &str,
    held: &BTreeMap<Box<str>, Box<str>>,
    spared: Option<&str>,
    checked: bool,
) -> Result<Attempt, Error> {
    let generation = message::generation(socket)?;
    let plan = read(socket, family, name)?.plan(name, held, spared);
    if plan.is_empty() {
        return Ok(Attempt::Done(plan));
    }
    let mut batch = encode(family, name, &plan, checked.then_some(generation));
    match socket.transact(&mut batch) {
        Ok(()) => Ok(Attempt::Done(plan)),
        Err(Error::RolledBack(failure)) if failure.error.errno == Errno::EBUSY => {
            match deleted_by(&plan, failure.index) {
                Some(chain) => Ok(Attempt::InUse(chain.into())),
                None => Err(Error::RolledBack(failure)),
            }
        }
        Err(error) => Err(error),
    }
}

/// Whether another program has changed what the transaction builds on since it was read.
fn is_stale(error: &Error) -> bool {
    match error {
        Error::RolledBack(failure) => matches!(failure.error.errno, Errno::ERESTART | Errno::ENOENT),
        Error::DumpInterrupted { .. } => true,
        error => error.errno() == Some(Errno::ENOENT),
    }
}

/// Reads the table. Its rules are only read if it has a chain of kube-proxy's: mostly it has none.
fn read(socket: &mut Socket, family: Family, name: &str) -> Result<Table<u64>, Error> {
    let mut table = Table::default();
    let mut request = message::request(Message::GetChain, family, |_| {});
    for (chain, is_base) in socket.dump(&mut request, |reply| decode_chain(reply, family, name))? {
        if is_base {
            table.built_in.push(chain);
        } else {
            table.chains.push(chain);
        }
    }
    if table.is_concerned(name) {
        let mut request = rule::list(family, name, None);
        table.rules = socket.dump(&mut request, |reply| decode_rule(reply, family, name))?;
    }
    Ok(table)
}

/// Encodes the plan: first the jumps, then all rules of the chains, because these jump to each other, then
/// the chains.
fn encode(family: Family, table: &str, plan: &Plan<u64>, generation: Option<u32>) -> Batch {
    let mut batch = Batch::default();
    message::begin(&mut batch, generation);
    for (chain, handle) in &plan.jumps {
        rule::delete(&mut batch, family, table, Some(chain), Some(*handle));
    }
    for chain in &plan.chains {
        rule::delete(&mut batch, family, table, Some(chain), None);
    }
    for chain in &plan.chains {
        message::add(&mut batch, Message::DelChain, 0, family, |encoder| {
            encoder.string(NFTA_CHAIN_TABLE, table);
            encoder.string(NFTA_CHAIN_NAME, chain);
        });
    }
    message::end(&mut batch);
    batch
}

/// The chain that this request of the encoded plan was to delete.
fn deleted_by(plan: &Plan<u64>, request: usize) -> Option<&str> {
    // Request 0 is the begin.
    plan.chains.get(request.checked_sub(1 + plan.jumps.len() + plan.chains.len())?).map(|chain| &**chain)
}

/// Reads one chain, and whether packets enter it by a hook; `None` if it is another table's. A name that is
/// not UTF-8 is not kube-proxy's.
fn decode_chain(reply: &Reply<'_>, family: Family, of: &str) -> Result<Option<(Box<str>, bool)>, Error> {
    let chain = ListedChain::decode(reply)?;
    let is_in_it = chain.family == Nfproto::from(family) && *chain.table == *of && !chain.name.is_empty();
    Ok(is_in_it.then_some((chain.name, chain.hook.is_some())))
}

/// Reads one rule; `None` if it is another table's.
fn decode_rule(reply: &Reply<'_>, family: Family, of: &str) -> Result<Option<Rule<u64>>, Error> {
    let rule = ListedRule::decode(reply)?;
    if rule.family != Nfproto::from(family) || rule.table != of {
        return Ok(None);
    }
    let mut targets = Vec::new();
    for entry in entries(rule.expressions) {
        targets.extend(target(entry?).map(Into::into));
    }
    Ok(Some(Rule { chain: rule.chain.into(), id: rule.handle, targets }))
}

/// The chain that an expression jumps or goes to, if it does.
fn target(expression: &[u8]) -> Option<&str> {
    match decode_expression(expression)? {
        ("immediate", data) => match Verdict::from_immediate(data)? {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain).filter(|chain| !chain.is_empty()),
            _ => None,
        },
        _ => None,
    }
}

/// The modes of kube-proxy that translate destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// The rules are iptables'.
    Iptables,
    /// The rules are in a table of its own.
    Nftables,
}

/// Whether the rules exist that kube-proxy writes in its first sync of a family, whichever Services there are. The
/// tables of the old iptables are not read.
///
/// Its nftables mode writes everything in one transaction. Its iptables mode makes its chains one by one,
/// then fills all of a table at once, and KUBE-POSTROUTING in any case. (Kubelets before 1.28 fill that chain
/// too.)
pub fn has_written(by: Translation, family: Family) -> Result<bool, super::Error> {
    let mut socket = Socket::open(Protocol::Netfilter)
        .map_err(|source| super::Error::new("open a socket to netfilter", source))?;
    let mut table = |name| {
        read(&mut socket, family, name).map_err(|source| super::Error::new("read kube-proxy's rules", source))
    };
    Ok(match by {
        Translation::Nftables => {
            let table = table(NFTABLES_TABLE)?;
            table.chains.iter().any(|chain| **chain == *NFTABLES_SERVICES)
        }
        Translation::Iptables => table("nat")?.rules.iter().any(|rule| *rule.chain == *POSTROUTING),
    })
}

#[cfg(test)]
mod tests;
