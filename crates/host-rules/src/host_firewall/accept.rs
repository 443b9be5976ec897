//! Our rules in a chain of the host.

use netlink::{Batch, Encoder};

use super::{
    chain::HostChain,
    closed::reached,
    rule::{Effect, Rule},
    wanted::Accepted,
    xt,
};
use netfilter::nft::{
    encode,
    message::{
        self, CREATE, Message, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS, NFTA_RULE_HANDLE, NFTA_RULE_TABLE,
        NFTA_RULE_USERDATA,
    },
};

/// What each rule of ours says about itself.
pub(crate) const OUR_COMMENT: &str = "kube-ipvs: what it forwards";

/// How the comment begins of a rule that an operator has written for kube-ipvs.
pub(super) const BY_HAND: &str = "kube-ipvs";

/// Whether this rule is ours. Its comment says so, which `iptables-save` keeps. A rule that does the same
/// without the comment may belong to somebody else: it is never removed, and others may come before it.
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
        name(encoder, chain);
        encoder.nest(NFTA_RULE_EXPRESSIONS, |list| {
            match accepted {
                Accepted::Marked(bits) if chain.belongs_to_iptables() => xt::match_mark(list, bits),
                Accepted::Marked(bits) => encode::mark_match(list, bits),
                Accepted::Known => xt::match_states(list, xt::ESTABLISHED_OR_RELATED),
            }
            encode::accept(list);
        });
        encoder.bytes(NFTA_RULE_USERDATA, &encode::comment(OUR_COMMENT));
    });
}

/// Appends the request that removes a rule.
pub(super) fn delete(batch: &mut Batch, chain: &HostChain, rule: &Rule) {
    message::add(batch, Message::DelRule, 0, chain.family, |encoder| {
        name(encoder, chain);
        encoder.bytes(NFTA_RULE_HANDLE, &rule.handle.to_be_bytes());
    });
}

fn name(encoder: &mut Encoder<'_>, chain: &HostChain) {
    encoder.string(NFTA_RULE_TABLE, &chain.table);
    encoder.string(NFTA_RULE_CHAIN, &chain.name);
}
