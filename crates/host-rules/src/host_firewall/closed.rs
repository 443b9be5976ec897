//! Which chains drop what none of their rules accepts, and whether something was done about it.

use std::fmt;

use serde::Serialize;

use super::{
    accept::{self, BY_HAND},
    chain::{BaseChain, HostChain},
    rule::{Effect, End, Rule},
    wanted::Accepted,
};

/// A chain of the host that drops what none of its rules accepts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ClosedChain {
    /// The chain.
    pub chain: HostChain,
    /// How it is closed.
    pub how: How,
    /// What it accepts for kube-ipvs nevertheless.
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

/// What a closed chain accepts for kube-ipvs, before it drops the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accepts {
    /// Nothing that could be recognised.
    Nothing,
    /// Somebody has written rules by hand and says so in a comment that begins with `kube-ipvs`.
    ByHand,
    /// Our own rules are there, and none by hand: what they accept says the policy.
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

/// Whether the chain with these rules is closed, and how, and whether our rules in it are those wanted. Jumps to other
/// chains are not followed: what those chains drop or accept is not seen.
pub(super) fn judge(base: BaseChain, rules: &[Rule], wanted: &[Accepted]) -> Option<ClosedChain> {
    let (reached, end) = reached(rules);
    let how = match end {
        End::Drop => How::LastRule,
        End::Policy if base.drops_by_policy => How::Policy,
        End::Accept | End::Policy => return None,
    };
    let is_by_hand = |rule: &Rule| rule.comment.starts_with(BY_HAND) && !accept::is_ours(rule);
    let accepts = if reached.iter().any(is_by_hand) {
        Accepts::ByHand
    } else if !wanted.is_empty() && accept::is_settled(rules, wanted) {
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
