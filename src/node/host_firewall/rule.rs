//! Puts our rule into the chains of the host's own firewall that would drop packets of Services.
//!
//! With `--host-firewall=accept` each check adds the rule where it is missing: a reloaded firewall has lost it. With
//! `warn` each check removes a rule that an earlier `accept` left. The rules stay when the daemon ends, so that
//! traffic goes on.

use std::{collections::HashSet, future::Future};

use host_rules::host_firewall::{Accepts, ClosedChain, Error, HostChain, HostChains};
use netfilter::{HostFirewall, Policy};
use tokio::sync::watch;
use tracing::{debug, info};

/// The host's chains: the kernel's, or a test's.
trait FirewallChains {
    fn closed(&mut self) -> Result<Vec<ClosedChain>, Error>;
    fn with_our_rule(&mut self) -> Result<Vec<HostChain>, Error>;
    fn accept_in(&mut self, chain: &HostChain) -> Result<bool, Error>;
    fn withdraw(&mut self, chain: &HostChain) -> Result<bool, Error>;
}

/// The kernel's chains.
struct KernelChains {
    chains: HostChains,
    /// The mark that our rule accepts.
    mark: u32,
}

impl KernelChains {
    /// Opens the chains, with the mark of our own policy.
    fn open(policy: &Policy) -> Result<Self, Error> {
        Ok(Self { chains: HostChains::open()?, mark: policy.accept_mark() })
    }
}

impl FirewallChains for KernelChains {
    fn closed(&mut self) -> Result<Vec<ClosedChain>, Error> {
        self.chains.closed_chains(self.mark)
    }

    fn with_our_rule(&mut self) -> Result<Vec<HostChain>, Error> {
        self.chains.chains_with_our_rule()
    }

    fn accept_in(&mut self, chain: &HostChain) -> Result<bool, Error> {
        self.chains.accept_in(chain, self.mark)
    }

    fn withdraw(&mut self, chain: &HostChain) -> Result<bool, Error> {
        self.chains.withdraw(chain)
    }
}

/// Applies our rule for as long as the daemon runs.
#[derive(Debug)]
pub(crate) struct AcceptRule {
    policy: Policy,
    /// The host's chains in which we have put our rule.
    opened: HashSet<HostChain>,
    /// Whether the rule was applied once.
    done: watch::Sender<bool>,
}

impl AcceptRule {
    /// Applies the rule as this policy asks for it.
    pub(crate) fn new(policy: Policy) -> Self {
        Self { policy, opened: HashSet::new(), done: watch::Sender::new(false) }
    }

    /// Adds or removes our rule, and returns the findings to report. Blocks.
    pub(crate) fn apply(&mut self) -> Result<Vec<ChainFinding>, Error> {
        let wanted = self.policy.host_firewall;
        let left = KernelChains::open(&self.policy)
            .and_then(|mut chains| tend(&mut chains, wanted, &mut self.opened));
        self.done.send_replace(true);
        left
    }

    /// Waits until the rule was applied once.
    pub(crate) fn done(&self) -> impl Future<Output = ()> + use<> {
        let mut done = self.done.subscribe();
        async move { _ = done.wait_for(|done| *done).await }
    }
}

/// A chain of the host that drops packets of Services, or differs from the configuration.
#[derive(Debug)]
pub(crate) enum ChainFinding {
    /// A chain that drops, without a request for our rule.
    Closed(ClosedChain),
    /// A chain that drops and does not take our rule.
    TakesNoRule(ClosedChain, Error),
    /// A chain out of which our rule cannot be taken.
    KeepsRule(HostChain, Error),
}

/// Puts our rule into the chains that drop, or takes it out of all, and returns the findings to report. `opened` has
/// the chains that got our rule so far.
fn tend(
    chains: &mut impl FirewallChains,
    wanted: HostFirewall,
    opened: &mut HashSet<HostChain>,
) -> Result<Vec<ChainFinding>, Error> {
    match wanted {
        HostFirewall::Accept => accept(chains, opened),
        HostFirewall::Warn => withdraw(chains),
    }
}

/// Rules by hand replace ours where a chain takes no other.
fn accept(
    chains: &mut impl FirewallChains,
    opened: &mut HashSet<HostChain>,
) -> Result<Vec<ChainFinding>, Error> {
    let mut left = Vec::new();
    for closed in chains.closed()? {
        match chains.accept_in(&closed.chain) {
            Ok(true) if opened.insert(closed.chain.clone()) => {
                info!(
                    "our rule is in the host's chain {}: it drops nothing of Services any more",
                    closed.chain
                );
            }
            // A firewall reloaded every second must not fill our log.
            Ok(true) => debug!("our rule is in the host's chain {} again", closed.chain),
            Ok(false) => {}
            Err(_) if closed.accepts == Accepts::ByHand => {}
            Err(error) => left.push(ChainFinding::TakesNoRule(closed, error)),
        }
    }
    Ok(left)
}

fn withdraw(chains: &mut impl FirewallChains) -> Result<Vec<ChainFinding>, Error> {
    let mut left = Vec::new();
    for chain in chains.with_our_rule()? {
        match chains.withdraw(&chain) {
            Ok(true) => info!("our rule is taken out of the host's chain {chain}: --host-firewall is warn"),
            Ok(false) => {}
            Err(error) => left.push(ChainFinding::KeepsRule(chain, error)),
        }
    }
    let closed = chains.closed()?.into_iter().filter(|closed| closed.accepts == Accepts::Nothing);
    left.extend(closed.map(ChainFinding::Closed));
    Ok(left)
}

#[cfg(test)]
mod tests {
    use host_rules::host_firewall::{Hook, How, TableFamily};
    use netlink::OperationError;

    use super::*;
    use crate::node::{
        advice::Severity,
        host_firewall::check::{BY_HAND, check},
    };

    /// A host whose chains are all closed by policy, with the rules that matter to us.
    #[derive(Default)]
    struct FakeHost {
        chains: Vec<(HostChain, Accepts)>,
        refuses: bool,
        is_unreadable: bool,
    }

    impl FakeHost {
        fn with(accepts: Accepts) -> Self {
            Self { chains: vec![(input(), accepts)], ..Self::default() }
        }

        fn set(&mut self, chain: &HostChain, accepts: Accepts) -> Result<bool, Error> {
            if self.refuses {
                return Err(Error::Owned(chain.clone()));
            }
            let (_, is) = self.chains.iter_mut().find(|(its, _)| its == chain).unwrap();
            Ok(std::mem::replace(is, accepts) != accepts)
        }
    }

    impl FirewallChains for FakeHost {
        fn closed(&mut self) -> Result<Vec<ClosedChain>, Error> {
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
            Ok(self.chains.iter().map(closed).collect())
        }

        fn with_our_rule(&mut self) -> Result<Vec<HostChain>, Error> {
            let ours = self.chains.iter().filter(|(_, accepts)| *accepts == Accepts::ByOurRule);
            Ok(ours.map(|(chain, _)| chain.clone()).collect())
        }

        fn accept_in(&mut self, chain: &HostChain) -> Result<bool, Error> {
            self.set(chain, Accepts::ByOurRule)
        }

        fn withdraw(&mut self, chain: &HostChain) -> Result<bool, Error> {
            self.set(chain, Accepts::Nothing)
        }
    }

    fn input() -> HostChain {
        HostChain {
            family: TableFamily::Ip,
            table: "filter".into(),
            name: "INPUT".into(),
            hook: Hook::Input,
            priority: 0,
        }
    }

    fn said(host: &mut FakeHost, wanted: HostFirewall) -> Vec<(Severity, String, String)> {
        let found = tend(host, wanted, &mut HashSet::new());
        check(found).into_iter().map(|advice| (advice.severity, advice.what, advice.remedy)).collect()
    }

    #[test]
    fn a_chain_that_drops_is_named_with_both_remedies_and_left_as_it_is() {
        let mut host = FakeHost::with(Accepts::Nothing);
        let what = "the host's firewall may drop what is sent to VIPs and NodePorts, in its chain \
             ip filter INPUT: policy drop";
        let remedy = "--host-firewall=accept, or rules of your own whose comment begins with kube-ipvs \
             (docs/node.md has them)";
        let expected = [(Severity::Warning, what.to_owned(), remedy.to_owned())];
        assert_eq!(said(&mut host, HostFirewall::Warn), expected);
        assert_eq!(host.chains[0].1, Accepts::Nothing);
    }

    #[test]
    fn in_forward_it_is_the_answers_that_are_dropped() {
        let forward = HostChain { name: "FORWARD".into(), hook: Hook::Forward, ..input() };
        let mut host = FakeHost { chains: vec![(forward, Accepts::Nothing)], ..FakeHost::default() };
        let said = said(&mut host, HostFirewall::Warn);
        assert!(said[0].1.contains("may drop what pods answer, in its chain ip filter FORWARD"), "{said:?}");
    }

    #[test]
    fn who_has_written_rules_by_hand_hears_nothing() {
        assert_eq!(said(&mut FakeHost::with(Accepts::ByHand), HostFirewall::Warn), []);
    }

    #[test]
    fn accept_puts_the_rule_into_each_closed_chain_and_then_there_is_nothing_to_say() {
        for before in [Accepts::Nothing, Accepts::ByHand, Accepts::ByOurRule] {
            let mut host = FakeHost::with(before);
            assert_eq!(said(&mut host, HostFirewall::Accept), [], "{before:?}");
            assert_eq!(host.chains[0].1, Accepts::ByOurRule, "{before:?}");
        }
    }

    #[test]
    fn chain_that_takes_no_rule_is_reported_with_the_cause_unless_rules_by_hand_exist() {
        let mut host = FakeHost { refuses: true, ..FakeHost::with(Accepts::Nothing) };
        let advice = said(&mut host, HostFirewall::Accept);
        let [(Severity::Warning, what, remedy)] = advice.as_slice() else { panic!("{advice:?}") };
        assert!(
            what.contains("ip filter INPUT: policy drop; ") && what.contains("another program"),
            "{what}"
        );
        assert_eq!(remedy, BY_HAND, "the flag is given already");
        let mut host = FakeHost { refuses: true, ..FakeHost::with(Accepts::ByHand) };
        assert_eq!(said(&mut host, HostFirewall::Accept), []);
    }

    #[test]
    fn back_to_warn_the_rule_is_taken_out_and_the_chain_named() {
        let mut host = FakeHost::with(Accepts::ByOurRule);
        let said = said(&mut host, HostFirewall::Warn);
        assert_eq!(host.chains[0].1, Accepts::Nothing);
        assert!(matches!(said.as_slice(), [(Severity::Warning, ..)]), "{said:?}");
    }

    #[test]
    fn a_rule_that_cannot_be_taken_out_is_no_danger_and_so_a_note() {
        let mut host = FakeHost { refuses: true, ..FakeHost::with(Accepts::ByOurRule) };
        let said = said(&mut host, HostFirewall::Warn);
        let [(Severity::Note, what, _)] = said.as_slice() else { panic!("{said:?}") };
        assert!(what.contains("cannot be taken out of the host's chain ip filter INPUT"), "{what}");
    }

    #[test]
    fn unreadable_firewall_is_reported_as_such() {
        let mut host = FakeHost { is_unreadable: true, ..FakeHost::default() };
        for wanted in [HostFirewall::Warn, HostFirewall::Accept] {
            let said = said(&mut host, wanted);
            let [(Severity::Note, what, _)] = said.as_slice() else { panic!("{said:?}") };
            assert!(what.starts_with("the host's firewall cannot be read: nf_tables refuses"), "{what}");
        }
    }
}
