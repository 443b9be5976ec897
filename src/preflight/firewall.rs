//! The host's own firewall, before anything of ours is in it.

use host_rules::host_firewall::{Accepts, ClosedChain, Error, wants_rules};
use ipvs::Family;
use netfilter::{ACCEPT_MARK_PRIORITIES, Policy};

use super::Finding;
use crate::node::host_firewall::{
    self,
    check::{self, BY_HAND},
    drops_still,
};

const SUBJECT: &str = "host's firewall";

/// One finding for each chain that drops, and one for what cannot be read. `nf_tables` is `None` where it was not asked;
/// `legacy` has the closed chains of the old iptables, and the families whose programs are not here.
pub(super) fn check(
    nf_tables: Option<Result<Vec<ClosedChain>, Error>>,
    legacy: Result<(Vec<ClosedChain>, Vec<Family>), Error>,
    policy: &Policy,
) -> Vec<Finding> {
    let mut findings = match nf_tables {
        Some(Ok(closed)) => closed_chains(closed, policy),
        Some(Err(error)) => advised(host_firewall::Finding::Unreadable(error)),
        None => vec![Finding::note(SUBJECT, "not looked at: to ask nf_tables might load it")],
    };
    match legacy {
        Ok((closed, unseen)) => {
            findings.extend(closed_chains(closed, policy));
            if !unseen.is_empty() {
                findings.extend(advised(host_firewall::Finding::Unseen(unseen)));
            }
        }
        Err(error) => findings.extend(advised(host_firewall::Finding::Unreadable(error))),
    }
    if findings.is_empty() {
        findings.push(Finding::ok(SUBJECT, "no chain in input or forward drops what it does not know"));
    }
    findings
}

fn closed_chains(closed: Vec<ClosedChain>, policy: &Policy) -> Vec<Finding> {
    // Rules by hand are taken at their word. Our own are taken out unless they are wanted.
    let heard = closed.into_iter().filter(|closed| closed.accepts != Accepts::ByHand);
    heard.flat_map(|closed| drops(closed, policy)).collect()
}

fn drops(closed: ClosedChain, policy: &Policy) -> Vec<Finding> {
    let ClosedChain { chain, how, .. } = &closed;
    let mut findings = Vec::new();
    if wants_rules(policy, chain) && !ACCEPT_MARK_PRIORITIES.contains(&chain.priority) {
        let what = format!("{how}, and our rules have no effect at its priority");
        findings.push(Finding::warning(chain, what).remedy(BY_HAND));
    } else if wants_rules(policy, chain) {
        findings
            .push(Finding::note(chain, format!("{how}: our rules are put at its head (--host-firewall)")));
    }
    if drops_still(policy.host_firewall, chain) {
        findings.extend(advised(host_firewall::Finding::Closed(closed)));
    }
    findings
}

fn advised(found: host_firewall::Finding) -> Vec<Finding> {
    check::check(&[found]).into_iter().map(Finding::from).collect()
}

#[cfg(test)]
mod tests {
    use host_rules::{
        Backend,
        host_firewall::{Hook, HostChain, How, TableFamily},
    };
    use netfilter::{HostFirewall, LocalTraffic};

    use super::{super::Verdict, *};

    fn closed(accepts: Accepts, priority: i32) -> ClosedChain {
        let (table, name) = ("filter".into(), "input".into());
        let (backend, family, hook) = (Backend::Nft, TableFamily::Inet, Hook::Input);
        let chain = HostChain { backend, family, table, name, hook, priority };
        ClosedChain { chain, how: How::Policy, accepts }
    }

    fn policy(host_firewall: HostFirewall) -> Policy {
        let local_traffic = LocalTraffic::Source { ipv4: None, ipv6: None };
        Policy { masquerade_all: false, mark: 0x4000, local_traffic, host_firewall, gue: false }
    }

    fn said(closed: ClosedChain, wanted: HostFirewall) -> Vec<(Verdict, String)> {
        let (nf_tables, legacy) = match closed.chain.backend {
            Backend::Nft => (vec![closed], Vec::new()),
            Backend::Legacy => (Vec::new(), vec![closed]),
        };
        let findings = check(Some(Ok(nf_tables)), Ok((legacy, Vec::new())), &policy(wanted));
        findings.into_iter().map(|finding| (finding.verdict, finding.what)).collect()
    }

    #[test]
    fn chain_that_drops_is_a_warning_unless_our_rule_is_wanted_there() {
        let [(verdict, what)] = &said(closed(Accepts::Nothing, 0), HostFirewall::Warn)[..] else { panic!() };
        assert_eq!(*verdict, Verdict::Warning);
        assert!(what.contains("in its chain inet filter input: policy drop"), "{what}");
        assert_eq!(said(closed(Accepts::Nothing, 0), HostFirewall::Accept)[0].0, Verdict::Note);
        assert_eq!(said(closed(Accepts::Nothing, 400), HostFirewall::Accept)[0].0, Verdict::Warning);
    }

    #[test]
    fn what_kube_proxy_would_let_drop_in_input_is_a_warning_beside_our_rules() {
        let of_iptables = |backend, hook, name: &str| {
            let chain = HostChain {
                backend,
                family: TableFamily::Ip,
                table: "filter".into(),
                name: name.into(),
                hook,
                priority: 0,
            };
            ClosedChain { chain, how: How::Policy, accepts: Accepts::Nothing }
        };
        let verdicts = |closed| {
            let said = said(closed, HostFirewall::AsKubeProxy);
            said.into_iter().map(|(verdict, _)| verdict).collect::<Vec<_>>()
        };
        for backend in [Backend::Nft, Backend::Legacy] {
            assert_eq!(verdicts(of_iptables(backend, Hook::Forward, "FORWARD")), [Verdict::Note]);
            let input = verdicts(of_iptables(backend, Hook::Input, "INPUT"));
            assert_eq!(input, [Verdict::Note, Verdict::Warning]);
        }
        assert_eq!(verdicts(closed(Accepts::Nothing, 0)), [Verdict::Warning]);
    }

    #[test]
    fn rule_of_an_earlier_daemon_goes_and_rules_by_hand_are_enough() {
        assert_eq!(said(closed(Accepts::ByOurRules, 0), HostFirewall::Warn)[0].0, Verdict::Warning);
        let by_hand = said(closed(Accepts::ByHand, 0), HostFirewall::Warn);
        assert!(matches!(&by_hand[..], [(Verdict::Ok, what)] if what.starts_with("no chain")), "{by_hand:?}");
    }

    #[test]
    fn rules_of_the_old_iptables_are_a_note_where_its_programs_are_not_here() {
        let legacy = Ok((Vec::new(), vec![Family::V4]));
        let findings = check(Some(Ok(Vec::new())), legacy, &policy(HostFirewall::Warn));
        assert!(matches!(&findings[..], [finding] if finding.verdict == Verdict::Note), "{findings:?}");
    }
}
