//! The kernel client.

mod decode;
mod encode;
mod error;
mod idempotency;
mod kernel;
mod scheduler_support;
mod uapi;

pub use error::Error;
pub use kernel::KernelIpvs;
pub use scheduler_support::{PROBE_ADDRESS, SchedulerSupport, probe_scheduler};

use std::io;

use netlink::FailedRequest;

use crate::{
    Command, ObservedRealServer, ObservedVirtualServer, Scheduler, VirtualServerId,
    proc_net::VirtualServerSummary,
};

/// The seam to the kernel's IPVS table in one network namespace.
///
/// IPVS announces no changes and marks no dump as interrupted: what is read while somebody else
/// writes may lack entries or repeat them. Commands are idempotent, so acting on such a reading does
/// no lasting harm, and the next one puts it right.
pub trait Ipvs {
    /// Every virtual server, in the kernel's order.
    ///
    /// One of a protocol other than TCP, UDP and SCTP, which other tools can create, is left out.
    fn virtual_servers(&mut self) -> Result<Vec<ObservedVirtualServer>, Error>;

    /// One virtual server; `None` if it does not exist.
    fn virtual_server(&mut self, id: VirtualServerId) -> Result<Option<ObservedVirtualServer>, Error>;

    /// The real servers of one virtual server; none if it does not exist.
    fn real_servers(&mut self, of: VirtualServerId) -> Result<Vec<ObservedRealServer>, Error>;

    /// Visits a summary of each virtual server that balances an address, with its real servers. Much cheaper than the
    /// other methods together: it reads one text ([`proc_net`](crate::proc_net)).
    ///
    /// An error if that text is not available or not understood. Some servers may have been visited by then.
    fn for_each_summary(&mut self, visit: &mut dyn FnMut(&VirtualServerSummary)) -> io::Result<()>;

    /// Whether the kernel can be asked for a scheduler that it may have to load first. Loading `lblc` or `lblcr` can hang
    /// IPVS for good: its mutex is held meanwhile, and they wait for network namespaces that end, which wait for the
    /// mutex (`ip_vs_scheduler_get` in net/netfilter/ipvs/ip_vs_sched.c, `register_pernet_subsys`). So those two only
    /// if they are there already.
    fn may_load(&mut self, scheduler: Scheduler) -> bool;

    /// Executes the commands in order and returns those that failed, by position. Where the errno leaves no doubt about
    /// the cause, the refusal says it: a missing scheduler is named with its module.
    ///
    /// Each is idempotent as [`Command`] says. A failed command does not stop the others. On `Err`
    /// some may have been executed: read back and compare.
    fn apply(&mut self, commands: &[Command]) -> Result<Vec<FailedRequest>, Error>;
}
