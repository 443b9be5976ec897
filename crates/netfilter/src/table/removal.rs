//! Removing our tables, or only what new flows need, so that another program serves them.

use ipvs::Family;
use netlink::{Errno, if_exists};

use super::{
    client::commit,
    observed::named_chains,
    open_socket,
    ruleset::{OF_NEW_FLOWS, input_of_open_flows},
    transaction::{Request, Transaction},
};
use crate::{
    Error,
    nft::{TABLE, message::delete_table},
};

/// Deletes our table of a family, with everything in it. Returns whether it existed.
pub fn uninstall(family: Family) -> Result<bool, Error> {
    delete_table(&mut open_socket()?, family, TABLE)
        .map_err(|source| Error::new("delete our nf_tables table", source))
}

/// Removes from our table of a family, in one transaction, the rules that apply to new flows to Services:
/// these go where another program's destination NAT sends them, and our source ranges and the policy Local,
/// which no longer follow the Services, are not enforced. What was handed over before stays so.
///
/// What open flows need stays: NAT was decided with their first packets. A new flow to a port of a VIP that
/// no Service has, and that no other program redirects, is still rejected. The daemon makes the table whole
/// again when it next starts, and once more takes flows from others last of all.
pub fn hand_over(family: Family) -> Result<(), Error> {
    let mut socket = open_socket()?;
    let input = input_of_open_flows();
    let names = OF_NEW_FLOWS.into_iter().chain([input.name]);
    // Without nf_tables the kernel has no handler for the message (`nfnetlink_rcv_msg`).
    let there = if_exists(named_chains(&mut socket, family, names), &[Errno::EINVAL])
        .map_err(|source| Error::new("read our nf_tables table", source))?
        .unwrap_or_default();
    let has = |name: &str| there.iter().any(|chain| *chain.name == *name);
    let mut transaction = Transaction::default();
    for name in OF_NEW_FLOWS.into_iter().filter(|name| has(name)) {
        transaction.push(Request::FlushChain(family, name));
        transaction.push(Request::DeleteChain(family, name.into()));
    }
    if transaction.is_empty() {
        return Ok(());
    }
    if has(input.name) {
        transaction.push(Request::FlushChain(family, input.name));
        for rule in &input.rules {
            transaction.push(Request::AddRule(family, input.name, rule));
        }
    }
    commit(&mut socket, &transaction, None)
}
