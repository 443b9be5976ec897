//! The two kinds of tables that a host's iptables may have.

use serde::Serialize;

/// Where a table of a host's firewall is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// In nf_tables, where those of `iptables-nft` are too.
    Nft,
    /// Among those of the old iptables (`iptables-legacy`).
    Legacy,
}
