//! Rules of the node that are not ours.
//!
//! [`host_firewall`] finds the chains of the host's own firewall that drop unknown traffic, and puts rules
//! into them on request. [`flowtables`] finds flowtables that take flows past IPVS. [`leftovers`] finds and removes what kube-proxy left behind.
//!
//! What only the host's own programs can do is left to them.
//!
//! Everything that kube-ipvs needs for itself is in its own tables, in the crate `netfilter`.

pub mod flowtables;
pub mod host_firewall;
pub mod host_ports;
pub mod leftovers;
mod legacy;

use serde::Serialize;

pub use legacy::{Error as LegacyError, tables_in_use as legacy_tables_in_use};

/// Where a table of a host's firewall is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// In nf_tables, where those of `iptables-nft` are too.
    Nft,
    /// Among those of the old iptables (`iptables-legacy`).
    Legacy,
}
