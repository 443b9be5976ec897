//! Route lookup: by which interface this node reaches an address.

use std::net::IpAddr;

use netlink::{Batch, Protocol, Reply, Socket};
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    route::{RouteAttribute, RouteMessage},
};

use crate::{
    Error,
    message::{ROUTE_HEADER, RTA_OIF, find},
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
        let mut message = RouteMessage::default();
        message.header.address_family = family(address);
        message.header.destination_prefix_length = host_prefix(address);
        message.attributes.push(RouteAttribute::Destination(route_address(address)));
        let mut batch = Batch::default();
        batch.packet(packet(RouteNetlinkMessage::GetRoute(message), 0));
        let interface = |reply: &Reply<'_>| find(reply.payload, ROUTE_HEADER, RTA_OIF)?.u32().ok();
        match self.socket.get(&mut batch, |reply| Ok(interface(reply))) {
            Ok(routes) => Ok(routes.into_iter().flatten().next()),
            // Whatever the kernel refuses with, ENETUNREACH mostly: it would not send the packet.
            Err(error) if error.errno().is_some() => Ok(None),
            Err(error) => Err(Error::during("look up a route")(error)),
        }
    }
}
