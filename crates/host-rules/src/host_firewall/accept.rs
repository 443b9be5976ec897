//! The rule that accepts what IPVS forwards.

use netlink::{Batch, Encoder};

use super::{
    chain::HostChain,
    closed::reached,
    rule::{Effect, Rule},
};
use netfilter::nft::{
    attribute::{
        NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS, NFTA_RULE_HANDLE, NFTA_RULE_TABLE, NFTA_RULE_USERDATA,
    },
    encode,
    message::{self, CREATE, Message},
};

/// What our rule says about itself.
pub(super) const COMMENT: &str = "kube-ipvs: what it forwards";

/// How the comment begins of a rule that an operator has written for kube-ipvs.
pub(super) const BY_HAND: &str = "kube-ipvs";

/// Whether this rule is ours. Its comment says so, which `iptables-save` keeps. A rule that does the same
/// without the comment may belong to somebody else who uses the same bit: it is never removed.
pub(super) fn is_ours(rule: &Rule) -> bool {
    *rule.comment == *COMMENT
}

/// Whether packets with the mark are accepted, by at most one rule of ours.
pub(super) fn is_settled(rules: &[Rule], mark: u32) -> bool {
    let (reached, _) = reached(rules);
    let accepting = |rule: &&Rule| rule.effect == Effect::AcceptsMarked(mark);
    let ours = rules.iter().filter(|rule| is_ours(rule)).count();
    let ours_in_effect = reached.iter().filter(accepting).filter(|rule| is_ours(rule)).count();
    ours == ours_in_effect && ours <= 1 && reached.iter().any(|rule| accepting(&rule))
}

/// Appends the request that puts the rule at the head of the chain: `meta mark & MARK == MARK accept`.
pub(super) fn insert(batch: &mut Batch, chain: &HostChain, mark: u32) {
    message::add(batch, Message::NewRule, CREATE, chain.family, |encoder| {
        name(encoder, chain);
        encoder.nest(NFTA_RULE_EXPRESSIONS, |list| {
            if chain.belongs_to_iptables() {
                match_as_iptables(list, mark);
            } else {
                encode::mark_match(list, mark);
            }
            encode::accept(list);
        });
        encoder.bytes(NFTA_RULE_USERDATA, &encode::comment(COMMENT));
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

/// Appends iptables' `-m mark --mark MARK/MARK`: the match `mark`, revision 1, with its
/// `struct xt_mark_mtinfo1`.
///
/// iptables before 1.8.8 does not understand nf_tables' own test of marks: it shows the rule without it, and
/// `iptables-save | iptables-restore` would turn it into one that accepts everything. Every version
/// understands the match. If the kernel lacks the match (`nft_compat`, `xt_mark`) it is better that the rule
/// is refused.
fn match_as_iptables(list: &mut Encoder<'_>, mark: u32) {
    let info = [&mark.to_ne_bytes()[..], &mark.to_ne_bytes(), &[0]].concat();
    encode::expression(list, "match", |data| {
        data.string(1, "mark");
        data.u32_be(2, 1);
        data.bytes(3, &aligned(info));
    });
}

/// `XT_ALIGN`: to what the machine aligns 64 bits to.
fn aligned(mut info: Vec<u8>) -> Vec<u8> {
    info.resize(info.len().next_multiple_of(align_of::<u64>()), 0);
    info
}
