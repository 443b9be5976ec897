//! The kernel client.

mod decode;
mod encode;
mod error;
mod idempotency;
mod kernel;
mod kernel_error;
mod scheduler_support;
mod uapi;
#[cfg(feature = "wire")]
pub mod wire;

pub use error::Error;
pub use kernel::KernelIpvs;
pub use kernel_error::{FailedRequest, KernelError};
pub use scheduler_support::{PROBE_ADDRESS, SchedulerSupport, probe_scheduler};

use std::io;

use crate::{
    Command, ObservedRealServer, ObservedVirtualServer, Scheduler, VirtualServerId,
    proc_net::VirtualServerSummary,
};

/// The IPVS table of one network namespace. [`KernelIpvs`] is the kernel's; tests bring their own.
///
/// IPVS announces no changes and marks no dump as interrupted: a reading while somebody else writes may lack entries
/// or repeat them. Commands are idempotent, so acting on such a reading does no lasting harm, and the next reading
/// puts it right.
///
/// ```
/// use ipvs::{Command, Error, Ipvs, VirtualServerId};
///
/// /// Removes every virtual server that balances a firewall mark.
/// fn remove_marks(table: &mut impl Ipvs) -> Result<(), Error> {
///     let ids = table.virtual_servers()?.into_iter().map(|server| server.config.id);
///     let marks = ids.filter(|id| matches!(id, VirtualServerId::Mark { .. }));
///     let commands: Vec<_> = marks.map(Command::DeleteVirtualServer).collect();
///     for failure in table.apply(&commands)? {
///         eprintln!("{}: {}", commands[failure.index], failure.error);
///     }
///     Ok(())
/// }
/// ```
pub trait Ipvs {
    /// Every virtual server, in the kernel's order.
    ///
    /// Those of protocols other than TCP, UDP and SCTP, which other tools can create, are left out.
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

    /// Whether it is safe to ask the kernel for a scheduler that it may have to load first.
    ///
    /// False for `lblc` and `lblcr` unless they are loaded: loading them on demand can hang IPVS for good. It holds
    /// IPVS' mutex (`ip_vs_scheduler_get` in net/netfilter/ipvs/ip_vs_sched.c), and waits for network namespaces that
    /// end (`register_pernet_subsys`), which wait for the mutex.
    fn may_load(&mut self, scheduler: Scheduler) -> bool;

    /// Executes the commands in order, each idempotent as [`Command`] says, and returns those that failed, by
    /// position. A failed command does not stop the others.
    ///
    /// Where the errno leaves no doubt about the cause, the [`KernelError`] says it: a missing scheduler is named with its
    /// module. On `Err` some may have been executed: read back and compare.
    fn apply(&mut self, commands: &[Command]) -> Result<Vec<FailedRequest>, Error>;
}
