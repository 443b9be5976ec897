//! The host's own firewall, where it blocks what IPVS forwards.
//!
//! A request to a VIP passes the hook input, with the VIP as destination, because that is an address of the
//! node; forward only sees the answers of pods. A host that drops unknown traffic in either of them cuts
//! Services off. `accept` in our own table does not help: it ends one base chain, and a drop in another one
//! is final.
//!
//! [`FirewallChains::closed_chains`] finds the chains that drop, and [`FirewallChains::settle`] puts rules at
//! the head of such a chain, which accept what [`HostFirewall`](netfilter::HostFirewall) says: packets with a
//! mark that our own table sets before the host's chains and clears behind them ([`Policy::accept_mark`]), or
//! what kube-proxy accepts. Apart from those rules nothing of the host's firewall is ever changed.
//!
//! # Rules by hand
//!
//! Instead an operator can write the rules: in input they accept what is sent to VIPs and NodePorts, and
//! answers to connections of the node itself; in forward, answers. With iptables, for Services in
//! 10.96.0.0/12 and load balancers in 203.0.113.0/24 (and the like with ip6tables):
//!
//! ```text
//! iptables -I INPUT -d 10.96.0.0/12,203.0.113.0/24 -m comment --comment kube-ipvs -j ACCEPT
//! iptables -I INPUT -p tcp --dport 30000:32767 -m comment --comment kube-ipvs -j ACCEPT
//! iptables -I INPUT -p udp --dport 30000:32767 -m comment --comment kube-ipvs -j ACCEPT
//! iptables -I INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
//! iptables -I FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -m comment --comment kube-ipvs -j ACCEPT
//! ```
//!
//! With nft, in the host's own table:
//!
//! ```text
//! nft insert rule inet filter input ip daddr '{ 10.96.0.0/12, 203.0.113.0/24 }' accept comment kube-ipvs
//! nft insert rule inet filter input meta l4proto '{ tcp, udp }' th dport 30000-32767 accept comment kube-ipvs
//! nft insert rule inet filter input ct state established,related accept
//! nft insert rule inet filter forward ct state established,related accept comment kube-ipvs
//! ```
//!
//! A comment that begins with `kube-ipvs` says that an operator has taken care of a chain
//! ([`Accepts::ByHand`]), because what a rule accepts cannot be determined in general. Our own table rejects
//! traffic to a port of a VIP that is not served, whatever the host accepts.

mod chain;
mod legacy;
mod our_rules;
mod rule;
mod xt;

use std::borrow::Cow;

use netlink::{Batch, Errno, OperationError, Protocol, Reply, Socket};

pub use chain::{Hook, HostChain, ListedTable, TableFamily};
pub use legacy::{LegacyChains, settling as legacy_settling};
pub(crate) use our_rules::OUR_COMMENT;
pub use our_rules::{Accepts, ClosedChain, How, wants_rules};

use crate::LegacyError;
use chain::BaseChain;
use netfilter::{
    ACCEPT_MARK_PRIORITIES, Policy,
    nft::message::{self, Message, Nfproto},
};
use our_rules::{Accepted, wanted};
use rule::Rule;

/// How often a read, or a transaction that builds on one, is tried if others change nf_tables meanwhile.
const ATTEMPTS: u32 = 5;

/// Why the host's firewall could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The exchange with the kernel failed.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// The chain is in a table that only its owner can change.
    #[error("cannot change {0}: another program owns the table and alone may change it")]
    Owned(HostChain),
    /// The chain comes before our table sets its mark, or after that has been cleared.
    #[error("cannot accept by our mark in chain {0}: packets do not have the mark at the chain's priority")]
    OutOfReach(HostChain),
    /// The tables of the old iptables could not be read or changed.
    #[error(transparent)]
    Legacy(#[from] LegacyError),
}

impl Error {
    fn new(operation: impl Into<Cow<'static, str>>, source: netlink::Error) -> Self {
        OperationError::new("nf_tables", operation, source).into()
    }
}

/// The chains of the host's own firewall: those in nf_tables, or those of the old iptables.
pub trait FirewallChains {
    /// Returns the chains that drop what none of their rules accepts, and whether our rules are in them as
    /// the policy asks for.
    fn closed_chains(&mut self, policy: &Policy) -> Result<Vec<ClosedChain>, Error>;

    /// The chains, closed or not, in which a rule of ours is.
    fn chains_with_our_rules(&mut self) -> Result<Vec<HostChain>, Error>;

    /// Makes our rules in the chain those that the policy asks for, each once and where packets reach it.
    /// Returns whether that took a change.
    fn settle(&mut self, chain: &HostChain, policy: &Policy) -> Result<bool, Error>;

    /// Makes sure that no rule of ours is in the chain. Returns whether that took a change.
    fn withdraw(&mut self, chain: &HostChain) -> Result<bool, Error>;
}

/// The chains in nf_tables, in the network namespace of the thread that opened this.
#[derive(Debug)]
pub struct HostChains {
    socket: Socket,
}

impl FirewallChains for HostChains {
    /// Reads the list of all chains, and the rules of the base chains at input and forward. Dormant tables
    /// filter nothing and are left out, and so is our own.
    fn closed_chains(&mut self, policy: &Policy) -> Result<Vec<ClosedChain>, Error> {
        let judge = |(base, rules): (BaseChain, Vec<Rule>)| {
            let wanted = wanted(policy, &base.chain);
            our_rules::judge(base, &rules, &wanted)
        };
        Ok(self.read()?.into_iter().filter_map(judge).collect())
    }

    fn chains_with_our_rules(&mut self) -> Result<Vec<HostChain>, Error> {
        let mut chains = self.read()?;
        chains.retain(|(_, rules)| rules.iter().any(our_rules::is_ours));
        Ok(chains.into_iter().map(|(base, _)| base.chain).collect())
    }

    fn settle(&mut self, chain: &HostChain, policy: &Policy) -> Result<bool, Error> {
        let wanted = wanted(policy, chain);
        let by_our_mark = wanted.contains(&Accepted::Marked(policy.accept_mark()));
        if by_our_mark && !ACCEPT_MARK_PRIORITIES.contains(&chain.priority) {
            return Err(Error::OutOfReach(chain.clone()));
        }
        self.change(chain, &wanted)
    }

    fn withdraw(&mut self, chain: &HostChain) -> Result<bool, Error> {
        self.change(chain, &[])
    }
}

impl HostChains {
    /// Opens a netlink socket. Nothing is read or written yet.
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open(Protocol::Netfilter)
            .map_err(|source| Error::new("open a socket to nf_tables", source))?;
        Ok(Self { socket })
    }

    /// Makes the rules of ours in the chain those that are wanted.
    fn change(&mut self, chain: &HostChain, wanted: &[Accepted]) -> Result<bool, Error> {
        let mut outcome = self.attempt(chain, wanted);
        for _ in 1..ATTEMPTS {
            match &outcome {
                Err(Error::Operation(error)) if error.errno() == Some(Errno::ERESTART) => {
                    outcome = self.attempt(chain, wanted);
                }
                _ => break,
            }
        }
        match outcome {
            Err(Error::Operation(OperationError::NotPermitted { .. })) if self.is_owned(chain)? => {
                Err(Error::Owned(chain.clone()))
            }
            outcome => outcome,
        }
    }

    /// One transaction, which the kernel refuses with ERESTART if another program has changed nf_tables since
    /// the rules were read. Whatever our rules were before, packets never find the chain without.
    fn attempt(&mut self, chain: &HostChain, wanted: &[Accepted]) -> Result<bool, Error> {
        let operation = if wanted.is_empty() { "remove our rules from" } else { "put our rules into" };
        let cannot = |source| Error::new(format!("{operation} chain {chain}"), source);
        let generation = message::generation(&mut self.socket).map_err(cannot)?;
        let rules = self.rules(chain)?;
        if our_rules::is_settled(&rules, wanted) {
            return Ok(false);
        }
        let mut batch = Batch::default();
        message::begin(&mut batch, Some(generation));
        for rule in rules.iter().filter(|rule| our_rules::is_ours(rule)) {
            our_rules::delete(&mut batch, chain, rule);
        }
        // Each goes to the head, so the first comes last.
        for accepted in wanted.iter().rev() {
            our_rules::insert(&mut batch, chain, *accepted);
        }
        message::end(&mut batch);
        self.socket.transact(&mut batch).map_err(cannot)?;
        Ok(true)
    }

    /// All chains with their rules, as a consistent snapshot if others leave time for one.
    fn read(&mut self) -> Result<Vec<(BaseChain, Vec<Rule>)>, Error> {
        let cannot = |source| Error::new("read the host's chains", source);
        for _ in 0..ATTEMPTS {
            let before = message::generation(&mut self.socket).map_err(cannot)?;
            let found = self.read_once();
            if message::generation(&mut self.socket).map_err(cannot)? == before {
                return found;
            }
        }
        self.read_once()
    }

    fn read_once(&mut self) -> Result<Vec<(BaseChain, Vec<Rule>)>, Error> {
        let tables = self.tables()?;
        let mut found = Vec::new();
        for base in self.list(Message::GetChain, chain::decode_base, "list the chains")? {
            if tables.iter().any(|table| table.dormant && table.holds(&base.chain)) {
                continue;
            }
            let rules = self.rules(&base.chain)?;
            found.push((base, rules));
        }
        Ok(found)
    }

    fn tables(&mut self) -> Result<Vec<ListedTable>, Error> {
        self.list(Message::GetTable, chain::decode_table, "list the tables")
    }

    /// Lists the objects of every family.
    fn list<T>(
        &mut self,
        message: Message,
        decode: impl FnMut(&Reply<'_>) -> Result<Option<T>, netlink::Error>,
        operation: &'static str,
    ) -> Result<Vec<T>, Error> {
        let mut request = message::request(message, Nfproto::UNSPECIFIED, |_| {});
        self.socket.dump(&mut request, decode).map_err(|source| Error::new(operation, source))
    }

    /// All tables, ours too, with their chains, in the kernel's order.
    pub fn tables_with_chains(&mut self) -> Result<Vec<ListedTable>, Error> {
        let mut tables = self.tables()?;
        for chain in self.list(Message::GetChain, chain::decode_any, "list all chains")? {
            if let Some(table) = tables.iter_mut().find(|table| table.lists(&chain)) {
                table.chains.push(chain);
            }
        }
        Ok(tables)
    }

    fn is_owned(&mut self, chain: &HostChain) -> Result<bool, Error> {
        Ok(self.tables()?.iter().any(|table| table.owned && table.holds(chain)))
    }

    fn rules(&mut self, chain: &HostChain) -> Result<Vec<Rule>, Error> {
        self.socket
            .dump(&mut rule::list(chain), |reply| rule::decode(reply, chain))
            .map_err(|source| Error::new(format!("read the rules of chain {chain}"), source))
    }
}

#[cfg(test)]
mod tests;
