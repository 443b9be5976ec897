#![cfg_attr(feature = "client", doc = include_str!("../README.md"))]
#![cfg_attr(
    not(feature = "client"),
    doc = "Linux IPVS as plain data: the crate without its feature `client`."
)]

mod command;
mod info;
pub mod proc_net;
mod protocol;
mod real_server;
mod scheduler;
pub mod text;
mod virtual_server;

pub use command::Command;
pub use info::{Info, Stats, Timeouts};
pub use protocol::{Family, Protocol, UnknownProtocol};
pub use real_server::{Forwarding, ObservedRealServer, RealServer, RealServerAddress, Tunnel, TunnelKind};
pub use scheduler::{InvalidScheduler, Scheduler};
pub use virtual_server::{
    ObservedVirtualServer, ServiceAddress, ServiceFlags, VirtualServer, VirtualServerId,
};

#[cfg(feature = "client")]
mod client;
#[cfg(feature = "wire")]
#[doc(hidden)]
pub use client::wire;
#[cfg(feature = "client")]
pub use client::{
    Error, FailedRequest, Ipvs, KernelError, KernelIpvs, PROBE_ADDRESS, SchedulerSupport, Summaries,
    probe_scheduler,
};
