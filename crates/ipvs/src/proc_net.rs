//! The kernel's own texts about IPVS in `/proc/net`.
//!
//! - [`for_each_virtual_server`] reads `/proc/net/ip_vs`: the table, much cheaper than over netlink.
//! - [`for_each_connection`] reads `/proc/net/ip_vs_conn`: all connections. They print as `ipvsadm -Lnc` prints them.

mod connections;
mod summary;
mod text;

pub use connections::{CONNECTIONS_HEAD, Connection, for_each_connection};
pub use summary::{Persistence, RealServerSummary, VirtualServerSummary, for_each_virtual_server};
