//! Our table: what is in it, and how it comes into the kernel.

use std::fmt;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use ipvs::Family;

use crate::{
    Element, LocalTraffic, Policy,
    nft::{
        TABLE,
        chain::{Chain, Hook},
        family_name,
        rule::Rule,
        set::{Datatype, Set},
        statement::{Field, Interface, Statement},
        transaction::{Operation, Transaction},
    },
    table::ObservedTable,
};

static SETS: [Set; 8] = [
    Set { name: Element::VIPS, key: &[Datatype::Address], intervals: false },
    Set { name: Element::RESTRICTED, key: SERVICE_ADDRESS, intervals: false },
    Set { name: Element::ALLOWED_SOURCES, key: SERVICE_ADDRESS_AND_OTHER, intervals: true },
    Set { name: Element::CLUSTER_IPS, key: SERVICE_ADDRESS, intervals: false },
    Set { name: Element::EXTERNAL, key: SERVICE_ADDRESS, intervals: false },
    Set { name: Element::EXTERNAL_LOCAL, key: SERVICE_ADDRESS, intervals: false },
    Set { name: Element::HAIRPIN, key: SERVICE_ADDRESS_AND_OTHER, intervals: false },
    Set { name: Element::HEALTH_CHECK_PORTS, key: &[Datatype::Protocol, Datatype::Port], intervals: false },
];

const SERVICE_ADDRESS: &[Datatype] = &[Datatype::Address, Datatype::Protocol, Datatype::Port];
const SERVICE_ADDRESS_AND_OTHER: &[Datatype] =
    &[Datatype::Address, Datatype::Protocol, Datatype::Port, Datatype::Address];

const DESTINATION: &[Field] = &[Field::DestinationAddress, Field::L4Protocol, Field::DestinationPort];
const SOURCE_AND_PORT: &[Field] = &[Field::SourceAddress, Field::L4Protocol, Field::DestinationPort];
const DESTINATION_AND_SOURCE: &[Field] =
    &[Field::DestinationAddress, Field::L4Protocol, Field::DestinationPort, Field::SourceAddress];

const SERVICES: &str = "services";

/// The table of one family that a policy asks for. The number of rules does not depend on the number
/// of services: what changes with them is in the sets.
///
/// `Display` prints it, without elements, exactly as `nft list ruleset` does (except that nft 1.0.6
/// prints the test of mark bit 31 as a prefix).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruleset {
    family: Family,
    /// In the order in which they are created: a chain comes before the jumps to it.
    chains: [Chain; 4],
}

impl Ruleset {
    /// The table that does what `policy` says.
    pub fn new(policy: &Policy, family: Family) -> Self {
        let to_services = || vec![Rule::new("new connections", [Statement::Jump(SERVICES)])];
        let chains = [
            Chain { name: SERVICES, hook: None, rules: services(policy, family) },
            Chain { name: "prerouting", hook: Some(Hook::Prerouting), rules: to_services() },
            // Never of type route: setting the mark there would route the packet once more.
            Chain { name: "output", hook: Some(Hook::Output), rules: to_services() },
            Chain { name: "postrouting", hook: Some(Hook::Postrouting), rules: postrouting(policy.mark) },
        ];
        Self { family, chains }
    }

    /// The sets of the table.
    pub(crate) fn sets() -> &'static [Set] {
        &SETS
    }

    /// Whether the kernel's table is exactly this one, elements aside.
    pub(crate) fn is_installed(&self, table: &ObservedTable) -> bool {
        self.sets_match(table)
            && table.chains.len() == self.chains.len()
            && self.chains.iter().all(|chain| table.chains.iter().any(|observed| chain.is(observed)))
            && self.chains.iter().all(|chain| self.rules_match(chain, table))
    }

    /// Adds to `transaction` what makes the kernel's `table` this one; nothing if it is.
    ///
    /// Sets that are right stay, with their elements. If one is not, the table is built anew, and
    /// `elements` are put back.
    pub(crate) fn install<'a>(
        &'a self,
        transaction: &mut Transaction<'a>,
        table: Option<&ObservedTable>,
        elements: &[Vec<Element>],
    ) {
        match table {
            Some(table) if self.is_installed(table) => {}
            Some(table) if self.sets_match(table) => self.repair(transaction, table),
            _ => {
                if table.is_some() {
                    transaction.push(Operation::DeleteTable(self.family));
                }
                transaction.push(Operation::AddTable(self.family));
                for set in &SETS {
                    transaction.push(Operation::AddSet(self.family, set));
                }
                for chain in &self.chains {
                    transaction.push(Operation::AddChain(self.family, chain));
                }
                self.add_rules(transaction);
                for set in elements {
                    transaction.add_elements(set);
                }
            }
        }
    }

    /// Whether there are our sets, no others, and no table flag such as `dormant`.
    pub(crate) fn sets_match(&self, table: &ObservedTable) -> bool {
        table.flags == 0
            && table.sets.len() == SETS.len()
            && SETS.iter().all(|set| table.sets.iter().any(|observed| set.is(self.family, observed)))
    }

    /// Fills the chains anew. A base chain's hook, priority and type are fixed at its creation, so a
    /// chain that differs is deleted first. Packets see the old rules or the new, nothing between.
    fn repair<'a>(&'a self, transaction: &mut Transaction<'a>, table: &ObservedTable) {
        transaction.push(Operation::FlushRules(self.family));
        for observed in &table.chains {
            if !self.chains.iter().any(|chain| chain.is(observed)) {
                transaction.push(Operation::DeleteChain(self.family, observed.name.clone()));
            }
        }
        for chain in &self.chains {
            if !table.chains.iter().any(|observed| chain.is(observed)) {
                transaction.push(Operation::AddChain(self.family, chain));
            }
        }
        self.add_rules(transaction);
    }

    fn add_rules<'a>(&'a self, transaction: &mut Transaction<'a>) {
        for chain in &self.chains {
            for rule in &chain.rules {
                transaction.push(Operation::AddRule(self.family, chain.name, rule));
            }
        }
    }

    fn rules_match(&self, chain: &Chain, table: &ObservedTable) -> bool {
        let installed = table.rules.iter().filter(|rule| *rule.chain == *chain.name);
        installed.map(|rule| rule.comment.to_string()).eq(chain.rules.iter().map(|r| r.comment(self.family)))
    }
}

/// Who is marked for masquerading: everybody who connects to an external address, and everybody who
/// connects to a ClusterIP except pods of this node, which get their answers back through this node anyway.
///
/// A pod that connects to an external address is masqueraded all the same, as upstream does it.
fn services(policy: &Policy, family: Family) -> Vec<Rule> {
    let mark = Statement::SetMark(policy.mark);
    let to_external = Statement::InSet { fields: DESTINATION, set: Element::EXTERNAL };
    let to_cluster_ip = Statement::InSet { fields: DESTINATION, set: Element::CLUSTER_IPS };
    let mut rules = vec![
        Rule::new("loopback is never masqueraded", [Statement::From(loopback(family)), Statement::Return]),
        Rule::new("all flows to an external address", [to_external, mark.clone()]),
    ];
    if policy.masquerade_all {
        rules.push(Rule::new("masquerade all flows to a ClusterIP", [to_cluster_ip, mark]));
        return rules;
    }
    match local_traffic(&policy.local_traffic, family) {
        Some(local) => {
            // Not a negated match and a mark: kernels older than mid-2019 never match
            // `iifname != "cbr0"` in output, where there is no input interface.
            rules.push(Rule::new("pods of this node keep their address", [local, Statement::Return]));
            rules.push(Rule::new("flows to a ClusterIP from elsewhere", [to_cluster_ip, mark]));
        }
        None => {
            // The node's own connections: it takes the VIP, one of its addresses, for the source.
            let from_cluster_ip = Statement::InSet { fields: SOURCE_AND_PORT, set: Element::CLUSTER_IPS };
            rules.push(Rule::new("flows from a ClusterIP", [from_cluster_ip, mark]));
        }
    }
    rules
}

/// The hook comes after all of IPVS's: the destination is the real server already.
fn postrouting(mark: u32) -> Vec<Rule> {
    let hairpin = Statement::InSet { fields: DESTINATION_AND_SOURCE, set: Element::HAIRPIN };
    let (clear, masquerade) =
        (Statement::ClearMark(mark), |fully_random| Statement::Masquerade { fully_random });
    vec![
        Rule::new("a pod that reached itself", [hairpin, clear.clone(), masquerade(false)]),
        Rule::new("marked flows", [Statement::HasMark(mark), clear, masquerade(true)]),
    ]
}

/// What matches flows from pods of this node; `None` if that is not known in this family.
fn local_traffic(local: &LocalTraffic, family: Family) -> Option<Statement> {
    match (local, family) {
        (LocalTraffic::Source { ipv4, .. }, Family::V4) => ipv4.map(|net| Statement::From(net.into())),
        (LocalTraffic::Source { ipv6, .. }, Family::V6) => ipv6.map(|net| Statement::From(net.into())),
        (LocalTraffic::Bridge(name), _) => Some(Statement::CameInThrough(Interface::Named(name.clone()))),
        (LocalTraffic::InterfacePrefix(prefix), _) => {
            Some(Statement::CameInThrough(Interface::StartingWith(prefix.clone())))
        }
    }
}

fn loopback(family: Family) -> IpNet {
    use std::net::{Ipv4Addr, Ipv6Addr};
    match family {
        Family::V4 => Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8).into(),
        Family::V6 => Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128).into(),
    }
}

impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "table {} {TABLE} {{", family_name(self.family))?;
        for set in &SETS {
            write!(f, "\tset {} {{\n\t\t", set.name)?;
            set.write(self.family, f)?;
            f.write_str("\n\t}\n\n")?;
        }
        for (position, chain) in self.chains.iter().enumerate() {
            let separator = if position == 0 { "" } else { "\n" };
            writeln!(f, "{separator}\tchain {} {{", chain.name)?;
            if let Some(hook) = chain.hook {
                writeln!(f, "\t\t{hook}")?;
            }
            for rule in &chain.rules {
                f.write_str("\t\t")?;
                rule.write(self.family, f)?;
                f.write_str("\n")?;
            }
            f.write_str("\t}\n")?;
        }
        f.write_str("}\n")
    }
}

#[cfg(test)]
mod tests;
