//! Rtnetlink messages: made by rtnetlink, and read by hand.
//!
//! A message describes an object completely, in every shape that a device or a route of any kind can have. Only the few
//! attributes that matter here are read, so that nothing else in it can do harm.

use std::net::IpAddr;

use netlink::{Attribute, Batch, Errno, Protocol, Socket, if_exists};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage, route::RouteAddress};

use crate::Error;

/// The length of `struct ifinfomsg`.
pub(crate) const LINK_HEADER: usize = 16;
/// The length of `struct ifaddrmsg`.
const ADDRESS_HEADER: usize = 8;
/// The length of `struct rtmsg`.
pub(crate) const ROUTE_HEADER: usize = 12;
/// The length of `struct rtnexthop`.
pub(crate) const NEXT_HOP_HEADER: usize = 8;
/// The length of `struct netconfmsg`, up to the first attribute.
pub(crate) const NETCONF_HEADER: usize = 4;

// Attributes, include/uapi/linux/{if_link,if_addr,rtnetlink,netconf}.h.
pub(crate) const IFLA_IFNAME: u16 = 3;
pub(crate) const IFLA_MTU: u16 = 4;
pub(crate) const IFLA_LINKINFO: u16 = 18;
pub(crate) const IFLA_INFO_KIND: u16 = 1;
pub(crate) const IFLA_INFO_DATA: u16 = 2;
pub(crate) const IFLA_IPTUN_LOCAL: u16 = 2;
pub(crate) const IFLA_STATS64: u16 = 23;
pub(crate) const IFLA_AF_SPEC: u16 = 26;
pub(crate) const AF_INET: u16 = 2;
pub(crate) const IFLA_INET_CONF: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
pub(crate) const RTA_DST: u16 = 1;
pub(crate) const RTA_OIF: u16 = 4;
pub(crate) const RTA_GATEWAY: u16 = 5;
pub(crate) const RTA_PREFSRC: u16 = 7;
pub(crate) const RTA_MULTIPATH: u16 = 9;
pub(crate) const NETCONFA_IFINDEX: u16 = 1;

/// The first attribute of a kind behind a header of that length. What cannot be read counts as not there.
pub(crate) fn find(message: &[u8], header: usize, kind: u16) -> Option<Attribute<'_>> {
    netlink::find(message.get(header..)?, kind)
}

/// The address in such an attribute, of the family that its length implies.
pub(crate) fn find_ip(message: &[u8], header: usize, kind: u16) -> Option<IpAddr> {
    let bytes = find(message, header, kind)?.payload;
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// The address that such a message is about. On a point-to-point link IFA_ADDRESS is the peer's, and IFA_LOCAL ours.
pub(crate) fn local_address(message: &[u8]) -> Option<IpAddr> {
    [IFA_LOCAL, IFA_ADDRESS].into_iter().find_map(|kind| find_ip(message, ADDRESS_HEADER, kind))
}

/// A route socket whose dumps the kernel filters where it can.
pub(crate) fn socket() -> Result<Socket, Error> {
    let mut socket = Socket::open(Protocol::Route).map_err(Error::during("open a socket"))?;
    socket.filter_dumps();
    Ok(socket)
}

/// A batch of one request.
pub(crate) fn request(message: &RouteNetlinkMessage, flags: u16) -> Batch {
    let mut batch = Batch::default();
    batch.packet(message, flags);
    batch
}

/// Executes one request that is answered by an acknowledgement alone.
pub(crate) fn execute(
    socket: &mut Socket,
    message: &RouteNetlinkMessage,
    flags: u16,
) -> Result<(), netlink::Error> {
    socket.execute(&mut request(message, flags))
}

pub(crate) fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

/// The length of a prefix that is one address.
pub(crate) fn host_prefix(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

pub(crate) fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    }
}

/// Reads a table. One of a family that the kernel lacks has no entries, nor has one that was never written to.
pub(crate) fn dump<T>(
    socket: &mut Socket,
    message: &RouteNetlinkMessage,
    operation: &'static str,
    mut decode: impl FnMut(&[u8]) -> Option<T>,
) -> Result<Vec<T>, Error> {
    const ABSENT: &[Errno] = &[Errno::EAFNOSUPPORT, Errno::EOPNOTSUPP, Errno::ENOENT];
    let entries = socket.dump(&mut request(message, 0), |reply| Ok(decode(reply.payload)));
    let entries = if_exists(entries, ABSENT).map_err(Error::during(operation))?;
    Ok(entries.unwrap_or_default())
}
