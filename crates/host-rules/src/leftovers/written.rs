//! Whether a kube-proxy that translates destinations itself has written its rules yet.

use ipvs::Family;
use netlink::{Protocol, Socket};

use super::{
    Error,
    chains::Rule,
    names::{LAST_OF_SERVICES, NFTABLES_SERVICES, NFTABLES_TABLE, SERVICES},
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
/// Its nftables mode writes everything in one transaction. Its iptables mode makes its chains one by one, then fills
/// all of a table at once; the last rule of KUBE-SERVICES is the same on every node.
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
        Translation::Iptables => {
            let is_last = |rule: &Rule<u64>| {
                *rule.chain == *SERVICES && rule.targets.iter().any(|target| **target == *LAST_OF_SERVICES)
            };
            table("nat")?.rules.iter().any(is_last)
        }
    })
}
