//! Following real packets through the kernel.
//!
//! A rule of a table of our own marks some packets (`meta nftrace set 1`), and the kernel reports every chain and
//! every rule that they pass from there on, of all tables of nf_tables: ours, the host's firewall, what
//! iptables-nft writes. IPVS keeps the mark, so that a request is seen before and after the real server was chosen.
//! Tables of iptables-legacy are not reported.
//!
//! The table holds no verdict, so it changes nothing for packets. It belongs to the socket of the [`Tracer`]: the kernel
//! removes it when that closes, however the program ends. Kernels before 5.12 know no such owner. There the
//! table stops marking packets by itself after [`UNOWNED_SECONDS`], is deleted when the `Tracer` is dropped, and otherwise by
//! [`remove_leftovers`].

mod event;
mod ruleset;

use std::{collections::BTreeSet, net::IpAddr};

use ipvs::{Family, ServiceAddress};
use netlink::{Errno, Notifications, Protocol, Reply, Socket, if_exists};

pub use event::{Headers, Step, TraceEvent, TraceVerdict, Transport};

use crate::{
    Error,
    nft::{
        chain::ListedChain,
        message::{self, Message, Nfproto},
        rule::{self, ListedRule},
    },
    table::open_socket,
};
use ruleset::Ruleset;

/// The name of the table, in each family.
pub const TRACE_TABLE: &str = "kube-ipvs-trace";

/// How long a table without an owner marks packets, in seconds.
pub const UNOWNED_SECONDS: u32 = 60;

/// `NFNLGRP_NFTRACE` in include/uapi/linux/netfilter/nfnetlink.h.
const GROUP: u32 = 9;
/// `NFT_TABLE_F_OWNER`, since Linux 5.12.
const OWNER: u32 = 2;

/// The packets to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// Those sent to these addresses, and the answers to them. Not empty.
    pub frontends: Vec<ServiceAddress>,
    /// Only those that this client has sent, and the answers to it. All frontends are of its family.
    pub client: Option<IpAddr>,
}

impl Followed {
    /// The families of the frontends.
    pub fn families(&self) -> BTreeSet<Family> {
        self.frontends.iter().map(|at| Family::from(at.ip)).collect()
    }
}

/// Why packets cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another tracer owns the table.
    #[error("another kube-ipvs trace runs on this node")]
    Running,
    /// nf_tables refuses.
    #[error(transparent)]
    Netfilter(#[from] Error),
}

/// Has the kernel report the ways of packets, until it is dropped.
pub struct Tracer {
    /// The owner of the tables.
    socket: Socket,
    notifications: Notifications,
    /// Tables without an owner.
    unowned: BTreeSet<Family>,
}

impl Tracer {
    /// Starts in the calling thread's network namespace. What an earlier tracer has left is removed.
    ///
    /// At most 10 new flows a second are followed, and about 300 packets, in each family: half of them come in, half are
    /// sent by this node. Before Linux 5.12 another tracer, or a daemon that starts, ends this one.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with I/O enabled.
    pub fn start(followed: &Followed) -> Result<Self, StartError> {
        remove_leftovers()?;
        let notifications = Notifications::subscribe(Protocol::Netfilter, &[GROUP])
            .map_err(|source| Error::new("subscribe to traced packets", source))?;
        let mut tracer = Self { socket: open_socket()?, notifications, unowned: BTreeSet::new() };
        for family in followed.families() {
            tracer.install(family, followed)?;
        }
        Ok(tracer)
    }

    /// Whether the kernel removes the tables when this program ends, however it does.
    pub fn is_owner(&self) -> bool {
        self.unowned.is_empty()
    }

    fn install(&mut self, family: Family, followed: &Followed) -> Result<(), StartError> {
        let owned = Ruleset::new(family, followed, None);
        match self.socket.transact(&mut owned.encode(OWNER)) {
            // The flag is not in the kernel's NFT_TABLE_F_MASK (`nf_tables_newtable`).
            Err(error) if matches!(error.errno(), Some(Errno::EINVAL | Errno::EOPNOTSUPP)) => {
                let unowned = Ruleset::new(family, followed, Some(UNOWNED_SECONDS));
                self.socket.transact(&mut unowned.encode(0)).map_err(cannot_install)?;
                self.unowned.insert(family);
                Ok(())
            }
            // The table belongs to another socket (`nft_table_lookup`); the right to make tables was needed before.
            Err(error) if error.errno() == Some(Errno::EPERM) => Err(StartError::Running),
            result => Ok(result.map_err(cannot_install)?),
        }
    }

    /// Waits for reports, and passes on those that have come. Returns whether these are all: some are lost where the
    /// queue was full. Safe to cancel.
    pub async fn receive(&mut self, mut take: impl FnMut(TraceEvent)) -> Result<bool, Error> {
        let received = self
            .notifications
            .receive(|notification| {
                if let Some(event) = TraceEvent::from_notification(notification) {
                    take(event);
                }
            })
            .await;
        match received {
            Ok(()) => Ok(true),
            Err(netlink::Error::StateUnknown) => Ok(false),
            Err(source) => Err(Error::new("receive traced packets", source)),
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        for family in &self.unowned {
            // It marks no packet any more after a minute, and the next start removes it.
            let _ = message::delete_table(&mut self.socket, *family, TRACE_TABLE);
        }
    }
}

fn cannot_install(source: netlink::Error) -> Error {
    Error::new("add the nf_tables table that marks the packets to trace", source)
}

/// Deletes the tables of a tracer that ended without deleting them. Those of a tracer that runs and owns them stay.
pub fn remove_leftovers() -> Result<(), Error> {
    let mut socket = open_socket()?;
    for family in Family::BOTH {
        // Another socket owns the table, or the kernel has no nf_tables, or not this family.
        const NOT_THERE: [Errno; 4] = [Errno::EPERM, Errno::EINVAL, Errno::EAFNOSUPPORT, Errno::EOPNOTSUPP];
        if_exists(message::delete_table(&mut socket, family, TRACE_TABLE), &NOT_THERE)
            .map_err(|source| Error::new("delete the table of an earlier trace", source))?;
    }
    Ok(())
}

/// A rule that a step is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RuleId {
    /// The family of its table, as nfnetlink numbers it.
    pub family: u8,
    /// The name of its table.
    pub table: Box<str>,
    /// The name of its chain.
    pub chain: Box<str>,
    /// Its handle.
    pub handle: u64,
}

/// What the kernel shows of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledRule {
    /// Its place in its chain, from 1, as in `iptables -S CHAIN NUMBER`.
    pub number: usize,
    /// Its comment; empty if it has none.
    pub comment: Box<str>,
}

/// Lists the chains of all tables, in the kernel's order.
pub fn chains() -> Result<Vec<ListedChain>, Error> {
    let mut request = message::request(Message::GetChain, Nfproto::UNSPECIFIED, |_| {});
    open_socket()?
        .dump(&mut request, |reply| ListedChain::decode(reply).map(Some))
        .map_err(|source| Error::new("list the chains of nf_tables", source))
}

/// Reads the number and the comment of a rule; `None` if it is gone.
pub fn installed_rule(id: &RuleId) -> Result<Option<InstalledRule>, Error> {
    let decode = |reply: &Reply<'_>| {
        let rule = ListedRule::decode(reply)?;
        let is_in_it = rule.is_in(Nfproto(id.family), &id.table, &id.chain);
        Ok(is_in_it.then(|| (rule.handle, rule.comment.into())))
    };
    let rules = open_socket()?
        .dump(&mut rule::list(Nfproto(id.family), &id.table, Some(&id.chain)), decode)
        .map_err(|source| Error::new("list the rules of a chain", source))?;
    let found = (1..).zip(rules).find(|(_, (handle, _))| *handle == id.handle);
    Ok(found.map(|(number, (_, comment))| InstalledRule { number, comment }))
}
