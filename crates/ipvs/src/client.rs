//! The client of the kernel's IPVS: the trait [`Ipvs`], and the probe of a scheduler.

mod decode;
mod encode;
mod error;
mod idempotency;
mod kernel;
mod uapi;

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
};

pub use error::{Error, FailedRequest, KernelError};
pub use kernel::KernelIpvs;

use crate::{
    Command, ObservedRealServer, ObservedVirtualServer, Protocol, Scheduler, ServiceAddress, VirtualServer,
    VirtualServerId, proc_net::VirtualServerSummary,
};

/// The summaries of virtual servers, in the kernel's order.
pub type Summaries = Box<dyn Iterator<Item = io::Result<VirtualServerSummary>> + Send>;

/// The IPVS table of one network namespace. [`KernelIpvs`] is the kernel's; tests bring their own.
///
/// IPVS announces no changes and marks no dump as interrupted: a reading while another program writes may
/// lack entries or repeat them. Commands are idempotent, so acting on such a reading does no lasting harm,
/// and the next reading puts it right.
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

    /// A summary of each virtual server that balances an address, with its real servers. Much cheaper
    /// than the other methods together: it reads one text ([`proc_net`](crate::proc_net)).
    ///
    /// The text is read step by step. What changes between two steps may be left out, or be there twice; a later
    /// call disturbs an earlier one in the same way.
    ///
    /// An error if the text is not available. An item is an error if the text is not understood; the items after it
    /// are meaningless.
    fn summaries(&mut self) -> io::Result<Summaries>;

    /// Prepares the kernel for summaries of many virtual servers, and returns whether that has succeeded: reading ten
    /// thousand then takes a third of the time, and a hundred thousand a twelfth. To be called before
    /// [`summaries`](Self::summaries), none of which may be in use. After a success, and after a few attempts, further
    /// calls do nothing.
    ///
    /// The kernel finds each piece of the text by walking the table from its start. A piece is a page, or as long as the
    /// longest virtual server that was ever shown in this open file (`seq_read_iter` in fs/seq_file.c). So a virtual
    /// server with several hundred real servers of weight 0 is at [`PROBE_ADDRESS`] while the kernel makes the text a
    /// few times, at about 1 µs for each server in the table. On `Err` it may still be there.
    ///
    /// The kernel remembers removed real servers for two to three minutes, and compares new ones with them
    /// (`ip_vs_trash_get_dest`), at a few microseconds each. It must have the `scheduler`.
    fn widen_summaries(&mut self, scheduler: Scheduler) -> Result<bool, Error>;

    /// Whether it is safe to ask the kernel for a scheduler that it may have to load first.
    ///
    /// False for `lblc` and `lblcr` unless they are loaded: loading them on demand can hang IPVS for good. It
    /// holds IPVS' mutex (`ip_vs_scheduler_get` in net/netfilter/ipvs/ip_vs_sched.c), and waits for network
    /// namespaces that end (`register_pernet_subsys`), which wait for the mutex.
    fn may_load(&mut self, scheduler: Scheduler) -> bool;

    /// Executes the commands in order, each idempotent as [`Command`] says, and returns those that failed, by
    /// position. A failed command does not stop the others.
    ///
    /// Where the errno leaves no doubt about the cause, the [`KernelError`] says it: a missing scheduler is
    /// named with its module. On `Err` some may have been executed: read back and compare.
    fn apply(&mut self, commands: &[Command]) -> Result<Vec<FailedRequest>, Error>;
}

/// The address where [`probe_scheduler`] and [`Ipvs::widen_summaries`] make a virtual server. It is reserved for
/// documentation (RFC 5737). kube-proxy probes with the same.
pub const PROBE_ADDRESS: ServiceAddress =
    ServiceAddress { protocol: Protocol::Tcp, ip: IpAddr::V4(Ipv4Addr::new(198, 51, 100, 0)), port: 20_000 };

/// The result of [`probe_scheduler`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulerSupport {
    /// The kernel has it.
    Supported,
    /// The kernel did not take it; `ENOENT`: it has none of this name.
    Refused(KernelError),
    /// It is not loaded, and loading it on demand can hang IPVS ([`Ipvs::may_load`]), so the kernel was not
    /// asked.
    NotLoaded,
    /// Another program's virtual server is at [`PROBE_ADDRESS`], so the kernel was not asked.
    NotProbed,
}

/// Finds out whether the kernel has a scheduler. The kernel loads one when it is first used.
///
/// A scheduler among those `in_use` is there. Any other is tried with a virtual server at [`PROBE_ADDRESS`]
/// that lives for a moment. On `Err`, and after a refusal other than `ENOENT`, that server may still be
/// there.
///
/// ```no_run
/// use ipvs::{Ipvs, KernelIpvs, Scheduler, SchedulerSupport, probe_scheduler};
///
/// let mut kernel = KernelIpvs::open()?;
/// let in_use: Vec<_> = kernel.virtual_servers()?.iter().map(|server| server.config.scheduler).collect();
/// match probe_scheduler(&mut kernel, Scheduler::MH, in_use)? {
///     SchedulerSupport::Refused(error) => eprintln!("{}", error.cause()),
///     support => println!("{support:?}"),
/// }
/// # Ok::<(), ipvs::Error>(())
/// ```
pub fn probe_scheduler(
    kernel: &mut (impl Ipvs + ?Sized),
    scheduler: Scheduler,
    in_use: impl IntoIterator<Item = Scheduler>,
) -> Result<SchedulerSupport, Error> {
    if in_use.into_iter().any(|used| used == scheduler) {
        return Ok(SchedulerSupport::Supported);
    }
    if !kernel.may_load(scheduler) {
        return Ok(SchedulerSupport::NotLoaded);
    }
    let server = VirtualServer::new(PROBE_ADDRESS, scheduler);
    let id = server.id;
    if kernel.virtual_server(id)?.is_some() {
        return Ok(SchedulerSupport::NotProbed);
    }
    let failed = kernel.apply(&[Command::AddVirtualServer(server), Command::DeleteVirtualServer(id)])?;
    Ok(failed
        .into_iter()
        .next()
        .map_or(SchedulerSupport::Supported, |failed| SchedulerSupport::Refused(failed.error)))
}

/// The client's end of the wire. No part of the public API: it is for the tests, benches and fuzzers of the
/// workspace that this crate comes from, and changes without notice.
#[cfg(feature = "wire")]
pub mod wire {
    use netlink::Batch;

    use super::encode::{Requests, Verb};
    use crate::{Command, KernelIpvs};

    /// Appends the requests that [`apply`](crate::Ipvs::apply) sends first, one for each command. `family` is
    /// the number that the kernel has given IPVS among the families of generic netlink.
    pub fn encode(family: u16, commands: &[Command], batch: &mut Batch) {
        for command in commands {
            Requests { family }.change(batch, command, Verb::first_for(command));
        }
    }

    /// How many bytes of the table's summary the kernel returns at once.
    pub fn first_piece(ipvs: &mut KernelIpvs) -> std::io::Result<usize> {
        ipvs.first_piece()
    }

    /// Leaves a client as it is when the module was unloaded and loaded again: no family has the number that
    /// it knows.
    pub fn forget_family(ipvs: &mut KernelIpvs) {
        /// `GENL_MAX_ID` in include/uapi/linux/genetlink.h.
        const LAST: u16 = 1023;
        ipvs.requests.family = LAST;
    }
}
