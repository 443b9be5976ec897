//! What the kernel can do, found out by trying.

use std::net::{IpAddr, Ipv4Addr};

use crate::{Command, Error, Ipvs, KernelError, Protocol, Scheduler, ServiceAddress, VirtualServer};

/// The address where [`probe_scheduler`] makes its virtual server. Nobody should have it (RFC 5737). kube-proxy probes
/// with the same.
pub const PROBE_ADDRESS: ServiceAddress =
    ServiceAddress { protocol: Protocol::Tcp, ip: IpAddr::V4(Ipv4Addr::new(198, 51, 100, 0)), port: 20_000 };

/// The result of [`probe_scheduler`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulerSupport {
    /// The kernel has it.
    Supported,
    /// The kernel did not take it; `ENOENT`: it has none of this name.
    Refused(KernelError),
    /// It is not loaded, and loading it on demand can hang IPVS ([`Ipvs::may_load`]), so the kernel was not asked.
    NotLoaded,
    /// A virtual server of somebody else is at [`PROBE_ADDRESS`], so the kernel was not asked.
    NotProbed,
}

/// Finds out whether the kernel has a scheduler. The kernel loads one when it is first used.
///
/// A scheduler among those `in_use` is there. Any other is tried with a virtual server at [`PROBE_ADDRESS`] that lives
/// for a moment. On `Err`, and after a refusal other than `ENOENT`, that server may still be there.
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
