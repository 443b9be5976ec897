//! Encoding parts of a rule, for any table.

use ipvs::Family;
use netlink::Encoder;

use super::{
    decode::UDATA_COMMENT,
    expression::{List, Verdict},
    message::NFTA_LIST_ELEM,
    statement::Statement,
};

/// Appends an expression to a rule's list: its name, and its data.
pub fn expression(list: &mut Encoder<'_>, name: &str, data: impl FnOnce(&mut Encoder<'_>)) {
    const NFTA_EXPR_NAME: u16 = 1;
    const NFTA_EXPR_DATA: u16 = 2;
    list.nest(NFTA_LIST_ELEM, |entry| {
        entry.string(NFTA_EXPR_NAME, name);
        entry.nest(NFTA_EXPR_DATA, data);
    });
}

/// Appends `meta mark & BIT == BIT` to a rule's list of expressions.
pub fn mark_match(list: &mut Encoder<'_>, bit: u32) {
    // The same instructions in every family.
    Statement::HasMark(bit).encode(Family::V4, list);
}

/// Appends `accept` to a rule's list of expressions.
pub fn accept(list: &mut Encoder<'_>) {
    List(list).verdict(Verdict::Accept);
}

/// The user data of a rule with this comment.
pub fn comment(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len() + 1).unwrap_or(u8::MAX);
    let mut userdata = vec![UDATA_COMMENT, length];
    userdata.extend_from_slice(text.as_bytes());
    userdata.push(0);
    userdata
}
