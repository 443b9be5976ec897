//! nf_tables by netlink, and the one table per family that kube-ipvs owns.

mod change;
mod element;
mod policy;

pub use change::Change;
pub use element::{Element, HairpinFlow};
pub use policy::{LocalTraffic, Policy};

#[cfg(feature = "client")]
mod client;
#[cfg(feature = "client")]
mod key;
#[cfg(feature = "client")]
mod nft;
#[cfg(feature = "client")]
mod ruleset;
#[cfg(feature = "client")]
mod table;
#[cfg(feature = "client")]
pub use client::{Error, KernelNetfilter, Netfilter, Observed};
#[cfg(feature = "client")]
pub use ruleset::Ruleset;
