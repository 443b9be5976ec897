//! The small part of nf_tables that a proxy needs: statements, rules, chains and sets, each with its netlink
//! form (include/uapi/linux/netfilter/nf_tables.h) and its text in nft's syntax.
//!
//! A statement is a term of nft's language, an expression an instruction of the kernel. To add something new, add
//! a statement, and an expression if the kernel needs one that is not there.
//!
//! The public part is for reading and changing tables other than ours: [`message`] has the messages,
//! transactions and exchanges, [`chain`] and [`rule`] the chains and rules as the kernel lists them, [`parts`] parts
//! of rules.

pub mod chain;
pub(crate) mod counter;
pub(crate) mod element;
pub(crate) mod expression;
pub mod message;
pub mod parts;
pub mod rule;
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
