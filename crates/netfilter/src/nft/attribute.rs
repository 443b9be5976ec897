//! The numbers of attributes that several modules read or write (include/uapi/linux/netfilter/nf_tables.h).

/// The name of a table, in `enum nft_table_attributes`.
pub const NFTA_TABLE_NAME: u16 = 1;
/// The flags of a table.
pub const NFTA_TABLE_FLAGS: u16 = 2;
/// How many objects a table has (`use` in `struct nft_table`).
pub(crate) const NFTA_TABLE_USE: u16 = 3;

/// The table of a chain, in `enum nft_chain_attributes`.
pub const NFTA_CHAIN_TABLE: u16 = 1;
/// The name of a chain.
pub const NFTA_CHAIN_NAME: u16 = 3;
/// The hook of a base chain.
pub const NFTA_CHAIN_HOOK: u16 = 4;
/// The policy of a base chain.
pub const NFTA_CHAIN_POLICY: u16 = 5;
/// The type of a base chain.
pub const NFTA_CHAIN_TYPE: u16 = 7;

/// The table of a rule, in `enum nft_rule_attributes`.
pub const NFTA_RULE_TABLE: u16 = 1;
/// The chain of a rule.
pub const NFTA_RULE_CHAIN: u16 = 2;
/// The number by which the kernel knows a rule.
pub const NFTA_RULE_HANDLE: u16 = 3;
/// The expressions of a rule.
pub const NFTA_RULE_EXPRESSIONS: u16 = 4;
/// The user data of a rule, which the kernel stores unread.
pub const NFTA_RULE_USERDATA: u16 = 7;

/// One entry of any list (`NFTA_LIST_ELEM`).
pub const NFTA_LIST_ELEM: u16 = 1;
/// A value, in `enum nft_data_attributes`.
pub const NFTA_DATA_VALUE: u16 = 1;
/// A verdict.
pub const NFTA_DATA_VERDICT: u16 = 2;
