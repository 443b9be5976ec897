//! Decides, on plain values, what is removed from a table of iptables and what has to stay: the same for
//! tables in nf_tables and for those of the old iptables.

use std::collections::BTreeMap;

use super::names;

/// One table, as far as it matters. `R` identifies a rule for deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table<R> {
    /// The chains that packets enter by a hook.
    pub(super) built_in: Vec<Box<str>>,
    /// The others.
    pub(super) chains: Vec<Box<str>>,
    pub(super) rules: Vec<Rule<R>>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule<R> {
    /// The chain it is in.
    pub(super) chain: Box<str>,
    pub(super) id: R,
    /// The chains it leads to.
    pub(super) targets: Vec<Box<str>>,
}

/// What is to be deleted, the jumps first, and what stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan<R> {
    /// The rules of built-in chains that jump to kube-proxy's, each with its chain.
    pub(super) jumps: Vec<(Box<str>, R)>,
    /// The chains, with their rules.
    pub(super) chains: Vec<Box<str>>,
    /// Chains of kube-proxy that stay, each with its user.
    pub(super) kept: BTreeMap<Box<str>, Box<str>>,
    /// The chain that was to be spared, if it is there.
    pub(super) spared: Option<Box<str>>,
}

impl<R> Default for Table<R> {
    fn default() -> Self {
        Self { built_in: Vec::new(), chains: Vec::new(), rules: Vec::new() }
    }
}

impl<R: Clone> Table<R> {
    /// Whether the table has a chain of kube-proxy.
    pub(super) fn is_concerned(&self, name: &str) -> bool {
        self.chains.iter().any(|chain| names::is_chain(name, chain))
    }

    /// Decides about the table of this name. `held` are chains that cannot be deleted, each with its user;
    /// `spared` is a chain that is treated as another program's: it stays as it is, with the jumps to it.
    ///
    /// A chain that another program's rule jumps to stays, and so do the chains that it jumps to itself.
    pub(super) fn plan(
        &self,
        name: &str,
        held: &BTreeMap<Box<str>, Box<str>>,
        spared: Option<&str>,
    ) -> Plan<R> {
        let is_kube_proxys = |chain: &str| names::is_chain(name, chain) && spared != Some(chain);
        let mut jumps = Vec::new();
        let mut kept = held.clone();
        for rule in self.rules.iter().filter(|rule| !is_kube_proxys(&rule.chain)) {
            for target in rule.targets.iter().filter(|target| is_kube_proxys(target)) {
                if self.built_in.contains(&rule.chain) && names::is_entered(name, target) {
                    jumps.push((rule.chain.clone(), rule.id.clone()));
                } else {
                    kept.entry(target.clone()).or_insert_with(|| rule.chain.clone());
                }
            }
        }
        self.keep_what_is_led_to(&mut kept, is_kube_proxys);
        let goes = |chain: &str| is_kube_proxys(chain) && !kept.contains_key(chain);
        let chains = self.chains.iter().filter(|chain| goes(chain)).cloned().collect();
        let spared = self.chains.iter().find(|chain| spared == Some(&***chain)).cloned();
        Plan { jumps, chains, kept, spared }
    }

    fn keep_what_is_led_to(
        &self,
        kept: &mut BTreeMap<Box<str>, Box<str>>,
        is_kube_proxys: impl Fn(&str) -> bool,
    ) {
        let mut to_follow: Vec<_> = kept.keys().cloned().collect();
        while let Some(chain) = to_follow.pop() {
            for rule in self.rules.iter().filter(|rule| rule.chain == chain) {
                for target in rule.targets.iter().filter(|target| is_kube_proxys(target)) {
                    if !kept.contains_key(target) {
                        kept.insert(target.clone(), chain.clone());
                        to_follow.push(target.clone());
                    }
                }
            }
        }
    }
}

impl<R> Plan<R> {
    pub(super) fn is_empty(&self) -> bool {
        self.jumps.is_empty() && self.chains.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table with these rules, each `CHAIN TARGET…` and known by its position; of the chains those in
    /// capitals without a hyphen are built in.
    fn table(rules: &[&str]) -> Table<usize> {
        let mut table = Table::default();
        for (id, rule) in rules.iter().enumerate() {
            let words: Vec<Box<str>> = rule.split(' ').map(Into::into).collect();
            for word in &words {
                let list = if word.contains('-') { &mut table.chains } else { &mut table.built_in };
                if !list.contains(word) {
                    list.push(word.clone());
                }
            }
            table.rules.push(Rule { chain: words[0].clone(), id, targets: words[1..].to_vec() });
        }
        table
    }

    /// The rules, the chains that go, and those that stay, each with who needs it.
    type Decided = (Vec<usize>, Vec<String>, Vec<(String, String)>);

    fn decided(plan: Plan<usize>) -> Decided {
        let jumps = plan.jumps.into_iter().map(|(_, id)| id).collect();
        let mut chains: Vec<String> = plan.chains.into_iter().map(Into::into).collect();
        chains.sort();
        let kept = plan.kept.into_iter().map(|(chain, by)| (chain.into(), by.into())).collect();
        (jumps, chains, kept)
    }

    fn in_nat(rules: &[&str]) -> Decided {
        decided(table(rules).plan("nat", &BTreeMap::new(), None))
    }

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn the_jumps_and_all_chains_of_kube_proxys_go_and_nothing_else() {
        let (jumps, chains, kept) = in_nat(&[
            "PREROUTING KUBE-SERVICES",
            "PREROUTING CNI-HOSTPORT-DNAT",
            "PREROUTING",
            "OUTPUT KUBE-SERVICES",
            "POSTROUTING KUBE-POSTROUTING",
            "POSTROUTING KUBE-ROUTER-SNAT",
            "KUBE-SERVICES KUBE-SVC-NPX46M4PTMTKRN6Y",
            "KUBE-SVC-NPX46M4PTMTKRN6Y KUBE-MARK-MASQ",
            "KUBE-FIREWALL KUBE-MARK-DROP",
            "KUBE-KUBELET-CANARY",
        ]);
        assert_eq!(jumps, [0, 3, 4]);
        let gone = ["KUBE-FIREWALL", "KUBE-MARK-MASQ", "KUBE-POSTROUTING", "KUBE-SERVICES"];
        assert_eq!(chains, strings(&[&gone[..], &["KUBE-SVC-NPX46M4PTMTKRN6Y"]].concat()));
        assert_eq!(kept, []);
    }

    #[test]
    fn a_chain_that_another_program_leads_to_stays_with_what_it_leads_to() {
        let (jumps, chains, kept) = in_nat(&[
            "PREROUTING KUBE-SERVICES",
            "CNI-DN-1 KUBE-MARK-MASQ",
            "MINE-1 KUBE-SVC-NPX46M4PTMTKRN6Y",
            "KUBE-SVC-NPX46M4PTMTKRN6Y KUBE-SEP-NPX46M4PTMTKRN6Y",
            "KUBE-SEP-NPX46M4PTMTKRN6Y KUBE-MARK-MASQ",
            "KUBE-SERVICES KUBE-SVC-NPX46M4PTMTKRN6Y",
        ]);
        assert_eq!(jumps, [0]);
        assert_eq!(chains, ["KUBE-SERVICES"]);
        let expected = [
            ("KUBE-MARK-MASQ", "CNI-DN-1"),
            ("KUBE-SEP-NPX46M4PTMTKRN6Y", "KUBE-SVC-NPX46M4PTMTKRN6Y"),
            ("KUBE-SVC-NPX46M4PTMTKRN6Y", "MINE-1"),
        ];
        assert_eq!(kept, expected.map(|(chain, by)| (chain.to_owned(), by.to_owned())));
    }

    #[test]
    fn a_rule_of_a_built_in_chain_that_kube_proxy_never_writes_stays() {
        let (jumps, chains, kept) = in_nat(&["PREROUTING KUBE-MARK-MASQ", "KUBE-SERVICES KUBE-MARK-MASQ"]);
        assert_eq!((jumps, chains), (vec![], strings(&["KUBE-SERVICES"])));
        assert_eq!(kept, [("KUBE-MARK-MASQ".to_owned(), "PREROUTING".to_owned())]);
    }

    #[test]
    fn chains_that_lead_to_each_other_go() {
        let (_, chains, kept) = in_nat(&["KUBE-SERVICES KUBE-NODEPORTS", "KUBE-NODEPORTS KUBE-SERVICES"]);
        assert_eq!((chains.len(), kept.len()), (2, 0));
    }

    #[test]
    fn what_is_held_stays_without_its_jumps_and_what_is_spared_with_them() {
        let rules = ["FORWARD KUBE-FORWARD", "INPUT KUBE-NODE-PORT"];
        let held = BTreeMap::from([("KUBE-FORWARD".into(), "somebody".into())]);
        let (jumps, chains, kept) = decided(table(&rules).plan("filter", &held, None));
        assert_eq!((jumps, chains, kept.len()), (vec![0, 1], strings(&["KUBE-NODE-PORT"]), 1));
        let spared = table(&rules).plan("filter", &BTreeMap::new(), Some("KUBE-FORWARD"));
        assert_eq!(spared.spared.as_deref(), Some("KUBE-FORWARD"));
        assert_eq!(decided(spared), (vec![1], strings(&["KUBE-NODE-PORT"]), vec![]));
    }
}
