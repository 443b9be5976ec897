//! Rules of the node that are not ours.
//!
//! [`host_firewall`] finds the chains of the host's own firewall that drop unknown traffic, and puts one rule into
//! them on request. [`leftovers`] finds and removes what kube-proxy left behind.
//!
//! Everything that kube-ipvs needs for itself is in its own tables, in the crate `netfilter`.

pub mod host_firewall;
pub mod leftovers;
