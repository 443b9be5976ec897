//! Linux IPVS over generic netlink.
//!
//! IPVS is the layer-4 load balancer in the Linux kernel. A *virtual server* is what clients connect
//! to: a protocol, a virtual IP address (VIP) and a port, or a firewall mark. Its *scheduler* picks
//! one of its *real servers* for each new connection. The words are ipvsadm's.
//!
//! - Plain data: [`VirtualServer`], [`RealServer`], [`Scheduler`], [`Command`] and their observed
//!   counterparts. They are all there is without the default feature `client`, for code that computes
//!   what a load balancer should look like and knows no kernel.
//! - [`text::Listing`] prints the table as `ipvsadm -Ln` does, with `--stats` and `--rate` too, byte for byte.
//! - [`proc_net`] reads the kernel's own texts: all connections, and a summary of the table, which is much cheaper to
//!   read than the table over netlink.
//! - [`KernelIpvs`] reads and changes the kernel's table, whole or by pieces. Code that should not
//!   need a kernel in its tests takes the trait [`Ipvs`] instead.
//!
//! ```no_run
//! use ipvs::{Command, VirtualServerId, Ipvs, KernelIpvs, Protocol, RealServer, Scheduler, ServiceAddress, VirtualServer};
//!
//! let vip = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 10].into(), port: 80 };
//! let mut kernel = KernelIpvs::open()?;
//! let failed = kernel.apply(&[
//!     Command::AddVirtualServer(VirtualServer::new(vip, Scheduler::RR)),
//!     Command::AddRealServer(vip.into(), RealServer::masquerade([10, 1, 0, 4].into(), 8080)),
//!     Command::AddRealServer(vip.into(), RealServer::masquerade([10, 1, 0, 5].into(), 8080).weight(2)),
//! ])?;
//! for failure in failed {
//!     eprintln!("{failure}");
//! }
//! for server in kernel.real_servers(VirtualServerId::from(vip))? {
//!     println!("{} has {} connections", server.config.address, server.active_connections);
//! }
//! # Ok::<(), ipvs::Error>(())
//! ```

mod command;

mod family;
mod info;
pub mod proc_net;
mod protocol;
mod real_server;
mod scheduler;
mod stats;

pub mod text;
mod virtual_server;

pub use command::Command;
pub use family::Family;
pub use info::{Info, Timeouts};
pub use protocol::{Protocol, UnknownProtocol};
pub use real_server::{Forwarding, ObservedRealServer, RealServer, RealServerAddress, Tunnel, TunnelKind};
pub use scheduler::{InvalidScheduler, Scheduler};
pub use stats::Stats;
pub use virtual_server::{
    ObservedVirtualServer, ServiceAddress, ServiceFlags, VirtualServer, VirtualServerId,
};

#[cfg(feature = "client")]
mod client;
#[cfg(feature = "client")]
pub use client::{Error, Ipvs, KernelIpvs, PROBE_ADDRESS, SchedulerSupport, probe_scheduler};
#[cfg(feature = "client")]
pub use netlink::{Errno, FailedRequest, KernelError};

/// The README's example, compiled.
#[cfg(all(doctest, feature = "client"))]
#[doc = include_str!("../README.md")]
struct Readme;
