//! The small part of nf_tables that a proxy needs: statements, rules, chains, sets and transactions,
//! each with its netlink form (include/uapi/linux/netfilter/nf_tables.h) and its text in nft's syntax.
//!
//! A [`Statement`](statement::Statement) is what nft's language says, an
//! [`Expression`](expression::Expression) what the kernel executes. To add something new, add a
//! statement, and an expression if the kernel needs one that is not there.

pub(crate) mod chain;
pub(crate) mod expression;
pub(crate) mod message;
pub(crate) mod rule;
pub(crate) mod set;
pub(crate) mod statement;
pub(crate) mod verdict;

use ipvs::Family;

/// The name of our table, in each family. It is not `kube-proxy`, which upstream's nftables mode uses and its
/// cleanup deletes.
pub(crate) const TABLE: &str = "kube-ipvs";

/// The family's name in nft's language.
pub(crate) const fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}
