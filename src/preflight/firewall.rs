//! The host's own firewall, before anything of ours is in it.

use host_rules::host_firewall::{Accepts, ClosedChain, Error};
use ipvs::Family;
use netfilter::{ACCEPT_MARK_PRIORITIES, HostFirewall};

use super::Finding;
use crate::node::host_firewall::{
    ChainFinding,
    check::{self, BY_HAND},
};

const SUBJECT: &str = "host's firewall";

/// One finding for each chain that drops, and one for rules that cannot be read. `closed` is `None` where nf_tables was not
/// asked; `legacy` are the families with rules of the old iptables.
pub(super) fn check(
    closed: Option<Result<Vec<ClosedChain>, Error>>,
    wanted: HostFirewall,
    legacy: Result<Vec<Family>, Error>,
) -> Vec<Finding> {
    let mut findings = match closed {
        // Rules by hand are taken at their word. Our own is taken out unless it is wanted.
        Some(Ok(closed)) => closed
            .into_iter()
            .filter(|closed| closed.accepts != Accepts::ByHand)
            .flat_map(|closed| drops(closed, wanted))
            .collect(),
        Some(Err(error)) => from_advice(Err(error)),
        None => vec![Finding::note(SUBJECT, "not looked at: to ask nf_tables might load it")],
    };
    findings.extend(check::legacy(legacy).map(Finding::from));
    if findings.is_empty() {
        findings.push(Finding::ok(SUBJECT, "no chain in input or forward drops what it does not know"));
    }
    findings
}

fn drops(closed: ClosedChain, wanted: HostFirewall) -> Vec<Finding> {
    let ClosedChain { chain, how, .. } = &closed;
    match wanted {
        HostFirewall::Warn => from_advice(Ok(vec![ChainFinding::Closed(closed)])),
        HostFirewall::Accept if ACCEPT_MARK_PRIORITIES.contains(&chain.priority) => {
            vec![Finding::note(chain, format!("{how}: our rule is put at its head, for traffic of Services"))]
        }
        HostFirewall::Accept => vec![
            Finding::warning(chain, format!("{how}, and our rule has no effect at its priority"))
                .remedy(BY_HAND),
        ],
    }
}

fn from_advice(found: Result<Vec<ChainFinding>, Error>) -> Vec<Finding> {
    check::check(found).into_iter().map(Finding::from).collect()
}

#[cfg(test)]
mod tests {
    use host_rules::host_firewall::{Hook, HostChain, How, TableFamily};

    use super::{super::Verdict, *};

    fn closed(accepts: Accepts, priority: i32) -> ClosedChain {
        let (table, name) = ("filter".into(), "input".into());
        let chain = HostChain { family: TableFamily::Inet, table, name, hook: Hook::Input, priority };
        ClosedChain { chain, how: How::Policy, accepts }
    }

    fn said(closed: ClosedChain, wanted: HostFirewall) -> Vec<(Verdict, String)> {
        let findings = check(Some(Ok(vec![closed])), wanted, Ok(Vec::new()));
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
    fn rule_of_an_earlier_daemon_goes_and_rules_by_hand_are_enough() {
        assert_eq!(said(closed(Accepts::ByOurRule, 0), HostFirewall::Warn)[0].0, Verdict::Warning);
        let by_hand = said(closed(Accepts::ByHand, 0), HostFirewall::Warn);
        assert!(matches!(&by_hand[..], [(Verdict::Ok, what)] if what.starts_with("no chain")), "{by_hand:?}");
    }

    #[test]
    fn rules_of_the_old_iptables_are_a_note() {
        let findings = check(Some(Ok(Vec::new())), HostFirewall::Warn, Ok(vec![Family::V4]));
        assert!(matches!(&findings[..], [finding] if finding.verdict == Verdict::Note), "{findings:?}");
    }
}
