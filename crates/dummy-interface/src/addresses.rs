//! Addresses, and the routes that make them local: reading them, looking up routes, and deleting ours.

use std::{collections::BTreeSet, iter, net::IpAddr};

use netlink::{Protocol, Socket};
use rtnetlink::packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressHeader, AddressMessage},
    route::{RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteType},
};

use crate::{
    Error, LOOPBACK, ROUTE_PROTOCOL,
    binding::{Requests, TABLE_LOCAL, is_as_made},
    message::{
        NEXT_HOP_HEADER, ROUTE_HEADER, RTA_DST, RTA_GATEWAY, RTA_MULTIPATH, RTA_OIF, RTA_PREFSRC, dump,
        family, find, find_ip, host_prefix, local_address, request, route_address, socket,
    },
};

/// No interface has this index.
pub(crate) const EVERY_INTERFACE: u32 = 0;

const FAMILIES: [AddressFamily; 2] = [AddressFamily::Inet, AddressFamily::Inet6];

/// An address of some interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The index of the interface.
    pub interface: u32,
    /// The address.
    pub address: IpAddr,
    /// The length of its prefix, in bits.
    pub prefix: u8,
    /// Whether it is there for good and never the source of what goes elsewhere, which is how VIPs are bound.
    pub as_a_vip: bool,
}

impl InterfaceAddress {
    pub(crate) fn is_link_local_v6(&self) -> bool {
        matches!(self.address, IpAddr::V6(address) if address.is_unicast_link_local())
    }

    fn from_message(message: &[u8]) -> Option<Self> {
        let header = AddressHeader::parse(message).ok()?;
        let address = local_address(message);
        if address.is_none() {
            tracing::debug!(interface = header.index, "skipping an unreadable address");
        }
        Some(Self {
            interface: header.index,
            address: address?,
            prefix: header.prefix_len,
            as_a_vip: is_as_made(&header),
        })
    }
}

/// A route that makes an address one of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalRoute {
    pub(crate) to: IpAddr,
    /// The interface that has the address, or `lo`.
    pub(crate) interface: u32,
    pub(crate) protocol: RouteProtocol,
    pub(crate) source: Option<IpAddr>,
}

impl LocalRoute {
    /// Whether it binds a VIP.
    pub(crate) fn is_ours(&self) -> bool {
        self.protocol == RouteProtocol::from(ROUTE_PROTOCOL) && self.interface == LOOPBACK
    }

    fn from_message(message: &[u8]) -> Option<Self> {
        let header = RouteHeader::parse(message).ok()?;
        let to = find_ip(message, ROUTE_HEADER, RTA_DST)?;
        let interface = find(message, ROUTE_HEADER, RTA_OIF)?.u32().ok()?;
        let local = header.table == TABLE_LOCAL
            && header.kind == RouteType::Local
            && header.destination_prefix_length == host_prefix(to)
            && header.address_family == family(to);
        let source = find_ip(message, ROUTE_HEADER, RTA_PREFSRC);
        local.then_some(Self { to, interface, protocol: header.protocol, source })
    }
}

/// Reads the addresses of every interface in the calling thread's network namespace.
pub fn interface_addresses() -> Result<Vec<InterfaceAddress>, Error> {
    addresses(&mut socket()?, EVERY_INTERFACE)
}

/// Reads the addresses of the interface with this index. Without such an interface the kernel answers ENODEV, or before
/// 4.20 nothing.
pub fn addresses_of(interface: u32) -> Result<Vec<IpAddr>, Error> {
    // Older kernels send those of all.
    let of_it = |found: InterfaceAddress| (found.interface == interface).then_some(found.address);
    Ok(addresses(&mut socket()?, interface)?.into_iter().filter_map(of_it).collect())
}

/// The addresses of this interface, or of every one.
pub(crate) fn addresses(socket: &mut Socket, interface: u32) -> Result<Vec<InterfaceAddress>, Error> {
    let mut found = Vec::new();
    for family in FAMILIES {
        let mut message = AddressMessage::default();
        message.header.family = family;
        message.header.index = interface;
        let message = RouteNetlinkMessage::GetAddress(message);
        let addresses = dump(socket, &message, "read addresses", InterfaceAddress::from_message)?;
        // A kernel without the family lists those of all others.
        found.extend(addresses.into_iter().filter(|found| self::family(found.address) == family));
    }
    Ok(found)
}

/// The routes to this node's own addresses and to VIPs.
pub(crate) fn local_routes(socket: &mut Socket) -> Result<Vec<LocalRoute>, Error> {
    let mut found = Vec::new();
    for family in FAMILIES {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        message.header.table = TABLE_LOCAL;
        message.header.kind = RouteType::Local;
        let routes =
            dump(socket, &RouteNetlinkMessage::GetRoute(message), "read routes", LocalRoute::from_message)?;
        found.extend(routes.into_iter().filter(|route| self::family(route.to) == family));
    }
    Ok(found)
}

/// The gateways of all routes of all tables.
pub(crate) fn gateways(socket: &mut Socket) -> Result<BTreeSet<IpAddr>, Error> {
    let mut found = BTreeSet::new();
    for family in FAMILIES {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        message.header.kind = RouteType::Unicast;
        // Many routes have few gateways.
        dump(socket, &RouteNetlinkMessage::GetRoute(message), "read routes", |route| {
            found.extend(gateways_of(route));
            None::<()>
        })?;
    }
    Ok(found)
}

/// The gateway of a route, or of each of its next hops. For a route by a nexthop object the kernel reports the same,
/// unless `net.ipv4.nexthop_compat_mode` is 0.
fn gateways_of(route: &[u8]) -> impl Iterator<Item = IpAddr> {
    let several = find(route, ROUTE_HEADER, RTA_MULTIPATH).map_or(&[][..], |hops| hops.payload);
    let of_hops = next_hops(several).filter_map(|hop| find_ip(hop, NEXT_HOP_HEADER, RTA_GATEWAY));
    find_ip(route, ROUTE_HEADER, RTA_GATEWAY).into_iter().chain(of_hops)
}

/// The next hops of a route with several: each begins with its length (`struct rtnexthop`), and the next one is aligned.
fn next_hops(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let hop = rest.get(..length).filter(|hop| hop.len() >= NEXT_HOP_HEADER)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(hop)
    })
}

/// Deletes our routes, those with [`ROUTE_PROTOCOL`](crate::ROUTE_PROTOCOL), but for those to these VIPs. Returns how many
/// were deleted.
pub fn remove_routes(except: &BTreeSet<IpAddr>) -> Result<usize, Error> {
    let mut socket = socket()?;
    let routes = our_routes(&mut socket, except)?;
    let mut requests = Requests::default();
    for (position, route) in routes.iter().enumerate() {
        requests.unbind_route(position, route.to);
    }
    match requests.send(&mut socket)?.pop_first() {
        Some((_, error)) => Err(Error::during("delete our routes")(error.into())),
        None => Ok(routes.len()),
    }
}

/// How many routes [`remove_routes`] would delete. Writes nothing.
pub fn count_routes(except: &BTreeSet<IpAddr>) -> Result<usize, Error> {
    Ok(our_routes(&mut socket()?, except)?.len())
}

fn our_routes(socket: &mut Socket, except: &BTreeSet<IpAddr>) -> Result<Vec<LocalRoute>, Error> {
    let mut routes = local_routes(socket)?;
    routes.retain(|route| route.is_ours() && !except.contains(&route.to));
    Ok(routes)
}

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
        let mut request = request(&RouteNetlinkMessage::GetRoute(message), 0);
        let interface = |route: &[u8]| find(route, ROUTE_HEADER, RTA_OIF)?.u32().ok();
        match self.socket.get(&mut request, |reply| Ok(interface(reply.payload))) {
            // Whatever the kernel refuses with, ENETUNREACH mostly: it would not send the packet.
            Err(error) if error.errno().is_some() => Ok(None),
            outcome => outcome.map_err(Error::during("look up a route")),
        }
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::Emitable;
    use rtnetlink::packet_route::{
        address::AddressAttribute,
        route::{RouteAddress, RouteAttribute},
    };

    use super::*;

    fn bytes(message: &impl Emitable) -> Vec<u8> {
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        bytes
    }

    /// As the kernel lists it, with our mark.
    fn our_route() -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.destination_prefix_length = 32;
        message.header.table = TABLE_LOCAL;
        message.header.protocol = RouteProtocol::from(ROUTE_PROTOCOL);
        message.header.kind = RouteType::Local;
        message.attributes = vec![
            RouteAttribute::Destination(RouteAddress::Inet("10.96.0.1".parse().unwrap())),
            RouteAttribute::PrefSource(RouteAddress::Inet("192.0.2.1".parse().unwrap())),
            RouteAttribute::Oif(LOOPBACK),
        ];
        message
    }

    #[test]
    fn a_route_is_ours_by_protocol_table_type_prefix_and_interface() {
        let expected = LocalRoute {
            to: "10.96.0.1".parse().unwrap(),
            interface: LOOPBACK,
            protocol: RouteProtocol::from(ROUTE_PROTOCOL),
            source: Some("192.0.2.1".parse().unwrap()),
        };
        assert!(expected.is_ours());
        assert!(!LocalRoute { protocol: RouteProtocol::Kernel, ..expected }.is_ours());
        assert!(!LocalRoute { interface: 7, ..expected }.is_ours());
        assert_eq!(LocalRoute::from_message(&bytes(&our_route())), Some(expected));
        let spoilers: [fn(&mut RouteMessage); 4] = [
            |route| route.header.table = 254,
            |route| route.header.kind = RouteType::Unicast,
            |route| route.header.destination_prefix_length = 24,
            |route| {
                route.attributes.pop();
            },
        ];
        for (position, spoil) in spoilers.iter().enumerate() {
            let mut route = our_route();
            spoil(&mut route);
            assert_eq!(LocalRoute::from_message(&bytes(&route)), None, "spoiler {position}");
        }
    }

    #[test]
    fn on_a_point_to_point_link_the_local_address_counts() {
        let (local, peer) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let mut message = AddressMessage::default();
        message.attributes = vec![AddressAttribute::Address(peer), AddressAttribute::Local(local)];
        assert_eq!(InterfaceAddress::from_message(&bytes(&message)).map(|found| found.address), Some(local));
    }

    #[test]
    fn a_message_cut_anywhere_is_read_as_nothing_or_as_what_it_was() {
        let mut address = AddressMessage::default();
        address.attributes = vec![AddressAttribute::Local("192.0.2.1".parse().unwrap())];
        let (address, route) = (bytes(&address), bytes(&our_route()));
        for length in 0..address.len() {
            assert_eq!(InterfaceAddress::from_message(&address[..length]), None, "{length}");
        }
        let whole = LocalRoute::from_message(&route);
        for length in 0..route.len() {
            let cut = LocalRoute::from_message(&route[..length]);
            assert!(cut.is_none() || cut == whole, "{length}: {cut:?}");
        }
    }
}
