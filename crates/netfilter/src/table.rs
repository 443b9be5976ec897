//! The one table per family that kube-ipvs owns: what is in it, how it comes into the kernel, and reading it
//! back.

mod element;
mod operation;
mod policy;

pub use element::{
    AllowedSource, ClusterIpFor, Element, HairpinFlow, HealthCheckPort, MaxSegmentSize, TunnelExit,
};
pub use operation::Operation;
pub use policy::{HostFirewall, LocalTraffic, Policy};

#[cfg(feature = "client")]
mod client;
#[cfg(feature = "client")]
mod element_set;
#[cfg(feature = "client")]
mod elements;
#[cfg(feature = "client")]
mod hand_over;
#[cfg(feature = "client")]
mod installation;
#[cfg(feature = "client")]
mod intervals;
#[cfg(feature = "client")]
pub(crate) mod key;
#[cfg(feature = "client")]
mod monitor;
#[cfg(feature = "client")]
mod netfilter;
#[cfg(feature = "client")]
mod observed;
#[cfg(feature = "client")]
mod probe;
#[cfg(feature = "client")]
mod ruleset;
#[cfg(feature = "client")]
mod transaction;
#[cfg(feature = "client")]
mod tunnel_counts;
#[cfg(feature = "client")]
mod uninstall;
#[cfg(feature = "wire")]
pub mod wire;

#[cfg(feature = "client")]
pub use client::KernelNetfilter;
#[cfg(feature = "client")]
pub use element_set::ElementSet;
#[cfg(feature = "client")]
pub use elements::elements;
#[cfg(feature = "client")]
pub use hand_over::hand_over;
#[cfg(feature = "client")]
pub use monitor::{Changed, Monitor};
#[cfg(feature = "client")]
pub use netfilter::{Error, Netfilter, Observed};
#[cfg(feature = "client")]
pub use probe::Feature;
#[cfg(feature = "client")]
pub use ruleset::{ACCEPT_MARK_PRIORITIES, Ruleset};
#[cfg(feature = "client")]
pub use tunnel_counts::TunnelCounts;
#[cfg(feature = "client")]
pub use uninstall::uninstall;
