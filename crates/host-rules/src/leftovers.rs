//! Finding and removing what kube-proxy leaves behind on a node.
//!
//! In its modes ipvs and iptables kube-proxy leaves rules in the tables of iptables, and ipsets; in its mode
//! nftables, its own table in each family. None of it goes away when kube-proxy ends, and some of it does
//! harm later: KUBE-IPVS-FILTER rejects what is sent to VIPs that kube-proxy did not know, and source ranges
//! that were removed long ago still drop.
//!
//! `leftovers/names.rs` says what is kube-proxy's: chains and sets by their full names, because others have
//! chains that begin with `KUBE-` too. Of other programs' rules only the jumps into those chains are removed.
//! A chain that another program uses stays, and is reported.
//!
//! Rules of iptables are either in nf_tables, and are deleted by netlink, or in the tables of the old
//! iptables, for which the host's own programs are run if they are there.

mod chains;
mod found;
mod ipset;
mod legacy;
mod names;
mod nf_tables;

use ipvs::Family;
use netlink::{Protocol, Socket};

use crate::{Backend, LegacyError, legacy::Programs};
use chains::Plan;
use found::name_of;
pub use found::{Error, Leftover, Outcome, Rules, Stayed};
pub use legacy::removal as legacy_removal;
use names::{FORWARD, NFTABLES_TABLE, TABLES};
use netfilter::nft::message;
pub use nf_tables::{Translation, has_written};

/// What is removed in addition to ipsets and rules of iptables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Whether the tables of the nftables mode are removed too.
    pub nftables_tables: bool,
    /// The families in which KUBE-FORWARD stays. It accepts the answers of pods: if the host's chain FORWARD
    /// drops the rest, Services need it. In the old iptables it stays if FORWARD has the policy drop and no
    /// rule of ours. With `None` it is always removed.
    pub forwarding_needed_in: Option<Vec<Family>>,
}

/// The leftovers of kube-proxy in the network namespace of the thread that opened this.
#[derive(Debug)]
pub struct Leftovers {
    socket: Socket,
    scope: Scope,
}

/// Whether what is found is removed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Find,
    Remove,
}

impl Leftovers {
    /// Opens a netlink socket. Nothing is read or written yet.
    pub fn open(scope: Scope) -> Result<Self, Error> {
        let socket = Socket::open(Protocol::Netfilter)
            .map_err(|source| Error::new("open a socket to netfilter", source))?;
        Ok(Self { socket, scope })
    }

    /// Finds everything of kube-proxy's. Writes nothing.
    pub fn find(&mut self) -> Outcome {
        self.work(Mode::Find)
    }

    /// Finds everything except the tables of the old iptables, which only programs can read.
    pub fn find_without_programs(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        self.rules(Mode::Find, &mut outcome);
        self.sets(Mode::Find, &mut outcome);
        self.nftables_tables(Mode::Find, &mut outcome);
        outcome
    }

    /// Removes what it finds: first the rules, table by table, each in one transaction, then the sets that
    /// they used.
    pub fn remove(&mut self) -> Outcome {
        self.work(Mode::Remove)
    }

    fn work(&mut self, mode: Mode) -> Outcome {
        let mut outcome = Outcome::default();
        self.rules(mode, &mut outcome);
        self.legacy(mode, &mut outcome);
        self.sets(mode, &mut outcome);
        self.nftables_tables(mode, &mut outcome);
        outcome
    }

    fn rules(&mut self, mode: Mode, outcome: &mut Outcome) {
        let work = match mode {
            Mode::Find => nf_tables::plan,
            Mode::Remove => nf_tables::remove,
        };
        for family in Family::BOTH {
            let needed = self.scope.forwarding_needed_in.as_ref();
            let spared = needed.is_some_and(|families| families.contains(&family)).then_some(FORWARD);
            for table in TABLES {
                match work(&mut self.socket, family, table, spared) {
                    Ok(plan) => outcome.take(Backend::Nft, family, table, plan),
                    Err(source) => {
                        let what = name_of(Backend::Nft, family, table);
                        outcome.stays(what, Error::new("change its rules", source));
                    }
                }
            }
        }
    }

    fn legacy(&mut self, mode: Mode, outcome: &mut Outcome) {
        let mut unreadable = Vec::new();
        for family in Family::BOTH {
            let tables = match legacy::tables(family) {
                Ok(tables) if tables.is_empty() => continue,
                Ok(tables) => tables,
                Err(error) => {
                    outcome.stays(format!("iptables-legacy, {family}"), error.into());
                    continue;
                }
            };
            let Some(programs) = Programs::find(family) else {
                unreadable.push(family);
                continue;
            };
            for table in tables {
                match self.legacy_table(mode, table, &programs) {
                    Ok(plan) => outcome.take(Backend::Legacy, family, table, plan),
                    Err(error) => outcome.stays(name_of(Backend::Legacy, family, table), error.into()),
                }
            }
        }
        if !unreadable.is_empty() {
            let families: Vec<_> = unreadable.iter().map(ToString::to_string).collect();
            let by_hand = legacy::by_hand(&unreadable);
            let what = format!("iptables-legacy, {}", families.join(" and "));
            outcome.unknown.push(Stayed { what, why: Error::NoPrograms { by_hand } });
        }
    }

    fn legacy_table(
        &self,
        mode: Mode,
        table: &str,
        programs: &Programs,
    ) -> Result<Plan<String>, LegacyError> {
        let plan = legacy::plan(programs, table, self.scope.forwarding_needed_in.is_some())?;
        if mode == Mode::Remove && !plan.is_empty() {
            legacy::remove(programs, table, &plan)?;
        }
        Ok(plan)
    }

    fn sets(&mut self, mode: Mode, outcome: &mut Outcome) {
        let cannot = |source| Error::new("list the ipsets", source);
        let mut names = match ipset::names(&mut self.socket) {
            Ok(names) => names,
            Err(source) => return outcome.stays("ipsets", cannot(source)),
        };
        names.retain(|name| names::is_set(name));
        names.sort();
        if mode == Mode::Remove && !names.is_empty() {
            match ipset::destroy(&mut self.socket, &names) {
                Ok(in_use) => {
                    names.retain(|name| !in_use.contains(name));
                    for name in in_use {
                        outcome.stays(format!("ipset {name}"), Error::InUse);
                    }
                }
                Err(source) => return outcome.stays("ipsets", Error::new("delete the ipsets", source)),
            }
        }
        outcome.leftovers.extend(names.into_iter().map(Leftover::Set));
    }

    fn nftables_tables(&mut self, mode: Mode, outcome: &mut Outcome) {
        let work = match mode {
            _ if !self.scope.nftables_tables => return,
            Mode::Find => message::has_table,
            Mode::Remove => message::delete_table,
        };
        for family in Family::BOTH {
            let table = Leftover::NftablesTable(family);
            match work(&mut self.socket, family, NFTABLES_TABLE) {
                Ok(true) => outcome.leftovers.push(table),
                Ok(false) => {}
                Err(source) => outcome.stays(table.to_string(), Error::new("delete it", source)),
            }
        }
    }
}
