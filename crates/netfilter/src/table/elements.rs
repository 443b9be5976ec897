//! The elements of our tables alone, for whoever wants to know which virtual servers are ours.

use std::iter;

use ipvs::Family;
use netlink::{Errno, Protocol, Socket};

use super::{installation::known_elements, netfilter::Error, observed::ObservedTable};
use crate::{ElementSet, nft::kernel};

/// Reads the elements of our tables in the calling thread's network namespace; none where the kernel has no nf_tables.
pub fn elements() -> Result<ElementSet, Error> {
    read().map_err(|source| Error::new("read the elements of our nf_tables tables", source))
}

fn read() -> Result<ElementSet, netlink::Error> {
    let mut socket = Socket::open(Protocol::Netfilter)?;
    match kernel::generation(&mut socket) {
        // Nobody in the kernel takes the message (`nfnetlink_rcv_msg`).
        Err(error) if error.errno() == Some(Errno::EINVAL) => return Ok(ElementSet::default()),
        generation => generation?,
    };
    let mut found = ElementSet::default();
    for family in Family::BOTH {
        if let Some(table) = ObservedTable::read(&mut socket, family, iter::empty())? {
            let elements = known_elements(&mut socket, family, &table, |_| true)?;
            found.extend(elements.ours.into_iter().flatten());
        }
    }
    Ok(found)
}
