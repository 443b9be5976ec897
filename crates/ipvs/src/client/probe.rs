//! What the kernel can do, found out by trying.

use std::net::{IpAddr, Ipv4Addr};

use netlink::Refusal;

use crate::{Command, Error, Ipvs, Protocol, Scheduler, ServiceAddress, VirtualServer};

/// The address of the virtual server of [`try_scheduler`]: an address that nobody should have (RFC 5737).
/// kube-proxy probes with the same.
pub const PROBED: ServiceAddress =
    ServiceAddress { protocol: Protocol::Tcp, ip: IpAddr::V4(Ipv4Addr::new(198, 51, 100, 0)), port: 20_000 };

/// Finds out whether the kernel has a scheduler, which it loads when it is first used: by a virtual server at
/// [`PROBED`] that lives for a moment, and must not be there before. `Some`: the kernel's answer if it does
/// not take it.
pub fn try_scheduler(
    kernel: &mut (impl Ipvs + ?Sized),
    scheduler: Scheduler,
) -> Result<Option<Refusal>, Error> {
    let server = VirtualServer::new(PROBED, scheduler);
    let id = server.id;
    let failed = kernel.apply(&[Command::AddVirtualServer(server), Command::DeleteVirtualServer(id)])?;
    Ok(failed.into_iter().next().map(|failed| failed.refusal))
}
