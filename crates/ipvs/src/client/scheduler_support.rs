//! What the kernel can do, found out by trying.

use std::net::{IpAddr, Ipv4Addr};

use netlink::Refusal;

use crate::{Command, Error, Ipvs, Protocol, Scheduler, ServiceAddress, VirtualServer};

/// The address of the virtual server of [`find_scheduler`]: an address that nobody should have (RFC 5737).
/// kube-proxy probes with the same.
pub const PROBED: ServiceAddress =
    ServiceAddress { protocol: Protocol::Tcp, ip: IpAddr::V4(Ipv4Addr::new(198, 51, 100, 0)), port: 20_000 };

/// What is known of a scheduler after [`find_scheduler`] has looked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The kernel has it.
    There,
    /// The kernel did not take it; `ENOENT`: it has none of this name.
    Refused(Refusal),
    /// It is not loaded, and was not asked for because that can hang IPVS ([`Ipvs::may_load`]).
    NotLoaded,
    /// It was not tried, because a virtual server of somebody else is at [`PROBED`].
    Untried,
}

/// Finds out whether the kernel has a scheduler, which it loads when it is first used: one of those `in_use` it has,
/// any other is tried with a virtual server at [`PROBED`] that lives for a moment.
///
/// On `Err`, and after a refusal other than `ENOENT`, that may still be there.
pub fn find_scheduler(
    kernel: &mut (impl Ipvs + ?Sized),
    scheduler: Scheduler,
    in_use: impl IntoIterator<Item = Scheduler>,
) -> Result<Found, Error> {
    if in_use.into_iter().any(|used| used == scheduler) {
        return Ok(Found::There);
    }
    if !kernel.may_load(scheduler) {
        return Ok(Found::NotLoaded);
    }
    let server = VirtualServer::new(PROBED, scheduler);
    let id = server.id;
    if kernel.virtual_server(id)?.is_some() {
        return Ok(Found::Untried);
    }
    let failed = kernel.apply(&[Command::AddVirtualServer(server), Command::DeleteVirtualServer(id)])?;
    Ok(failed.into_iter().next().map_or(Found::There, |failed| Found::Refused(failed.refusal)))
}
