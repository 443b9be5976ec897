//! The small part of nf_tables that a proxy needs: statements, rules, chains and sets, each with its netlink
//! form (include/uapi/linux/netfilter/nf_tables.h) and its text in nft's syntax.
//!
//! A statement is what nft's language says, an expression what the kernel executes. To add something new, add
//! a statement, and an expression if the kernel needs one that is not there.
//!
//! What is public serves programs that read and change tables other than ours: [`message`] has the messages,
//! transactions and whole exchanges, [`mod@encode`] and [`decode`] parts of rules.

pub(crate) mod chain;
pub mod decode;
pub(crate) mod element;
pub mod encode;
pub(crate) mod expression;
pub mod message;
pub(crate) mod rule;
pub(crate) mod set;
pub(crate) mod statement;
pub(crate) mod text;

use ipvs::Family;

/// The name of our table, in each family. It is not `kube-proxy`, which upstream's nftables mode uses and its
/// cleanup deletes.
pub const TABLE: &str = "kube-ipvs";

/// The family's name in nft's language.
pub const fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}
