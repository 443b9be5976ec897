//! Findings about the chains of the host's own firewall: before the start, and after our rules were applied.

use host_rules::{
    Backend,
    host_firewall::{Accepts, ClosedChain, Error, Hook, HostChain, wants_rules},
};
use ipvs::Family;
use netfilter::{ACCEPT_MARK_PRIORITIES, Policy};
use service::one_line;

use super::drops_still;
use crate::finding::Finding;

const SUBJECT: &str = "host's firewall";

/// The remedy by hand. The rules are recognised by their comment, since the packets that a rule accepts
/// cannot be determined in general.
const BY_HAND: &str = "rules of your own whose comment begins with kube-ipvs (docs/node.md has them)";

/// What the start would find: a finding for each chain that drops, and for what cannot be read. `nf_tables`
/// is `None` where reading it would load its module; `legacy` has the closed chains of the old iptables, and
/// the families whose programs are not here.
pub(crate) fn before_start(
    nf_tables: Option<Result<Vec<ClosedChain>, Error>>,
    legacy: Result<(Vec<ClosedChain>, Vec<Family>), Error>,
    policy: &Policy,
) -> Vec<Finding> {
    let mut findings = match nf_tables {
        Some(Ok(closed)) => closed_chains(&closed, policy),
        Some(Err(error)) => vec![unreadable(&error)],
        None => vec![Finding::note(SUBJECT, "not checked: querying would load nf_tables")],
    };
    match legacy {
        Ok((closed, unseen)) => {
            findings.extend(closed_chains(&closed, policy));
            findings.extend((!unseen.is_empty()).then(|| programs_missing(&unseen)));
        }
        Err(error) => findings.push(unreadable(&error)),
    }
    if findings.is_empty() {
        findings.push(Finding::ok(SUBJECT, "no chain in input or forward drops packets by default"));
    }
    findings
}

fn closed_chains(closed: &[ClosedChain], policy: &Policy) -> Vec<Finding> {
    // Rules by hand are relied on. Our own are removed unless they are wanted.
    let without_rules = closed.iter().filter(|closed| closed.accepts != Accepts::ByHand);
    without_rules.flat_map(|closed| closed_chain(closed, policy)).collect()
}

fn closed_chain(closed: &ClosedChain, policy: &Policy) -> Vec<Finding> {
    let ClosedChain { chain, how, .. } = closed;
    let mut findings = Vec::new();
    if wants_rules(policy, chain) && !ACCEPT_MARK_PRIORITIES.contains(&chain.priority) {
        let what = format!("{how}, and rules of kube-ipvs have no effect at its priority");
        findings.push(Finding::warning(chain, what).remedy(BY_HAND));
    } else if wants_rules(policy, chain) {
        findings.push(Finding::note(
            chain,
            format!("{how}: kube-ipvs puts its rules at the head of the chain (--host-firewall)"),
        ));
    }
    if drops_still(policy.host_firewall, chain) {
        findings.push(drops(closed));
    }
    findings
}

/// A chain that drops what `--host-firewall` does not accept there.
pub(super) fn drops(closed: &ClosedChain) -> Finding {
    Finding::warning(&closed.chain, may_drop(closed)).remedy(format!("--host-firewall=accept, or {BY_HAND}"))
}

/// A chain that drops and does not take our rules.
pub(super) fn takes_no_rules(closed: &ClosedChain, error: &Error) -> Finding {
    let what = format!("{}; {}", may_drop(closed), one_line(error));
    Finding::warning(&closed.chain, what).remedy(BY_HAND)
}

fn may_drop(ClosedChain { chain, how, .. }: &ClosedChain) -> String {
    let ours = match chain.hook {
        Hook::Input => "what is sent to VIPs and NodePorts",
        Hook::Forward => "what pods answer",
    };
    format!("the host's firewall may drop {ours}, in its chain {chain}: {how}")
}

/// A chain out of which our rules cannot be taken. Traffic goes on; only what was asked for did not happen.
pub(super) fn keeps_rules(chain: &HostChain, error: &Error) -> Finding {
    let remedy = match chain.backend {
        Backend::Nft => format!("nft -a list chain {chain} shows them with their handles"),
        Backend::Legacy => "iptables-legacy -S, or ip6tables-legacy -S, shows them".to_owned(),
    };
    let what = format!("cannot remove our rules from the host's chain {chain}: {}", one_line(error));
    Finding::note(chain, what).remedy(remedy)
}

const LEGACY: &str = "iptables-legacy";
const SHOWS_LEGACY: &str = "iptables-legacy -S shows whether INPUT or FORWARD drops packets by default";

/// Chains that cannot be read.
pub(super) fn unreadable(error: &Error) -> Finding {
    let (subject, remedy) = match error {
        Error::Legacy(_) => (LEGACY, SHOWS_LEGACY),
        _ => ("nf_tables", "nft list ruleset shows whether a chain drops packets by default"),
    };
    Finding::note(subject, format!("cannot read the host's firewall: {}", one_line(error))).remedy(remedy)
}

/// Families with chains of the old iptables whose programs are not here. What cannot be read cannot be warned
/// of.
pub(super) fn programs_missing(families: &[Family]) -> Finding {
    let families: Vec<_> = families.iter().map(ToString::to_string).collect();
    let what = format!(
        "the host has firewall rules of iptables-legacy ({}), which kube-ipvs can neither read nor change: the \
         programs of iptables-legacy are missing",
        families.join(", ")
    );
    Finding::note(LEGACY, what).remedy(SHOWS_LEGACY)
}

#[cfg(test)]
mod tests {
    use host_rules::host_firewall::{How, TableFamily};
    use netfilter::{HostFirewall, LocalTraffic};

    use super::*;
    use crate::finding::Severity;

    fn closed(accepts: Accepts, priority: i32) -> ClosedChain {
        let (table, name) = ("filter".into(), "input".into());
        let (backend, family, hook) = (Backend::Nft, TableFamily::Inet, Hook::Input);
        let chain = HostChain { backend, family, table, name, hook, priority };
        ClosedChain { chain, how: How::Policy, accepts }
    }

    fn policy(host_firewall: HostFirewall) -> Policy {
        let local_traffic = LocalTraffic::Source { ipv4: None, ipv6: None };
        Policy { host_firewall, ..Policy::new(local_traffic) }
    }

    fn said(closed: ClosedChain, wanted: HostFirewall) -> Vec<(Severity, String)> {
        let (nf_tables, legacy) = match closed.chain.backend {
            Backend::Nft => (vec![closed], Vec::new()),
            Backend::Legacy => (Vec::new(), vec![closed]),
        };
        let findings = before_start(Some(Ok(nf_tables)), Ok((legacy, Vec::new())), &policy(wanted));
        findings.into_iter().map(|finding| (finding.severity, finding.what)).collect()
    }

    #[test]
    fn chain_that_drops_is_a_warning_unless_our_rule_is_wanted_there() {
        let [(severity, what)] = &said(closed(Accepts::Nothing, 0), HostFirewall::Warn)[..] else { panic!() };
        assert_eq!(*severity, Severity::Warning);
        assert!(what.contains("in its chain inet filter input: policy drop"), "{what}");
        assert_eq!(said(closed(Accepts::Nothing, 0), HostFirewall::Accept)[0].0, Severity::Note);
        assert_eq!(said(closed(Accepts::Nothing, 400), HostFirewall::Accept)[0].0, Severity::Warning);
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
        let severities = |closed| {
            let said = said(closed, HostFirewall::AsKubeProxy);
            said.into_iter().map(|(severity, _)| severity).collect::<Vec<_>>()
        };
        for backend in [Backend::Nft, Backend::Legacy] {
            assert_eq!(severities(of_iptables(backend, Hook::Forward, "FORWARD")), [Severity::Note]);
            let input = severities(of_iptables(backend, Hook::Input, "INPUT"));
            assert_eq!(input, [Severity::Note, Severity::Warning]);
        }
        assert_eq!(severities(closed(Accepts::Nothing, 0)), [Severity::Warning]);
    }

    #[test]
    fn rule_of_an_earlier_daemon_goes_and_rules_by_hand_are_enough() {
        assert_eq!(said(closed(Accepts::ByOurRules, 0), HostFirewall::Warn)[0].0, Severity::Warning);
        let by_hand = said(closed(Accepts::ByHand, 0), HostFirewall::Warn);
        assert!(
            matches!(&by_hand[..], [(Severity::Ok, what)] if what.starts_with("no chain")),
            "{by_hand:?}"
        );
    }

    #[test]
    fn rules_of_the_old_iptables_are_a_note_where_its_programs_are_not_here() {
        let legacy = Ok((Vec::new(), vec![Family::V4]));
        let findings = before_start(Some(Ok(Vec::new())), legacy, &policy(HostFirewall::Warn));
        assert!(matches!(&findings[..], [finding] if finding.severity == Severity::Note), "{findings:?}");
    }

    #[test]
    fn rules_of_the_old_iptables_that_cannot_be_read_are_a_note() {
        let finding = programs_missing(&[Family::V4, Family::V6]);
        assert_eq!(finding.severity, Severity::Note);
        assert!(finding.what.contains("iptables-legacy (IPv4, IPv6)"), "{}", finding.what);
    }
}
