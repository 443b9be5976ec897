//! Route lookup: by which interface and gateway this node reaches an address.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use netlink::{Batch, Protocol, Reply, Socket};
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    route::{RouteAttribute, RouteMessage},
};

use crate::{
    Error,
    message::{ROUTE_HEADER, RTA_GATEWAY, RTA_OIF, find, find_ip},
    request::{family, host_prefix, packet, route_address},
};

/// Looks up routes in the network namespace in which it was opened. Changes nothing.
#[derive(Debug)]
pub struct RouteLookup {
    socket: Socket,
}

impl RouteLookup {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open_for_short_dumps(Protocol::Route).map_err(Error::during("open a socket"))?;
        Ok(Self { socket })
    }

    /// The index of the interface by which a packet of this node to an address leaves, as
    /// `ip route get` shows it: `lo` for the node's own addresses, `None` where there is no route.
    pub fn interface_to(&mut self, address: IpAddr) -> Result<Option<u32>, Error> {
        let interface = |route: &[u8]| find(route, ROUTE_HEADER, RTA_OIF)?.u32().ok();
        Ok(route_to(&mut self.socket, address, interface)?.flatten())
    }
}

/// Addresses of documentation (RFC 5737, RFC 3849), which no network has: only a default route leads there.
const ELSEWHERE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];

/// The gateways of the default routes. Of a route with several, the kernel names the one that it would take.
pub(crate) fn default_gateways(socket: &mut Socket) -> Result<BTreeSet<IpAddr>, Error> {
    let gateway = |route: &[u8]| find_ip(route, ROUTE_HEADER, RTA_GATEWAY);
    let mut gateways = BTreeSet::new();
    for address in ELSEWHERE {
        gateways.extend(route_to(socket, address, gateway)?.flatten());
    }
    Ok(gateways)
}

/// Reads something from the route to an address; `None` where there is no route.
fn route_to<T>(socket: &mut Socket, address: IpAddr, read: impl Fn(&[u8]) -> T) -> Result<Option<T>, Error> {
    let mut message = RouteMessage::default();
    message.header.address_family = family(address);
    message.header.destination_prefix_length = host_prefix(address);
    message.attributes.push(RouteAttribute::Destination(route_address(address)));
    let mut batch = Batch::default();
    batch.packet(packet(RouteNetlinkMessage::GetRoute(message), 0));
    match socket.get(&mut batch, |reply: &Reply<'_>| Ok(read(reply.payload))) {
        Ok(routes) => Ok(routes.into_iter().next()),
        // Whatever the kernel refuses with, ENETUNREACH mostly: it would not send the packet.
        Err(error) if error.errno().is_some() => Ok(None),
        Err(error) => Err(Error::during("look up a route")(error)),
    }
}
