//! Notices chains of the host's own firewall that would drop packets of Services.

use std::fmt::Display;

use host_rules::{
    Backend,
    host_firewall::{ClosedChain, Error, Hook, HostChain},
};
use ipvs::Family;
use service::one_line;

use super::rules::Finding;
use crate::node::advice::{Advice, Cause, Severity};

/// The advice about the host's chains, after our rules were applied.
pub(crate) fn check(found: &[Finding]) -> Vec<Advice> {
    found.iter().map(advice).collect()
}

fn advice(found: &Finding) -> Advice {
    match found {
        Finding::Closed(closed) => {
            Advice { remedy: format!("--host-firewall=accept, or {BY_HAND}"), ..drops(closed) }
        }
        Finding::TakesNoRules(closed, error) => {
            let drops = drops(closed);
            let what = format!("{}; {}", drops.what, one_line(error));
            Advice { what, remedy: BY_HAND.to_owned(), ..drops }
        }
        Finding::KeepsRules(chain, error) => left(chain, error),
        Finding::Unreadable(error) => unreadable(error),
        Finding::Unseen(families) => unseen(families),
    }
}

/// The remedy by hand. The rules are recognised by their comment, since the packets that a rule accepts cannot be
/// determined in general.
pub(crate) const BY_HAND: &str =
    "rules of your own whose comment begins with kube-ipvs (docs/node.md has them)";

fn drops(ClosedChain { chain, how, .. }: &ClosedChain) -> Advice {
    let ours = match chain.hook {
        Hook::Input => "what is sent to VIPs and NodePorts",
        Hook::Forward => "what pods answer",
    };
    Advice {
        severity: Severity::Warning,
        what: format!("the host's firewall may drop {ours}, in its chain {chain}: {how}"),
        ..about(chain)
    }
}

/// Traffic goes on; only what was asked for did not happen.
fn left(chain: &HostChain, error: &Error) -> Advice {
    let remedy = match chain.backend {
        Backend::Nft => format!("nft -a list chain {chain} shows them with their handles"),
        Backend::Legacy => "iptables-legacy -S, or ip6tables-legacy -S, shows them".to_owned(),
    };
    Advice {
        what: format!("our rules cannot be taken out of the host's chain {chain}: {}", one_line(error)),
        remedy,
        ..about(chain)
    }
}

fn unreadable(error: &Error) -> Advice {
    let (subject, remedy) = match error {
        Error::Legacy(_) => (LEGACY, SHOWS_LEGACY),
        _ => ("nf_tables", "nft list ruleset shows whether a chain drops what it does not know"),
    };
    Advice {
        what: format!("the host's firewall cannot be read: {}", one_line(error)),
        remedy: remedy.to_owned(),
        ..about(subject)
    }
}

const LEGACY: &str = "iptables-legacy";
const SHOWS_LEGACY: &str = "iptables-legacy -S shows whether INPUT or FORWARD drops what it does not know";

/// What cannot be read cannot be warned of.
fn unseen(families: &[Family]) -> Advice {
    let families: Vec<_> = families.iter().map(ToString::to_string).collect();
    Advice {
        what: format!(
            "the host has firewall rules of iptables-legacy ({}), which kube-ipvs neither sees nor changes: its \
             programs are not here",
            families.join(", ")
        ),
        remedy: SHOWS_LEGACY.to_owned(),
        ..about(LEGACY)
    }
}

/// A note about a chain or the like, with nothing in it yet.
fn about(subject: impl Display) -> Advice {
    Advice {
        severity: Severity::Note,
        cause: Cause::HostFirewall,
        subject: subject.to_string(),
        what: String::new(),
        remedy: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_the_old_iptables_are_a_note_where_nobody_knows_what_they_do() {
        let advice = advice(&Finding::Unseen(vec![Family::V4, Family::V6]));
        assert_eq!(advice.severity, Severity::Note);
        assert!(advice.what.contains("iptables-legacy (IPv4, IPv6)"), "{}", advice.what);
    }
}
