//! The tables of iptables that are in nf_tables (`iptables-nft`): read and changed by netlink.
//!
//! iptables wraps its matches in special expressions, which need not be read: a rule is deleted by its
//! handle, and its target is an nf_tables verdict as in any rule.

use std::collections::BTreeMap;

use ipvs::Family;
use netlink::{Batch, Errno, Error, Reply, Socket, attributes};

use super::chains::{Plan, Rule, Table};
use netfilter::nft::{
    attribute::{
        NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE, NFTA_LIST_ELEM, NFTA_RULE_CHAIN,
        NFTA_RULE_EXPRESSIONS, NFTA_RULE_HANDLE, NFTA_RULE_TABLE,
    },
    decode::{self, Verdict},
    kernel,
    message::{self, Message, Nfproto},
};

/// How often a transaction is tried if others change nf_tables after the read that it builds on. The last
/// attempt does not check: a deletion by handle removes what was read, or the kernel refuses it.
const ATTEMPTS: u32 = 5;

/// The user of a chain that the kernel refuses to delete although none of the rules read uses it.
const UNKNOWN_USER: &str = "something that is no rule of the table";

/// What a table has of kube-proxy's, and what of that has to stay. Changes nothing.
pub(super) fn plan(
    socket: &mut Socket,
    family: Family,
    name: &str,
    spared: Option<&str>,
) -> Result<Plan<u64>, Error> {
    Ok(read(socket, family, name)?.plan(name, &BTreeMap::new(), spared))
}

/// Deletes what a table has of kube-proxy's, in one transaction: everything or nothing. Returns what was
/// deleted, and what had to stay.
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
    let generation = kernel::generation(socket)?;
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

/// Whether somebody has changed what the transaction builds on since it was read.
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
    let request = message::request(Message::GetChain, family, |_| {});
    for (chain, is_base) in kernel::dump(socket, request, |reply| decode_chain(reply, family, name))? {
        if is_base {
            table.built_in.push(chain);
        } else {
            table.chains.push(chain);
        }
    }
    if table.is_concerned(name) {
        let request =
            message::request(Message::GetRule, family, |encoder| encoder.string(NFTA_RULE_TABLE, name));
        table.rules = kernel::dump(socket, request, |reply| decode_rule(reply, family, name))?;
    }
    Ok(table)
}

/// Encodes the plan: first the jumps, then all rules of the chains, because these jump to each other, then
/// the chains.
fn encode(family: Family, table: &str, plan: &Plan<u64>, generation: Option<u32>) -> Batch {
    let mut batch = Batch::default();
    message::begin(&mut batch, generation);
    for (chain, handle) in &plan.jumps {
        message::add(&mut batch, Message::DelRule, 0, family, |encoder| {
            encoder.string(NFTA_RULE_TABLE, table);
            encoder.string(NFTA_RULE_CHAIN, chain);
            encoder.bytes(NFTA_RULE_HANDLE, &handle.to_be_bytes());
        });
    }
    for chain in &plan.chains {
        message::add(&mut batch, Message::DelRule, 0, family, |encoder| {
            encoder.string(NFTA_RULE_TABLE, table);
            encoder.string(NFTA_RULE_CHAIN, chain);
        });
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
    let (mut table, mut name, mut is_base) = ("", "", false);
    for attribute in message::body(reply)? {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_CHAIN_TABLE => table = attribute.string().unwrap_or_default(),
            NFTA_CHAIN_NAME => name = attribute.string().unwrap_or_default(),
            NFTA_CHAIN_HOOK => is_base = true,
            _ => {}
        }
    }
    let is_in_it = message::family(reply) == Nfproto::from(family) && table == of && !name.is_empty();
    Ok(is_in_it.then(|| (name.into(), is_base)))
}

/// Reads one rule; `None` if it is another table's.
fn decode_rule(reply: &Reply<'_>, family: Family, of: &str) -> Result<Option<Rule<u64>>, Error> {
    let (mut table, mut chain, mut id, mut targets) = ("", "", 0, Vec::new());
    for attribute in message::body(reply)? {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_RULE_TABLE => table = attribute.string().unwrap_or_default(),
            NFTA_RULE_CHAIN => chain = attribute.string().unwrap_or_default(),
            NFTA_RULE_HANDLE => id = attribute.array().map(u64::from_be_bytes)?,
            NFTA_RULE_EXPRESSIONS => targets = targets_of(attribute.payload)?,
            _ => {}
        }
    }
    let is_in_it = message::family(reply) == Nfproto::from(family) && table == of;
    Ok(is_in_it.then(|| Rule { chain: chain.into(), id, targets }))
}

fn targets_of(expressions: &[u8]) -> Result<Vec<Box<str>>, Error> {
    let mut targets = Vec::new();
    for entry in attributes(expressions) {
        let entry = entry?;
        if entry.kind == NFTA_LIST_ELEM {
            targets.extend(target(entry.payload).map(Into::into));
        }
    }
    Ok(targets)
}

/// The chain that an expression jumps or goes to, if it does.
fn target(expression: &[u8]) -> Option<&str> {
    match decode::expression(expression)? {
        ("immediate", data) => Verdict::from_immediate(data)?.chain,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netfilter::nft::attribute::NFTA_DATA_VERDICT;

    fn rule(family: Family, table: &str, expressions: &[(&str, Option<(i32, &str)>)]) -> Vec<u8> {
        let mut batch = Batch::default();
        message::add(&mut batch, Message::NewRule, 0, family, |encoder| {
            encoder.string(NFTA_RULE_TABLE, table);
            encoder.string(NFTA_RULE_CHAIN, "PREROUTING");
            encoder.bytes(NFTA_RULE_HANDLE, &7u64.to_be_bytes());
            encoder.nest(NFTA_RULE_EXPRESSIONS, |list| {
                for (name, verdict) in expressions {
                    list.nest(NFTA_LIST_ELEM, |entry| {
                        entry.string(1, name);
                        entry.nest(2, |data| {
                            let Some((code, chain)) = verdict else { return };
                            data.u32_be(1, 0);
                            data.nest(2, |value| {
                                value.nest(NFTA_DATA_VERDICT, |verdict| {
                                    verdict.u32_be(1, code.cast_unsigned());
                                    if !chain.is_empty() {
                                        verdict.string(2, chain);
                                    }
                                });
                            });
                        });
                    });
                }
            });
        });
        batch.as_bytes()[16..].to_vec()
    }

    fn decoded(payload: &[u8]) -> Option<Rule<u64>> {
        let reply = Reply { kind: 0, flags: 0, sequence: 0, payload };
        decode_rule(&reply, Family::V6, "nat").unwrap()
    }

    const JUMP: i32 = -3;
    const GOTO: i32 = -4;

    #[test]
    fn a_rule_is_known_by_its_number_and_by_where_it_leads() {
        for code in [JUMP, GOTO] {
            let verdict = ("immediate", Some((code, "KUBE-SERVICES")));
            let read =
                decoded(&rule(Family::V6, "nat", &[("match", None), ("counter", None), verdict])).unwrap();
            let targets = vec!["KUBE-SERVICES".into()];
            assert_eq!(read, Rule { chain: "PREROUTING".into(), id: 7, targets });
        }
        let accepts = rule(Family::V6, "nat", &[("immediate", Some((1, "")))]);
        assert_eq!(decoded(&accepts).unwrap().targets, []);
        let wrapped = rule(Family::V6, "nat", &[("target", Some((JUMP, "KUBE-SERVICES")))]);
        assert_eq!(decoded(&wrapped).unwrap().targets, [], "no verdict of nf_tables");
    }

    #[test]
    fn a_rule_of_another_table_or_family_is_not_read() {
        assert_eq!(decoded(&rule(Family::V4, "nat", &[])), None);
        assert_eq!(decoded(&rule(Family::V6, "filter", &[])), None);
    }

    fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(16 + payload.len()).unwrap();
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &1u16.to_ne_bytes(), &[0; 8], payload].concat()
    }

    fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + payload.len()).unwrap();
        let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), payload].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn plan() -> Plan<u64> {
        let chains = vec!["KUBE-SERVICES".into(), "KUBE-MARK-MASQ".into()];
        Plan { jumps: vec![("OUTPUT".into(), 0x0102)], chains, kept: BTreeMap::new(), spared: None }
    }

    #[test]
    fn jumps_go_first_then_all_rules_then_the_chains_in_one_transaction() {
        let [begin, end] =
            [0x10, 0x11].map(|kind| move |more: &[u8]| message(kind, &[&[0, 0, 0, 10], more].concat()));
        let in_nat = |kind: u16, attributes: &[Vec<u8>]| {
            message(
                0x0a00 | kind,
                &[&[10, 0, 0, 0], &attribute(1, b"nat\0")[..], &attributes.concat()].concat(),
            )
        };
        let (services, masquerade) = (b"KUBE-SERVICES\0", b"KUBE-MARK-MASQ\0");
        let expected = [
            begin(&attribute(1, &[0, 0, 0, 42])),
            in_nat(8, &[attribute(2, b"OUTPUT\0"), attribute(3, &[0, 0, 0, 0, 0, 0, 1, 2])]),
            in_nat(8, &[attribute(2, services)]),
            in_nat(8, &[attribute(2, masquerade)]),
            in_nat(5, &[attribute(3, services)]),
            in_nat(5, &[attribute(3, masquerade)]),
            end(&[]),
        ];
        assert_eq!(encode(Family::V6, "nat", &plan(), Some(42)).as_bytes(), expected.concat());
    }

    #[test]
    fn a_refusal_is_about_the_chain_that_was_to_be_deleted() {
        let plan = plan();
        let named = |request| deleted_by(&plan, request);
        assert_eq!([4, 5].map(named), [Some("KUBE-SERVICES"), Some("KUBE-MARK-MASQ")]);
        assert_eq!([0, 1, 2, 3, 6].map(named), [None; 5]);
    }
}
