//! The tunnel devices, which unpack what other nodes send for pods of this one.
//!
//! One of a family exists only where a Service asks for it. It is a device of its own, known by the address at its end:
//! the kernel's fallback devices (`tunl0`, `ip6tnl0`) belong to whoever uses them, Calico for example. It only receives,
//! so it has no remote end.

use std::net::IpAddr;

use ipvs::Family;
use netfilter::tunnel::{device, end};
use netlink::{Batch, Errno, Error, KernelError, Socket};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::{
    LinkIp6Tnl, LinkIpIp, LinkUnspec,
    packet_route::{
        AddressFamily, IpProtocol, RouteNetlinkMessage,
        link::{
            AfSpecInet, AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InetDevConf, LinkAttribute, LinkFlags,
            LinkMessage,
        },
    },
};

use crate::{
    ipv6_switch,
    links::Link,
    request::{new_address, packet},
};

/// Where strict checks of sources apply to all devices, this one is checked loosely: the larger value counts
/// (`IN_DEV_RPFILTER` in include/linux/inetdevice.h). Clients are reached by another device than they came in by.
const LOOSE: i32 = 2;

/// Whether a link is the tunnel device of a family as [`ensure`] makes it, its address aside.
pub(crate) fn is_right(link: &Link, family: Family) -> bool {
    let rp_filter = family == Family::V6 || link.rp_filter == Some(LOOSE.cast_unsigned());
    is_named(link, family) && is_ours(link, family) && link.flags.contains(LinkFlags::Up) && rp_filter
}

/// Whether a link has the name of the tunnel device of a family.
pub(crate) fn is_named(link: &Link, family: Family) -> bool {
    link.name.as_deref() == Some(device(family))
}

/// Whether a link is a tunnel of that kind from the end that only ours has.
fn is_ours(link: &Link, family: Family) -> bool {
    link.kind.as_deref() == Some(kind(family)) && link.tunnel_from == Some(end(family))
}

/// Makes the tunnel device of a family, or makes it right. One of that name that is something else is replaced: it
/// takes what is ours.
pub(crate) fn ensure(socket: &mut Socket, family: Family) -> Result<(), Error> {
    let index = match find(socket, family)? {
        Some(link) if is_ours(&link, family) => link.index,
        Some(_) => {
            remove(socket, family)?;
            create(socket, family)?
        }
        None => create(socket, family)?,
    };
    if family == Family::V6 {
        ipv6_switch::ensure_on(device(family));
    }
    match execute(socket, new_address(end(family), index), NLM_F_CREATE | NLM_F_EXCL) {
        Err(error) if error.errno() != Some(Errno::EEXIST) => return Err(error),
        _ => {}
    }
    execute(socket, set_up(index, family), 0)
}

/// Removes the tunnel device of a family, with its address; says whether there was one.
pub(crate) fn remove(socket: &mut Socket, family: Family) -> Result<bool, Error> {
    let message = RouteNetlinkMessage::DelLink(LinkUnspec::new_with_name(device(family)).build());
    match execute(socket, message, 0) {
        Err(error) if error.errno() == Some(Errno::ENODEV) => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

/// The link that has the name of the tunnel device of a family, with what it has counted.
pub(crate) fn find(socket: &mut Socket, family: Family) -> Result<Option<Link>, Error> {
    let message = RouteNetlinkMessage::GetLink(LinkUnspec::new_with_name(device(family)).build());
    match socket.get(&mut batch(message, 0), |reply| Ok(Link::from_message(reply.payload))) {
        Ok(links) => Ok(links.into_iter().flatten().next()),
        Err(error) if error.errno() == Some(Errno::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Creates the device, and says its number. The kernel loads the module (`ipip`, `ip6_tunnel`).
fn create(socket: &mut Socket, family: Family) -> Result<u32, Error> {
    execute(socket, RouteNetlinkMessage::NewLink(new_device(family)), NLM_F_CREATE | NLM_F_EXCL)?;
    tracing::info!(device = device(family), "created");
    let created = find(socket, family)?.ok_or(KernelError::new(Errno::ENODEV))?;
    Ok(created.index)
}

fn new_device(family: Family) -> LinkMessage {
    match end(family) {
        IpAddr::V4(end) => LinkIpIp::new(device(family)).local(end).build(),
        IpAddr::V6(end) => LinkIp6Tnl::new(device(family)).local(end).protocol(IpProtocol::Ipv6).build(),
    }
}

/// Up, with loose checks of sources, and without an address that the kernel makes.
fn set_up(index: u32, family: Family) -> RouteNetlinkMessage {
    let mut message = LinkUnspec::new_with_index(index).up().build();
    let settings = match family {
        Family::V4 => {
            let mut checks = InetDevConf::default();
            checks.rp_filter = LOOSE;
            AfSpecUnspec::Inet(vec![AfSpecInet::DevConfRequest(checks)])
        }
        Family::V6 => AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]),
    };
    message.header.interface_family = AddressFamily::Unspec;
    message.attributes.push(LinkAttribute::AfSpecUnspec(vec![settings]));
    RouteNetlinkMessage::SetLink(message)
}

const fn kind(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipip",
        Family::V6 => "ip6tnl",
    }
}

fn execute(socket: &mut Socket, message: RouteNetlinkMessage, flags: u16) -> Result<(), Error> {
    socket.execute(&mut batch(message, flags))
}

fn batch(message: RouteNetlinkMessage, flags: u16) -> Batch {
    let mut batch = Batch::default();
    batch.packet(packet(message, flags));
    batch
}
