//! The verdict of somebody else's rule.

use netlink::find;

use super::expression::DATA_VERDICT;

/// What an `immediate` expression decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict<'a> {
    /// One of `NF_ACCEPT`, `NF_DROP` and `NFT_RETURN`'s kin.
    pub(crate) code: i32,
    /// Where it jumps or goes to, if it does.
    pub(crate) chain: Option<&'a str>,
}

impl<'a> Verdict<'a> {
    /// Reads the data of an `immediate`; `None` if it loads a value.
    pub(crate) fn of_immediate(data: &'a [u8]) -> Option<Self> {
        const NFTA_IMMEDIATE_DATA: u16 = 2;
        const NFTA_VERDICT_CODE: u16 = 1;
        const NFTA_VERDICT_CHAIN: u16 = 2;
        let verdict = find(find(data, NFTA_IMMEDIATE_DATA)?.payload, DATA_VERDICT)?.payload;
        Some(Self {
            code: find(verdict, NFTA_VERDICT_CODE)?.u32_be().ok()?.cast_signed(),
            chain: find(verdict, NFTA_VERDICT_CHAIN).and_then(|chain| chain.string().ok()),
        })
    }
}

/// The name of an entry of a rule's list of expressions, and its data.
pub(crate) fn named(entry: &[u8]) -> Option<(&str, &[u8])> {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    let data = find(entry, DATA).map_or(&[][..], |data| data.payload);
    Some((find(entry, NAME)?.string().ok()?, data))
}
