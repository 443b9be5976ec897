//! Removing our tables, or only what new flows need, so that another program serves them.

use ipvs::Family;
use netlink::{Errno, Protocol, Socket};

use super::{
    client::commit,
    observed::named_chains,
    ruleset::{OF_NEW_FLOWS, input_of_open_flows},
    transaction::{Request, Transaction},
};
use crate::{
    Error,
    nft::{TABLE, kernel::delete_table},
};

/// Deletes our table of a family, with everything in it. Returns whether it existed.
pub fn uninstall(family: Family) -> Result<bool, Error> {
    delete_table(&mut open()?, family, TABLE)
        .map_err(|source| Error::new("delete our nf_tables table", source))
}

/// Removes from our table of a family what new flows to Services meet, in one transaction: they go where another
/// program's destination NAT sends them, and nobody looks at source ranges, or at who may reach an
/// address of the policy Local, which have stopped following the Services.
/// What was handed over before stays so.
///
/// What open flows need stays: NAT was decided with their first packets. A new flow to a port of a VIP that no Service
/// has, and that nobody has sent elsewhere, is still rejected. The daemon makes the table whole again when it next
/// starts, and once more takes flows from others last of all.
pub fn hand_over(family: Family) -> Result<(), Error> {
    let mut socket = open()?;
    let input = input_of_open_flows();
    let names = OF_NEW_FLOWS.into_iter().chain([input.name]);
    let there = match named_chains(&mut socket, family, names) {
        Ok(there) => there,
        // Nobody in the kernel takes the message (`nfnetlink_rcv_msg`).
        Err(error) if error.errno() == Some(Errno::EINVAL) => return Ok(()),
        Err(error) => return Err(Error::new("read our nf_tables table", error)),
    };
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

fn open() -> Result<Socket, Error> {
    Socket::open(Protocol::Netfilter).map_err(|source| Error::new("open a socket to nf_tables", source))
}
