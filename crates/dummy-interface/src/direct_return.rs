//! Direct return: the tunnel devices, which unpack what other nodes send for pods of this one, with the UDP ports of
//! generic UDP encapsulation before them. The rest of the crate uses [`Tunnels`].
//!
//! One of a family exists only where a Service asks for it. It is a device of its own, known by the address at its end:
//! the kernel's fallback devices (`tunl0`, `ip6tnl0`) belong to the programs that use them, Calico for example. It only receives,
//! so it has no remote end.

mod fou;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipvs::Family;
use netfilter::tunnel::{device, end};
use netlink::{Errno, Error as NetlinkError, KernelError, Socket, if_exists};
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

use self::fou::Ports;
use crate::{
    Error, TunnelDevice,
    addresses::InterfaceAddress,
    binding::new_address,
    link::{Link, ensure_ipv6},
    message::{execute, socket},
};

/// The tunnels of one network namespace.
#[derive(Debug, Default)]
pub(crate) struct Tunnels {
    /// Whether they accept generic UDP encapsulation too. Where it is not wanted it is not queried either: that would load
    /// a module.
    gue: bool,
    /// The UDP ports, once they are needed.
    ports: Option<Ports>,
}

impl Tunnels {
    pub(crate) fn with_gue(gue: bool) -> Self {
        Self { gue, ports: None }
    }

    /// Creates the tunnel of a family, or corrects it.
    pub(crate) fn ensure(&mut self, socket: &mut Socket, family: Family) -> Result<(), NetlinkError> {
        if !self.gue {
            return ensure_device(socket, family);
        }
        // Without the module there must be no device; and the port is bound to the device's address.
        self.ports()?;
        ensure_device(socket, family)?;
        self.ports()?.add(family)
    }

    /// Removes the tunnel of a family.
    pub(crate) fn remove(&mut self, socket: &mut Socket, family: Family) -> Result<(), NetlinkError> {
        let removed = if self.gue { self.ports().and_then(|ports| ports.remove(family)) } else { Ok(()) };
        remove_device(socket, family)?;
        if_exists(removed, &[Errno::EOPNOTSUPP]).map(drop)
    }

    /// The tunnels that exist, among links and addresses that were just read.
    pub(crate) fn observe(
        &mut self,
        socket: &mut Socket,
        links: &[Link],
        addresses: &[InterfaceAddress],
    ) -> Result<BTreeMap<Family, TunnelDevice>, Error> {
        let mut found = BTreeMap::new();
        for family in Family::BOTH {
            if links.iter().any(|link| is_named(link, family))
                && let Some(link) = find(socket, family).map_err(Error::during("read a tunnel device"))?
            {
                let has_end = addresses
                    .iter()
                    .any(|found| (found.interface, found.address) == (link.index, end(family)));
                let right = is_right(&link, family) && has_end && self.accepts_gue(family)?;
                found.insert(family, TunnelDevice { right, received: link.received.unwrap_or(0) });
            }
        }
        Ok(found)
    }

    fn accepts_gue(&mut self, family: Family) -> Result<bool, Error> {
        if !self.gue {
            return Ok(true);
        }
        match self.ports().and_then(|ports| ports.is_open(family)) {
            // The module is not loaded, or was unloaded: it gets another number when it is loaded again.
            Err(error) if [Some(Errno::EOPNOTSUPP), Some(Errno::ENOENT)].contains(&error.errno()) => {
                self.ports = None;
                Ok(false)
            }
            open => open.map_err(Error::during("read the UDP ports of tunnels")),
        }
    }

    fn ports(&mut self) -> Result<&mut Ports, NetlinkError> {
        let ports = match self.ports.take() {
            Some(ports) => ports,
            None => Ports::open()?,
        };
        Ok(self.ports.insert(ports))
    }
}

/// Deletes our tunnel devices. Returns the names of those that existed.
pub fn remove_tunnels() -> Result<Vec<&'static str>, Error> {
    let mut socket = socket()?;
    let mut removed = Vec::new();
    for family in Family::BOTH {
        if remove_device(&mut socket, family).map_err(Error::during("delete a tunnel device"))? {
            // It may never have been open.
            _ = Ports::open().and_then(|mut ports| ports.remove(family));
            removed.push(device(family));
        }
    }
    Ok(removed)
}

/// The names of the devices that [`remove_tunnels`] would delete. Writes nothing.
pub fn tunnels() -> Result<Vec<&'static str>, Error> {
    let mut socket = socket()?;
    let mut found = Vec::new();
    for family in Family::BOTH {
        if find(&mut socket, family).map_err(Error::during("read a tunnel device"))?.is_some() {
            found.push(device(family));
        }
    }
    Ok(found)
}

/// Where strict checks of sources apply to all devices, this one is checked loosely: the larger value counts
/// (`IN_DEV_RPFILTER` in include/linux/inetdevice.h). Clients are reached by another device than they came in by.
const LOOSE: i32 = 2;

/// Whether a link is the tunnel device of a family as [`ensure_device`] makes it, its address aside.
fn is_right(link: &Link, family: Family) -> bool {
    let rp_filter = family == Family::V6 || link.rp_filter == Some(LOOSE.cast_unsigned());
    is_named(link, family) && is_ours(link, family) && link.flags.contains(LinkFlags::Up) && rp_filter
}

/// Whether a link is one of the tunnel devices, by its name.
pub(crate) fn is_tunnel(link: &Link) -> bool {
    link.name.as_deref().is_some_and(is_tunnel_name)
}

/// Whether this is the name of one of the tunnel devices.
pub(crate) fn is_tunnel_name(name: &str) -> bool {
    Family::BOTH.into_iter().any(|family| name == device(family))
}

/// Whether a tunnel device has this address.
pub(crate) fn is_tunnel_end(address: IpAddr) -> bool {
    Family::BOTH.into_iter().any(|family| address == end(family))
}

/// The numbers of the tunnel devices.
pub(crate) fn tunnel_numbers(socket: &mut Socket) -> Result<BTreeSet<u32>, NetlinkError> {
    let mut numbers = BTreeSet::new();
    for family in Family::BOTH {
        numbers.extend(find(socket, family)?.map(|link| link.index));
    }
    Ok(numbers)
}

/// Whether a link has the name of the tunnel device of a family.
fn is_named(link: &Link, family: Family) -> bool {
    link.name.as_deref() == Some(device(family))
}

/// Whether a link is a tunnel of that kind from the end that only ours has.
fn is_ours(link: &Link, family: Family) -> bool {
    link.kind.as_deref() == Some(kind(family)) && link.tunnel_from == Some(end(family))
}

/// Creates the tunnel device of a family, or corrects it. A link of that name that is something else is replaced: the name
/// is ours.
fn ensure_device(socket: &mut Socket, family: Family) -> Result<(), NetlinkError> {
    let index = match find(socket, family)? {
        Some(link) if is_ours(&link, family) => link.index,
        Some(_) => {
            remove_device(socket, family)?;
            create(socket, family)?
        }
        None => create(socket, family)?,
    };
    if family == Family::V6 {
        ensure_ipv6(device(family));
    }
    match execute(socket, &new_address(end(family), index), NLM_F_CREATE | NLM_F_EXCL) {
        Err(error) if error.errno() != Some(Errno::EEXIST) => return Err(error),
        _ => {}
    }
    execute(socket, &set_up(index, family), 0)
}

/// Removes the tunnel device of a family, with its address. Returns whether there was one.
fn remove_device(socket: &mut Socket, family: Family) -> Result<bool, NetlinkError> {
    let message = RouteNetlinkMessage::DelLink(LinkUnspec::new_with_name(device(family)).build());
    Ok(if_exists(execute(socket, &message, 0), &[Errno::ENODEV])?.is_some())
}

/// The link with the name of the tunnel device of a family, with its counters.
fn find(socket: &mut Socket, family: Family) -> Result<Option<Link>, NetlinkError> {
    Link::get(socket, LinkUnspec::new_with_name(device(family)).build())
}

/// Creates the device. Returns its number. The kernel loads the module (`ipip`, `ip6_tunnel`).
fn create(socket: &mut Socket, family: Family) -> Result<u32, NetlinkError> {
    execute(socket, &RouteNetlinkMessage::NewLink(new_device(family)), NLM_F_CREATE | NLM_F_EXCL)?;
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
