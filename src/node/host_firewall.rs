//! Puts our rules into the chains of the host's own firewall that would drop packets of Services.
//!
//! Each check makes the rules those that `--host-firewall` asks for: a reloaded firewall has lost them, and
//! an earlier daemon may have left others. The rules stay when the daemon ends, so that traffic goes on.

pub(crate) mod findings;

use std::{collections::HashSet, future::Future};

use host_rules::host_firewall::{
    Accepts, Error, FirewallChains, Hook, HostChain, HostChains, LegacyChains, wants_rules,
};
use netfilter::{HostFirewall, Policy};
use tokio::sync::watch;
use tracing::{debug, info};

use crate::finding::Finding;

/// Applies our rules for as long as the daemon runs.
#[derive(Debug)]
pub(crate) struct OurRules {
    policy: Policy,
    /// The host's chains into which we have put rules.
    opened: HashSet<HostChain>,
    /// Whether the rules were applied once.
    done: watch::Sender<bool>,
}

impl OurRules {
    /// Applies the rules as this policy asks for them.
    pub(crate) fn new(policy: Policy) -> Self {
        Self { policy, opened: HashSet::new(), done: watch::Sender::new(false) }
    }

    /// Puts our rules in, or takes them out, and returns the findings to report. Blocks.
    pub(crate) fn apply(&mut self) -> Vec<Finding> {
        let legacy = LegacyChains::open();
        let unseen = legacy.as_ref().map(|chains| chains.unseen().to_vec()).unwrap_or_default();
        let mut reported = self.tend(HostChains::open());
        reported.extend(self.tend(legacy));
        reported.extend((!unseen.is_empty()).then(|| findings::programs_missing(&unseen)));
        self.done.send_replace(true);
        reported
    }

    fn tend(&mut self, chains: Result<impl FirewallChains, Error>) -> Vec<Finding> {
        let found = chains.and_then(|mut chains| tend(&mut chains, &self.policy, &mut self.opened));
        found.unwrap_or_else(|error| vec![findings::unreadable(&error)])
    }

    /// Waits until the rules were applied once.
    pub(crate) fn done(&self) -> impl Future<Output = ()> + use<> {
        let mut done = self.done.subscribe();
        async move { _ = done.wait_for(|done| *done).await }
    }
}

/// Makes our rules in each chain those wanted, and returns the findings to report. `opened` has the chains
/// that got rules so far.
fn tend(
    chains: &mut impl FirewallChains,
    policy: &Policy,
    opened: &mut HashSet<HostChain>,
) -> Result<Vec<Finding>, Error> {
    let closed = chains.closed_chains(policy)?;
    let mut reported = Vec::new();
    // Chains that have been opened since, or are named by an earlier daemon's configuration.
    for chain in chains.chains_with_our_rules()? {
        if closed.iter().all(|closed| closed.chain != chain)
            && let Err(error) = settle(chains, &chain, policy, opened)
        {
            reported.push(findings::keeps_rules(&chain, &error));
        }
    }
    for closed in closed {
        match settle(chains, &closed.chain, policy, opened) {
            Err(error) if !wants_rules(policy, &closed.chain) => {
                reported.push(findings::keeps_rules(&closed.chain, &error));
            }
            // Rules by hand replace ours.
            _ if closed.accepts == Accepts::ByHand => {}
            Err(error) => reported.push(findings::takes_no_rules(&closed, &error)),
            Ok(()) if drops_still(policy.host_firewall, &closed.chain) => {
                reported.push(findings::drops(&closed));
            }
            Ok(()) => {}
        }
    }
    Ok(reported)
}

fn settle(
    chains: &mut impl FirewallChains,
    chain: &HostChain,
    policy: &Policy,
    opened: &mut HashSet<HostChain>,
) -> Result<(), Error> {
    let changed = chains.settle(chain, policy)?;
    match (changed, wants_rules(policy, chain)) {
        (false, _) => {}
        (true, false) => {
            info!("removed our rules from the host's chain {chain}: --host-firewall asks for none");
        }
        (true, true) if opened.insert(chain.clone()) => {
            info!("put our rules into the host's chain {chain}, as --host-firewall asks");
        }
        // A firewall reloaded every second must not fill our log.
        (true, true) => debug!("put our rules into the host's chain {chain} again"),
    }
    Ok(())
}

/// Whether the chain drops packets of Services although our rules are as they should be: kube-proxy accepts
/// what pods answer, but of what is sent to Services only health checks.
pub(crate) fn drops_still(host_firewall: HostFirewall, chain: &HostChain) -> bool {
    match host_firewall {
        HostFirewall::Warn => true,
        HostFirewall::AsKubeProxy => chain.hook == Hook::Input || !chain.belongs_to_iptables(),
        HostFirewall::Accept => false,
    }
}

#[cfg(test)]
mod tests {
    use host_rules::{
        Backend,
        host_firewall::{ClosedChain, How, TableFamily},
    };
    use netfilter::LocalTraffic;
    use netlink::OperationError;

    use super::*;
    use crate::finding::Severity;

    /// A host with chains that are closed by policy, or open, each with what it accepts for us.
    #[derive(Default)]
    struct FakeHost {
        closed: Vec<(HostChain, Accepts)>,
        open: Vec<(HostChain, Accepts)>,
        refuses: bool,
        is_unreadable: bool,
    }

    impl FakeHost {
        fn with(chain: HostChain, accepts: Accepts) -> Self {
            Self { closed: vec![(chain, accepts)], ..Self::default() }
        }

        fn set(&mut self, chain: &HostChain, to: impl Fn(Accepts) -> Accepts) -> Result<bool, Error> {
            if self.refuses {
                return Err(Error::Owned(chain.clone()));
            }
            let mut all = self.closed.iter_mut().chain(&mut self.open);
            let (_, accepts) = all.find(|(its, _)| its == chain).unwrap();
            let before = std::mem::replace(accepts, to(*accepts));
            Ok(*accepts != before)
        }
    }

    impl FirewallChains for &mut FakeHost {
        fn closed_chains(&mut self, _: &Policy) -> Result<Vec<ClosedChain>, Error> {
            if self.is_unreadable {
                return Err(OperationError::NotPermitted {
                    subsystem: "nf_tables",
                    operation: "list chains".into(),
                }
                .into());
            }
            let closed = |(chain, accepts): &(HostChain, Accepts)| ClosedChain {
                chain: chain.clone(),
                how: How::Policy,
                accepts: *accepts,
            };
            Ok(self.closed.iter().map(closed).collect())
        }

        fn chains_with_our_rules(&mut self) -> Result<Vec<HostChain>, Error> {
            let all = self.closed.iter().chain(&self.open);
            let ours = all.filter(|(_, accepts)| *accepts == Accepts::ByOurRules);
            Ok(ours.map(|(chain, _)| chain.clone()).collect())
        }

        fn settle(&mut self, chain: &HostChain, policy: &Policy) -> Result<bool, Error> {
            if wants_rules(policy, chain) {
                self.set(chain, |_| Accepts::ByOurRules)
            } else {
                self.withdraw(chain)
            }
        }

        fn withdraw(&mut self, chain: &HostChain) -> Result<bool, Error> {
            self.set(chain, |accepts| match accepts {
                Accepts::ByOurRules => Accepts::Nothing,
                others => others,
            })
        }
    }

    fn input() -> HostChain {
        HostChain {
            backend: Backend::Nft,
            family: TableFamily::Ip,
            table: "filter".into(),
            name: "INPUT".into(),
            hook: Hook::Input,
            priority: 0,
        }
    }

    fn forward() -> HostChain {
        HostChain { name: "FORWARD".into(), hook: Hook::Forward, ..input() }
    }

    /// A chain of another program than iptables.
    fn of_nft() -> HostChain {
        HostChain { name: "forward".into(), ..forward() }
    }

    fn said(host: &mut FakeHost, host_firewall: HostFirewall) -> Vec<(Severity, String, String)> {
        let local_traffic = LocalTraffic::Source { ipv4: None, ipv6: None };
        let policy = Policy { host_firewall, ..Policy::new(local_traffic) };
        let mut rules = OurRules::new(policy);
        let findings = rules.tend(Ok(host)).into_iter();
        findings.map(|finding| (finding.severity, finding.what, finding.remedy.unwrap())).collect()
    }

    #[test]
    fn a_chain_that_drops_is_named_with_both_remedies_and_left_as_it_is() {
        let mut host = FakeHost::with(input(), Accepts::Nothing);
        let what = "the host's firewall may drop what is sent to VIPs and NodePorts, in its chain \
             ip filter INPUT: policy drop";
        let remedy = "--host-firewall=accept, or rules of your own whose comment begins with kube-ipvs \
             (docs/node.md has them)";
        let expected = [(Severity::Warning, what.to_owned(), remedy.to_owned())];
        assert_eq!(said(&mut host, HostFirewall::Warn), expected);
        assert_eq!(host.closed[0].1, Accepts::Nothing);
        assert_eq!(said(&mut host, HostFirewall::AsKubeProxy), expected, "as with kube-proxy");
        assert_eq!(host.closed[0].1, Accepts::ByOurRules, "health checks are accepted");
    }

    #[test]
    fn in_forward_it_is_the_answers_that_are_dropped() {
        let said = said(&mut FakeHost::with(forward(), Accepts::Nothing), HostFirewall::Warn);
        assert!(said[0].1.contains("may drop what pods answer, in its chain ip filter FORWARD"), "{said:?}");
    }

    #[test]
    fn as_kube_proxy_forward_of_iptables_is_opened_and_another_chain_is_named() {
        let mut host = FakeHost::with(forward(), Accepts::Nothing);
        assert_eq!(said(&mut host, HostFirewall::AsKubeProxy), []);
        assert_eq!(host.closed[0].1, Accepts::ByOurRules);
        let mut host = FakeHost::with(of_nft(), Accepts::Nothing);
        let said = said(&mut host, HostFirewall::AsKubeProxy);
        let [(Severity::Warning, what, remedy)] = said.as_slice() else { panic!("{said:?}") };
        assert!(what.contains("in its chain ip filter forward"), "{what}");
        assert!(remedy.starts_with("--host-firewall=accept, or "), "{remedy}");
        assert_eq!(host.closed[0].1, Accepts::Nothing);
    }

    #[test]
    fn rules_by_hand_are_not_reported() {
        for how in [HostFirewall::Warn, HostFirewall::AsKubeProxy, HostFirewall::Accept] {
            for chain in [input(), forward(), of_nft()] {
                assert_eq!(said(&mut FakeHost::with(chain, Accepts::ByHand), how), []);
            }
        }
    }

    #[test]
    fn accept_puts_rules_into_each_closed_chain_and_nothing_is_reported() {
        for before in [Accepts::Nothing, Accepts::ByHand, Accepts::ByOurRules] {
            for chain in [input(), forward(), of_nft()] {
                let mut host = FakeHost::with(chain, before);
                assert_eq!(said(&mut host, HostFirewall::Accept), [], "{before:?}");
                assert_eq!(host.closed[0].1, Accepts::ByOurRules, "{before:?}");
            }
        }
    }

    #[test]
    fn chain_that_takes_no_rules_is_reported_with_the_cause_unless_rules_by_hand_exist() {
        for how in [HostFirewall::AsKubeProxy, HostFirewall::Accept] {
            let mut host = FakeHost { refuses: true, ..FakeHost::with(forward(), Accepts::Nothing) };
            let found = said(&mut host, how);
            let [(Severity::Warning, what, remedy)] = found.as_slice() else { panic!("{found:?}") };
            assert!(
                what.contains("ip filter FORWARD: policy drop; ") && what.contains("another program"),
                "{what}"
            );
            assert!(remedy.starts_with("rules of your own"), "the flag is given already: {remedy}");
            let mut host = FakeHost { refuses: true, ..FakeHost::with(forward(), Accepts::ByHand) };
            assert_eq!(said(&mut host, how), []);
        }
    }

    #[test]
    fn back_to_warn_the_rules_are_taken_out_and_the_chain_named() {
        let mut host = FakeHost::with(input(), Accepts::ByOurRules);
        let said = said(&mut host, HostFirewall::Warn);
        assert_eq!(host.closed[0].1, Accepts::Nothing);
        assert!(matches!(said.as_slice(), [(Severity::Warning, ..)]), "{said:?}");
    }

    #[test]
    fn rules_in_a_chain_that_drops_no_longer_are_those_that_are_asked_for() {
        for (how, chain, left) in [
            (HostFirewall::Warn, forward(), Accepts::Nothing),
            (HostFirewall::AsKubeProxy, forward(), Accepts::ByOurRules),
            (HostFirewall::AsKubeProxy, of_nft(), Accepts::Nothing),
            (HostFirewall::Accept, of_nft(), Accepts::ByOurRules),
        ] {
            let mut host = FakeHost { open: vec![(chain, Accepts::ByOurRules)], ..FakeHost::default() };
            assert_eq!(said(&mut host, how), [], "{how:?}");
            assert_eq!(host.open[0].1, left, "{how:?}");
        }
    }

    #[test]
    fn rules_that_cannot_be_taken_out_are_no_danger_and_so_a_note() {
        let host = || FakeHost::with(input(), Accepts::ByOurRules);
        let open = || FakeHost { open: host().closed, ..FakeHost::default() };
        for host in [host(), open()] {
            let said = said(&mut FakeHost { refuses: true, ..host }, HostFirewall::Warn);
            let [(Severity::Note, what, _)] = said.as_slice() else { panic!("{said:?}") };
            assert!(what.contains("cannot remove our rules from the host's chain ip filter INPUT"), "{what}");
        }
    }

    #[test]
    fn unreadable_firewall_is_reported_as_such() {
        let mut host = FakeHost { is_unreadable: true, ..FakeHost::default() };
        for wanted in [HostFirewall::AsKubeProxy, HostFirewall::Warn, HostFirewall::Accept] {
            let said = said(&mut host, wanted);
            let [(Severity::Note, what, _)] = said.as_slice() else { panic!("{said:?}") };
            assert!(what.starts_with("cannot read the host's firewall: nf_tables refuses"), "{what}");
        }
    }
}
