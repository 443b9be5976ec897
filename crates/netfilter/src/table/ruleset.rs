//! Our table: what is in it, and how it comes into the kernel.

mod chains;
mod direct_return;

use std::fmt;

use ipvs::Family;

pub use self::chains::ACCEPT_MARK_PRIORITIES;
use self::chains::{KEEPS_DESTINATION, UNTRACKED};
pub(super) use self::chains::{OF_NEW_FLOWS, input_of_open_flows};
use super::{
    observed::{Elements, ObservedTable},
    transaction::{Request, Transaction},
};
use crate::{
    Element, PacketCounter, Policy,
    element::KNOWN_SETS,
    nft::{TABLE, chain::Chain, rule::Rule, set::Set, statement::Statement, text::write_table},
};

/// The table of one family that a policy asks for. The number of rules does not depend on the number of
/// Services: what changes with them is in the sets.
///
/// `Display` prints it, without elements, exactly as `nft --numeric-priority list ruleset` does (except that
/// nft 1.0.6 prints the test of mark bit 31 as a prefix).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruleset {
    family: Family,
    counters: Vec<PacketCounter>,
    sets: Vec<&'static Set>,
    chains: Vec<Chain>,
}

impl Ruleset {
    /// The table for `policy`.
    pub fn new(policy: &Policy, family: Family) -> Self {
        let usual = KNOWN_SETS.iter().filter(|known| !known.is_of_direct_return);
        let sets = usual.map(|known| &known.set).collect();
        let counters = PacketCounter::ALL.into();
        Self { family, counters, sets, chains: chains::chains(policy, family) }
    }

    /// The table with what direct return needs besides.
    pub fn with_direct_return(policy: &Policy, family: Family) -> Self {
        let mut ruleset = Self::new(policy, family);
        ruleset.sets = Self::known_sets().collect();
        direct_return::extend(&mut ruleset.chains, policy, family);
        ruleset
    }

    /// The table without a set and the rules that use it.
    pub(crate) fn without(mut self, set: &str) -> Self {
        self.sets.retain(|known| known.name != set);
        for chain in &mut self.chains {
            chain.rules.retain(|rule| !rule.uses_set(set));
        }
        self
    }

    /// The table without counters.
    pub(crate) fn without_counters(mut self) -> Self {
        self.counters.clear();
        for rule in self.chains.iter_mut().flat_map(|chain| &mut chain.rules) {
            rule.statements.retain(|statement| !matches!(statement, Statement::Count(_)));
        }
        self
    }

    /// The table that does not take flows from others: another table's destination NAT still applies, which needs
    /// conntrack.
    pub(crate) fn prepared(&self) -> Self {
        let mut prepared = self.clone();
        prepared.chains.retain(|chain| chain.name != UNTRACKED);
        for chain in &mut prepared.chains {
            chain.rules.retain(|rule| rule.about != KEEPS_DESTINATION);
            chain.rules.iter_mut().for_each(Rule::leave_destination_to_others);
        }
        prepared
    }

    /// The names of its chains.
    pub(crate) fn chain_names(&self) -> impl Iterator<Item = &'static str> {
        self.chains.iter().map(|chain| chain.name)
    }

    /// Every set that the table can have.
    pub(crate) fn known_sets() -> impl Iterator<Item = &'static Set> {
        KNOWN_SETS.iter().map(|known| &known.set)
    }

    /// Whether the kernel's table is exactly this one, elements aside.
    pub(crate) fn is_in(&self, table: &ObservedTable) -> bool {
        self.sets_match(table)
            && table.chains.len() == self.chains.len()
            && self.chains.iter().all(|chain| table.chains.iter().any(|observed| chain.is(observed)))
            && self.chains.iter().all(|chain| self.rules_match(chain, table))
    }

    /// Whether the kernel's table has any of the sets that only direct return needs.
    pub(crate) fn has_direct_return(family: Family, table: &ObservedTable) -> bool {
        let mut added = KNOWN_SETS.iter().filter(|known| known.is_of_direct_return);
        added.any(|known| table.sets.iter().any(|observed| known.set.is(family, observed)))
    }

    /// Adds to `transaction` what turns the kernel's `table` into this one; nothing if it is. Packets see
    /// either the old rules or the new ones.
    ///
    /// Correct sets stay, with their elements. If one is wrong, or holds what cannot be ours, the table is
    /// rebuilt and our elements are put back. A new table is the repair of an empty one.
    pub(crate) fn install<'a>(
        &'a self,
        transaction: &mut Transaction<'a>,
        table: Option<&ObservedTable>,
        elements: &Elements,
    ) {
        let kept = table.filter(|table| self.all_sets_are_ours(table) && !elements.has_foreign);
        if kept.is_some_and(|table| self.is_in(table)) {
            return;
        }
        if kept.is_some() {
            transaction.push(Request::FlushRules(self.family));
        } else {
            if table.is_some() {
                transaction.push(Request::DeleteTable(self.family));
            }
            transaction.push(Request::AddTable(self.family));
        }
        self.repair(transaction, kept.unwrap_or(&ObservedTable::default()));
        if kept.is_none() {
            let has_set = |all: &&Vec<Element>| {
                all.first().is_some_and(|one| self.sets.iter().any(|set| set.name == one.set()))
            };
            for set in elements.ours.iter().filter(has_set) {
                transaction.add_elements(set);
            }
        }
    }

    /// Whether the table has exactly our sets, and no table flag such as `dormant`.
    fn sets_match(&self, table: &ObservedTable) -> bool {
        table.flags == 0
            && table.sets.len() == self.sets.len()
            && self.sets.iter().all(|set| self.is_set_in(set, table))
    }

    /// Whether each of its sets is one that a table of ours can have.
    fn all_sets_are_ours(&self, table: &ObservedTable) -> bool {
        let is_ours = |observed| Self::known_sets().any(|set| set.is(self.family, observed));
        table.flags == 0 && table.sets.iter().all(is_ours)
    }

    fn is_set_in(&self, set: &Set, table: &ObservedTable) -> bool {
        table.sets.iter().any(|observed| set.is(self.family, observed))
    }

    /// Adds what a table without rules lacks, and deletes what it should not have. A base chain's hook, priority and
    /// type are fixed at its creation, so a chain that differs is deleted first.
    fn repair<'a>(&'a self, transaction: &mut Transaction<'a>, table: &ObservedTable) {
        for observed in &table.chains {
            if !self.chains.iter().any(|chain| chain.is(observed)) {
                transaction.push(Request::DeleteChain(self.family, observed.name.clone()));
            }
        }
        // No rule can count in a missing counter, so that a table with the right rules has them all.
        for counter in &self.counters {
            if !table.objects.iter().any(|object| *object.name == *counter.name()) {
                transaction.push(Request::AddCounter(self.family, *counter));
            }
        }
        for set in Self::known_sets() {
            match (self.sets.contains(&set), self.is_set_in(set, table)) {
                (true, false) => transaction.push(Request::AddSet(self.family, set)),
                (false, true) => transaction.push(Request::DeleteSet(self.family, set)),
                _ => {}
            }
        }
        for chain in &self.chains {
            if !table.chains.iter().any(|observed| chain.is(observed)) {
                transaction.push(Request::AddChain(self.family, chain));
            }
        }
        for chain in &self.chains {
            for rule in &chain.rules {
                transaction.push(Request::AddRule(self.family, chain.name, rule));
            }
        }
    }

    fn rules_match(&self, chain: &Chain, table: &ObservedTable) -> bool {
        let installed = table.rules.iter().filter(|rule| *rule.chain == *chain.name);
        installed.map(|rule| rule.comment.to_string()).eq(chain.rules.iter().map(|r| r.comment(self.family)))
    }
}

impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_table(f, self.family, TABLE, &self.counters, self.sets.iter().copied(), &self.chains)
    }
}

#[cfg(test)]
mod tests;
