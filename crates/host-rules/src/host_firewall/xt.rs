//! The matches of iptables in our rules in its chains.
//!
//! iptables before 1.8.8 does not understand nf_tables' own test of marks, and no version that of conntrack's
//! states: it shows the rule without it, and `iptables-save | iptables-restore` would turn it into one that
//! accepts everything. Every version understands its own matches. If the kernel lacks them (`nft_compat`,
//! `xt_mark`, `xt_conntrack`) it is better that the rule is refused.

use netfilter::nft::parts::encode_expression;
use netlink::Encoder;

/// `NFTA_MATCH_NAME`, `NFTA_MATCH_REV` and `NFTA_MATCH_INFO`; those of targets are the same.
pub(super) const NAME: u16 = 1;
pub(super) const REVISION: u16 = 2;
pub(super) const INFO: u16 = 3;

/// Names of matches, with their revisions.
pub(super) const MARK: (&str, u32) = ("mark", 1);
pub(super) const CONNTRACK: (&str, u32) = ("conntrack", 3);

/// `XT_CONNTRACK_STATE_BIT` of `IP_CT_ESTABLISHED` and of `IP_CT_RELATED`.
pub(super) const ESTABLISHED_OR_RELATED: u16 = 1 << 1 | 1 << 2;

/// Appends `-m mark --mark BITS/BITS`.
pub(super) fn match_mark(list: &mut Encoder<'_>, bits: u32) {
    // struct xt_mark_mtinfo1: mark, mask, invert.
    extension(list, MARK, [&bits.to_ne_bytes()[..], &bits.to_ne_bytes(), &[0]].concat());
}

/// The mark and the mask; nothing if the match is turned round.
pub(super) fn mark(info: &[u8]) -> Option<(u32, u32)> {
    match info {
        [m0, m1, m2, m3, k0, k1, k2, k3, 0, ..] => {
            Some((u32::from_ne_bytes([*m0, *m1, *m2, *m3]), u32::from_ne_bytes([*k0, *k1, *k2, *k3])))
        }
        _ => None,
    }
}

/// `struct xt_conntrack_mtinfo3`, as far as it matters: the 16-bit words `match_flags`, `invert_flags` and
/// `state_mask` come behind eight addresses of 16 bytes, two 32-bit times, a protocol and four ports; behind
/// them are a mask of other states and four more ports.
const BEFORE_FLAGS: usize = 8 * 16 + 2 * 4 + 5 * 2;
const BEHIND_STATES: usize = 5 * 2;
/// `XT_CONNTRACK_STATE` in `match_flags`.
const MATCHES_STATE: u16 = 1;

/// Appends `-m conntrack --ctstate STATES`.
pub(super) fn match_states(list: &mut Encoder<'_>, states: u16) {
    let words = [MATCHES_STATE, 0, states].map(u16::to_ne_bytes);
    extension(list, CONNTRACK, [&[0; BEFORE_FLAGS][..], words.as_flattened(), &[0; BEHIND_STATES]].concat());
}

/// The states; nothing if something else is matched, or the opposite.
pub(super) fn states(info: &[u8]) -> Option<u16> {
    let word = |index: usize| {
        let bytes = info.get(BEFORE_FLAGS + 2 * index..)?.first_chunk()?;
        Some(u16::from_ne_bytes(*bytes))
    };
    (word(0)? == MATCHES_STATE && word(1)? == 0).then_some(())?;
    word(2)
}

fn extension(list: &mut Encoder<'_>, (name, revision): (&str, u32), info: Vec<u8>) {
    encode_expression(list, "match", |data| {
        data.string(NAME, name);
        data.u32_be(REVISION, revision);
        data.bytes(INFO, &aligned(info));
    });
}

/// `XT_ALIGN`: to what the machine aligns 64 bits to.
fn aligned(mut info: Vec<u8>) -> Vec<u8> {
    info.resize(info.len().next_multiple_of(align_of::<u64>()), 0);
    info
}
