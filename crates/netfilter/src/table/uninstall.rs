//! Removing our own tables.

use ipvs::Family;
use netlink::{Protocol, Socket};

use crate::{
    Error,
    nft::{TABLE, kernel::delete_table},
};

/// Deletes our table of a family, with everything in it. Returns whether it existed.
pub fn uninstall(family: Family) -> Result<bool, Error> {
    let mut socket = Socket::open(Protocol::Netfilter)
        .map_err(|source| Error::new("open a socket to nf_tables", source))?;
    delete_table(&mut socket, family, TABLE)
        .map_err(|source| Error::new("delete our nf_tables table", source))
}
