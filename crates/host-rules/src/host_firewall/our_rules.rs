//! Which chains of the host drop what none of their rules accepts, and our rules there: those that the policy
//! asks for, whether they are in place, and how they are put in.

use std::fmt;

use netfilter::{
    HostFirewall, Policy,
    nft::{
        message::{
            self, CREATE, Message, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS, NFTA_RULE_TABLE,
            NFTA_RULE_USERDATA,
        },
        parts::{encode_accept, encode_comment, encode_mark_match},
        rule,
    },
};
use netlink::Batch;
use serde::Serialize;

use super::{
    chain::{BaseChain, Hook, HostChain},
    rule::{Effect, End, Rule},
    xt,
};

/// A chain of the host that drops what none of its rules accepts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ClosedChain {
    /// The chain.
    pub chain: HostChain,
    /// How it is closed.
    pub how: How,
    /// The traffic for kube-ipvs that it accepts nevertheless.
    pub accepts: Accepts,
}

/// How a chain drops the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// By its policy.
    Policy,
    /// By the last of its rules that packets reach: one that drops or rejects all of them.
    LastRule,
}

/// The traffic for kube-ipvs that a closed chain accepts before it drops the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accepts {
    /// Nothing that could be recognised.
    Nothing,
    /// An operator has written rules, with a comment that begins with `kube-ipvs`.
    ByHand,
    /// Our own rules are there, and none by hand: the policy decides what they accept.
    ByOurRules,
}

impl fmt::Display for ClosedChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.chain, self.how)
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Policy => "policy drop",
            Self::LastRule => "its last rule drops the rest",
        })
    }
}

/// Whether the chain with these rules is closed, and how, and whether our rules in it are those wanted. Jumps
/// to other chains are not followed: what those chains drop or accept is not seen.
pub(super) fn judge(base: BaseChain, rules: &[Rule], wanted: &[Accepted]) -> Option<ClosedChain> {
    let (reached, end) = reached(rules);
    let how = match end {
        End::Drop => How::LastRule,
        End::Policy if base.drops_by_policy => How::Policy,
        End::Accept | End::Policy => return None,
    };
    let is_by_hand = |rule: &Rule| rule.comment.starts_with(BY_HAND) && !is_ours(rule);
    let accepts = if reached.iter().any(is_by_hand) {
        Accepts::ByHand
    } else if !wanted.is_empty() && is_settled(rules, wanted) {
        Accepts::ByOurRules
    } else {
        Accepts::Nothing
    };
    Some(ClosedChain { chain: base.chain, how, accepts })
}

/// The rules up to the first that no packet passes, and what happens to the packets there.
pub(super) fn reached(rules: &[Rule]) -> (&[Rule], End) {
    let last = rules.iter().enumerate().find_map(|(position, rule)| match rule.effect {
        Effect::Ends(end) => Some((position, end)),
        Effect::Accepts(_) | Effect::Other => None,
    });
    let (count, end) = last.unwrap_or((rules.len(), End::Policy));
    (rules.get(..count).unwrap_or_default(), end)
}

/// What one rule accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// Packets whose mark has these bits.
    Marked(u32),
    /// Packets of connections that conntrack knows, and of those that belong to one: `ct state
    /// established,related`.
    Known,
}

/// Whether the policy wants rules of ours in this chain, if it drops.
pub fn wants_rules(policy: &Policy, chain: &HostChain) -> bool {
    !wanted(policy, chain).is_empty()
}

/// The rules that the policy wants in this chain; none if it wants no rule of ours.
///
/// kube-proxy in ipvs mode has its rules in iptables' chains (`writeIptablesRules` in
/// pkg/proxy/ipvs/proxier.go of Kubernetes 1.36): in FORWARD both of these, in INPUT one for health checks,
/// which have our mark.
pub(super) fn wanted(policy: &Policy, chain: &HostChain) -> Vec<Accepted> {
    match policy.host_firewall {
        HostFirewall::Warn => Vec::new(),
        HostFirewall::AsKubeProxy if !chain.belongs_to_iptables() => Vec::new(),
        HostFirewall::AsKubeProxy if chain.hook == Hook::Forward => {
            vec![Accepted::Known, Accepted::Marked(policy.mark)]
        }
        HostFirewall::AsKubeProxy | HostFirewall::Accept => vec![Accepted::Marked(policy.accept_mark())],
    }
}

/// The comment of each rule of ours.
pub(crate) const OUR_COMMENT: &str = "kube-ipvs: what it forwards";

/// The beginning of the comment of a rule that an operator has written for kube-ipvs.
pub(super) const BY_HAND: &str = "kube-ipvs";

/// Whether this rule is ours. Its comment says so, which `iptables-save` keeps. A rule that does the same
/// without the comment may belong to another program: it is never removed, and others may come before it.
pub(super) fn is_ours(rule: &Rule) -> bool {
    *rule.comment == *OUR_COMMENT
}

/// Whether our rules are these, each once and where packets reach it.
pub(super) fn is_settled(rules: &[Rule], wanted: &[Accepted]) -> bool {
    let ours = |rules: &[Rule]| -> Vec<_> {
        rules.iter().filter(|rule| is_ours(rule)).map(|rule| rule.effect).collect()
    };
    let (reached, _) = reached(rules);
    let in_effect = ours(reached);
    ours(rules).len() == wanted.len()
        && wanted.iter().all(|wanted| in_effect.contains(&Effect::Accepts(*wanted)))
}

/// Appends the request that puts a rule at the head of the chain.
pub(super) fn insert(batch: &mut Batch, chain: &HostChain, accepted: Accepted) {
    message::add(batch, Message::NewRule, CREATE, chain.family, |encoder| {
        encoder.string(NFTA_RULE_TABLE, &chain.table);
        encoder.string(NFTA_RULE_CHAIN, &chain.name);
        encoder.nest(NFTA_RULE_EXPRESSIONS, |list| {
            match accepted {
                Accepted::Marked(bits) if chain.belongs_to_iptables() => xt::match_mark(list, bits),
                Accepted::Marked(bits) => encode_mark_match(list, bits),
                Accepted::Known => xt::match_states(list, xt::ESTABLISHED_OR_RELATED),
            }
            encode_accept(list);
        });
        encoder.bytes(NFTA_RULE_USERDATA, &encode_comment(OUR_COMMENT));
    });
}

/// Appends the request that removes a rule.
pub(super) fn delete(batch: &mut Batch, chain: &HostChain, rule: &Rule) {
    rule::delete(batch, chain.family, &chain.table, Some(&chain.name), Some(rule.handle));
}
