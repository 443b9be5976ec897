//! Linux IPVS over generic netlink.
//!
//! The vocabulary (virtual server, real server, VIP, scheduler) is ipvsadm's. Without the default
//! feature `client` the crate is plain data, for code that computes what a load balancer should look
//! like and knows no kernel.

mod command;
mod family;
mod protocol;
mod real_server;
mod scheduler;
mod stats;
mod virtual_server;

pub use command::Command;
pub use family::Family;
pub use protocol::{Protocol, UnknownProtocol};
pub use real_server::{Forwarding, ObservedRealServer, RealServer, RealServerAddress, Tunnel, TunnelKind};
pub use scheduler::{InvalidScheduler, Scheduler};
pub use stats::Stats;
pub use virtual_server::{Id, ObservedVirtualServer, ServiceAddress, ServiceFlags, VirtualServer};

#[cfg(feature = "client")]
mod client;
#[cfg(feature = "client")]
pub use client::{Error, Failed, Info, Ipvs, KernelIpvs, Timeouts};
