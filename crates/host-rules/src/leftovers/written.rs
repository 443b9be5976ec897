//! Whether a kube-proxy that translates destinations itself has written its rules yet.

use ipvs::Family;
use netlink::{Protocol, Socket};

use super::{
    Error,
    names::{NFTABLES_SERVICES, NFTABLES_TABLE, POSTROUTING},
    nf_tables::read,
};

/// The modes of kube-proxy that translate destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// The rules are iptables'.
    Iptables,
    /// The rules are in a table of its own.
    Nftables,
}

/// Whether there is what kube-proxy writes in its first sync of a family, whichever Services there are. What iptables
/// has in the tables of the old iptables is not seen.
///
/// Its nftables mode writes everything in one transaction. Its iptables mode makes its chains one by one, then fills all
/// of a table at once, and KUBE-POSTROUTING in any case. (Kubelets before 1.28 fill that chain too.)
pub fn has_written(by: Translation, family: Family) -> Result<bool, Error> {
    let mut socket = Socket::open(Protocol::Netfilter)
        .map_err(|source| Error::new("open a socket to netfilter", source))?;
    let mut table = |name| {
        read(&mut socket, family, name).map_err(|source| Error::new("read kube-proxy's rules", source))
    };
    Ok(match by {
        Translation::Nftables => {
            let table = table(NFTABLES_TABLE)?;
            table.chains.iter().any(|chain| **chain == *NFTABLES_SERVICES)
        }
        Translation::Iptables => table("nat")?.rules.iter().any(|rule| *rule.chain == *POSTROUTING),
    })
}
