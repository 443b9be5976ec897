//! What the kernel can do, found out by trying.

use std::net::{IpAddr, Ipv4Addr};

use netlink::KernelError;

use crate::{Command, Error, Ipvs, Protocol, Scheduler, ServiceAddress, VirtualServer};

/// The address of the virtual server of [`probe_scheduler`]: an address that nobody should have (RFC 5737).
/// kube-proxy probes with the same.
pub const PROBE_ADDRESS: ServiceAddress =
    ServiceAddress { protocol: Protocol::Tcp, ip: IpAddr::V4(Ipv4Addr::new(198, 51, 100, 0)), port: 20_000 };

/// What is known of a scheduler after [`probe_scheduler`] has looked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulerSupport {
    /// The kernel has it.
    Supported,
    /// The kernel did not take it; `ENOENT`: it has none of this name.
    Refused(KernelError),
    /// It is not loaded, and was not asked for because that can hang IPVS ([`Ipvs::may_load`]).
    NotLoaded,
    /// It was not tried, because a virtual server of somebody else is at [`PROBE_ADDRESS`].
    NotProbed,
}

/// Finds out whether the kernel has a scheduler, which it loads when it is first used: one of those `in_use` it has,
/// any other is tried with a virtual server at [`PROBE_ADDRESS`] that lives for a moment.
///
/// On `Err`, and after a refusal other than `ENOENT`, that may still be there.
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
