//! Rules of the node that are not ours.
//!
//! [`host_firewall`] finds the chains of the host's own firewall that drop unknown traffic, and puts rules into
//! them on request. [`leftovers`] finds and removes what kube-proxy left behind.
//!
//! What only the host's own programs can do is left to them.
//!
//! Everything that kube-ipvs needs for itself is in its own tables, in the crate `netfilter`.

mod backend;
pub mod host_firewall;
pub mod leftovers;
mod legacy;

pub use backend::Backend;
pub use legacy::Error as LegacyError;
