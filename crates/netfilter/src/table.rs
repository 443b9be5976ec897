//! The one table per family that kube-ipvs owns: what is in it, how it comes into the kernel, and reading it
//! back.

mod client;
mod element_set;
mod elements;
mod hand_over;
mod installation;
mod intervals;
pub(crate) mod key;
mod monitor;
mod netfilter;
mod observed;
mod probe;
mod ruleset;
mod transaction;
mod tunnel_counts;
mod uninstall;
#[cfg(feature = "wire")]
pub mod wire;

pub use client::KernelNetfilter;
pub use element_set::ElementSet;
pub use elements::elements;
pub use hand_over::hand_over;
pub use monitor::{Changed, Monitor};
pub use netfilter::{Error, Netfilter, Observed};
pub use probe::Feature;
pub use ruleset::{ACCEPT_MARK_PRIORITIES, Ruleset};
pub use tunnel_counts::TunnelCounts;
pub use uninstall::uninstall;
