//! Reading addresses and our routes.

use std::net::IpAddr;

use netlink::{Batch, Errno, Socket};
use netlink_packet_core::Parseable;
use rtnetlink::packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteType},
};

use crate::{
    Error, LOOPBACK, ROUTE_PROTOCOL,
    request::{TABLE_LOCAL, family, host_prefix, packet},
};

const FAMILIES: [AddressFamily; 2] = [AddressFamily::Inet, AddressFamily::Inet6];

/// An address of some interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceAddress {
    pub(crate) interface: u32,
    pub(crate) address: IpAddr,
    pub(crate) prefix: u8,
}

impl InterfaceAddress {
    pub(crate) fn is_link_local_v6(&self) -> bool {
        matches!(self.address, IpAddr::V6(address) if address.is_unicast_link_local())
    }

    fn of(message: &AddressMessage) -> Option<Self> {
        let mut address = None;
        for attribute in &message.attributes {
            match attribute {
                // On a point-to-point link IFA_ADDRESS is the peer's, and IFA_LOCAL ours.
                AddressAttribute::Local(local) => address = Some(*local),
                AddressAttribute::Address(other) => address = address.or(Some(*other)),
                _ => {}
            }
        }
        Some(Self { interface: message.header.index, address: address?, prefix: message.header.prefix_len })
    }
}

/// One of our routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VipRoute {
    pub(crate) vip: IpAddr,
    pub(crate) source: Option<IpAddr>,
}

impl VipRoute {
    fn of(message: &RouteMessage) -> Option<Self> {
        let header = &message.header;
        let (mut vip, mut source, mut interface) = (None, None, None);
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(destination) => vip = ip(destination),
                RouteAttribute::PrefSource(address) => source = ip(address),
                RouteAttribute::Oif(index) => interface = Some(*index),
                _ => {}
            }
        }
        let vip = vip?;
        let ours = header.protocol == RouteProtocol::from(ROUTE_PROTOCOL)
            && header.table == TABLE_LOCAL
            && header.kind == RouteType::Local
            && header.destination_prefix_length == host_prefix(vip)
            && header.address_family == family(vip)
            && interface == Some(LOOPBACK);
        ours.then_some(Self { vip, source })
    }
}

/// The addresses of every interface.
pub(crate) fn addresses(socket: &mut Socket) -> Result<Vec<InterfaceAddress>, Error> {
    let mut found = Vec::new();
    for family in FAMILIES {
        let mut request = AddressMessage::default();
        request.header.family = family;
        found.extend(dump(socket, RouteNetlinkMessage::GetAddress(request), "read addresses", |payload| {
            AddressMessage::parse(payload)
                .map(|message| InterfaceAddress::of(&message).filter(|_| message.header.family == family))
        })?);
    }
    Ok(found)
}

/// Our routes.
pub(crate) fn routes(socket: &mut Socket) -> Result<Vec<VipRoute>, Error> {
    let mut found = Vec::new();
    for family in FAMILIES {
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        request.header.table = TABLE_LOCAL;
        request.header.kind = RouteType::Local;
        request.header.protocol = RouteProtocol::from(ROUTE_PROTOCOL);
        found.extend(dump(socket, RouteNetlinkMessage::GetRoute(request), "read routes", |payload| {
            RouteMessage::parse(payload)
                .map(|message| VipRoute::of(&message).filter(|_| message.header.address_family == family))
        })?);
    }
    Ok(found)
}

/// A family that the kernel lacks has no entries, and neither has a table that was never written to.
fn dump<T, E: std::fmt::Display>(
    socket: &mut Socket,
    request: RouteNetlinkMessage,
    operation: &'static str,
    decode: impl Fn(&[u8]) -> Result<Option<T>, E>,
) -> Result<Vec<T>, Error> {
    let mut batch = Batch::default();
    batch.packet(packet(request, 0));
    let found = socket.dump(&mut batch, |reply| {
        decode(reply.payload).map_err(|error| netlink::Error::Malformed { what: error.to_string() })
    });
    match found {
        Ok(entries) => Ok(entries.into_iter().flatten().collect()),
        Err(error) => match error.errno() {
            Some(Errno::EAFNOSUPPORT | Errno::EOPNOTSUPP | Errno::ENOENT) => Ok(Vec::new()),
            _ => Err(Error::of(operation)(error)),
        },
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let expected =
            VipRoute { vip: "10.96.0.1".parse().unwrap(), source: Some("192.0.2.1".parse().unwrap()) };
        assert_eq!(VipRoute::of(&our_route()), Some(expected));
        let spoilers: [fn(&mut RouteMessage); 5] = [
            |route| route.header.protocol = RouteProtocol::Kernel,
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
            assert_eq!(VipRoute::of(&route), None, "spoiler {position}");
        }
    }

    #[test]
    fn on_a_point_to_point_link_the_local_address_counts() {
        let (local, peer) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let mut message = AddressMessage::default();
        message.attributes = vec![AddressAttribute::Address(peer), AddressAttribute::Local(local)];
        assert_eq!(InterfaceAddress::of(&message).map(|found| found.address), Some(local));
    }
}
