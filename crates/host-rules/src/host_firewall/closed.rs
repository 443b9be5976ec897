//! Which chains drop what none of their rules accepts, and whether something was done about it.

use std::fmt;

use serde::Serialize;

use super::{
    accept::{self, BY_HAND},
    chain::{BaseChain, HostChain},
    rule::{Effect, End, Rule},
};

/// A chain of the host that drops what none of its rules accepts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ClosedChain {
    /// The chain.
    pub chain: HostChain,
    /// How it is closed.
    pub how: How,
    /// Whether it accepts what IPVS forwards nevertheless.
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
    /// Our own rule is there.
    ByOurRule,
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

/// Whether the chain with these rules is closed, and how. Jumps to other chains are not followed: what those
/// chains drop or accept is not seen.
pub(super) fn judge(base: BaseChain, rules: &[Rule], mark: u32) -> Option<ClosedChain> {
    let (reached, end) = reached(rules);
    let how = match end {
        End::Drop => How::LastRule,
        End::Policy if base.drops_by_policy => How::Policy,
        End::Accept | End::Policy => return None,
    };
    let is_in_effect = |rule: &Rule| accept::is_ours(rule) && rule.effect == Effect::AcceptsMarked(mark);
    let is_by_hand = |rule: &Rule| rule.comment.starts_with(BY_HAND) && !accept::is_ours(rule);
    let accepts = if reached.iter().any(is_in_effect) {
        Accepts::ByOurRule
    } else if reached.iter().any(is_by_hand) {
        Accepts::ByHand
    } else {
        Accepts::Nothing
    };
    Some(ClosedChain { chain: base.chain, how, accepts })
}

/// The rules up to the first that no packet passes, and what happens to the packets there.
pub(super) fn reached(rules: &[Rule]) -> (&[Rule], End) {
    let last = rules.iter().enumerate().find_map(|(position, rule)| match rule.effect {
        Effect::Ends(end) => Some((position, end)),
        Effect::AcceptsMarked(_) | Effect::Other => None,
    });
    let (count, end) = last.unwrap_or((rules.len(), End::Policy));
    (rules.get(..count).unwrap_or_default(), end)
}
