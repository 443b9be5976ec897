//! The four requests that bind and unbind a VIP, and batches of them.

use std::{collections::BTreeMap, net::IpAddr};

use netlink::{Batch, Errno, FailedRequest, KernelError, Socket};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use rtnetlink::packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{
        AddressAttribute, AddressFlags, AddressHeader, AddressHeaderFlags, AddressMessage, AddressScope,
        CacheInfo,
    },
    route::{RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType},
};

use crate::{
    Error, LOOPBACK,
    message::{family, host_prefix, route_address},
};

/// The protocol number (`rtm_protocol`) and the metric of the routes that bind VIPs:
/// `ip route show table local proto 73` lists them. The kernel does not interpret numbers from 4 up;
/// neither include/uapi/linux/rtnetlink.h nor iproute2's rt_protos lists this one.
pub const ROUTE_PROTOCOL: u8 = 73;

/// `RT_TABLE_LOCAL`.
pub(crate) const TABLE_LOCAL: u8 = 255;

/// The lifetime of an address without an end (`INFINITY_LIFE_TIME`), otherwise in seconds.
const FOR_EVER: u32 = u32::MAX;

/// Errnos that mean that the VIP is bound already.
const BOUND: &[Errno] = &[Errno::EEXIST];

/// Errnos that mean that the VIP is not bound. For an address: IPv4, IPv6 on a device that never had an IPv6
/// address, the device gone. For a route: the last.
const UNBOUND: &[Errno] = &[Errno::EADDRNOTAVAIL, Errno::ENXIO, Errno::ENODEV, Errno::ESRCH];

/// Requests, each for the operation at a position.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    batch: Batch,
    /// For each request the position of its operation, and the errnos that are not failures.
    made_for: Vec<(usize, &'static [Errno])>,
}

impl Requests {
    /// `ip address replace VIP dev DEVICE`, which in IPv6 also makes one right that is there; IPv4 never changes the scope
    /// of one (`inet_rtm_newaddr`).
    pub(crate) fn bind_address(&mut self, operation: usize, vip: IpAddr, device: u32) {
        self.add(operation, &new_address(vip, device), NLM_F_CREATE | NLM_F_REPLACE, BOUND);
    }

    /// `ip address delete VIP/PREFIX dev DEVICE`. IPv4 disregards the prefix (`inet_rtm_deladdr`, as long
    /// as IFA_ADDRESS is not given), IPv6 insists on it.
    pub(crate) fn unbind_address(&mut self, operation: usize, vip: IpAddr, prefix: u8, device: u32) {
        let message = RouteNetlinkMessage::DelAddress(address(vip, prefix, device));
        self.add(operation, &message, 0, UNBOUND);
    }

    /// `ip route replace local VIP dev lo table local src SOURCE`, with our protocol and metric.
    pub(crate) fn bind_route(&mut self, operation: usize, vip: IpAddr, source: Option<IpAddr>) {
        let mut message = route(vip);
        message.header.scope = RouteScope::Host;
        message.attributes.push(RouteAttribute::Oif(LOOPBACK));
        message.attributes.extend(source.map(|source| RouteAttribute::PrefSource(route_address(source))));
        let message = RouteNetlinkMessage::NewRoute(message);
        self.add(operation, &message, NLM_F_CREATE | NLM_F_REPLACE, BOUND);
    }

    /// `ip route delete local VIP table local`: ours only, whatever its source.
    pub(crate) fn unbind_route(&mut self, operation: usize, vip: IpAddr) {
        let mut message = route(vip);
        message.header.scope = RouteScope::NoWhere;
        let message = RouteNetlinkMessage::DelRoute(message);
        self.add(operation, &message, 0, UNBOUND);
    }

    /// Sends all requests and returns the changes whose request was refused, with the kernel's answer.
    pub(crate) fn send(mut self, socket: &mut Socket) -> Result<BTreeMap<usize, KernelError>, Error> {
        let operation = "bind and unbind VIPs";
        let failures = socket.pipeline(&mut self.batch).map_err(Error::during(operation))?;
        let mut failed = BTreeMap::new();
        for FailedRequest { index, error } in failures {
            let Some((operation_at, benign)) = self.made_for.get(index) else { continue };
            if error.errno == Errno::EPERM {
                return Err(Error::during(operation)(error.into()));
            }
            if !benign.contains(&error.errno) {
                failed.insert(*operation_at, error);
            }
        }
        Ok(failed)
    }

    fn add(&mut self, operation: usize, message: &RouteNetlinkMessage, flags: u16, benign: &'static [Errno]) {
        self.batch.packet(message, flags);
        self.made_for.push((operation, benign));
    }
}

/// The message that adds an address to a device, for good, and so that it is the source of nothing but what goes to
/// itself: the kernel takes an address from another device than that by which a packet leaves only if its scope is not
/// `link` (IPv4, `in_dev_select_addr` in net/ipv4/devinet.c), or prefers any that is not deprecated (IPv6, rule 3 in
/// `ipv6_get_saddr_eval` in net/ipv6/addrconf.c).
pub(crate) fn new_address(ip: IpAddr, device: u32) -> RouteNetlinkMessage {
    let mut message = address(ip, host_prefix(ip), device);
    message.attributes.push(AddressAttribute::Address(ip));
    match ip {
        // Not `host`, for which `arp_ignore` 3 does not answer neighbours.
        IpAddr::V4(_) => message.header.scope = AddressScope::Link,
        IpAddr::V6(_) => {
            // Usable at once, whatever the device thinks of duplicate detection. And no prefix route, for
            // whose sake the kernel would search all addresses (`check_cleanup_prefix_route`).
            let flags = AddressFlags::Nodad | AddressFlags::Noprefixroute;
            let mut lifetimes = CacheInfo::default();
            lifetimes.ifa_preferred = 0;
            lifetimes.ifa_valid = FOR_EVER;
            message.attributes.push(AddressAttribute::CacheInfo(lifetimes));
            message.attributes.push(AddressAttribute::Flags(flags));
        }
    }
    RouteNetlinkMessage::NewAddress(message)
}

/// Whether an address is there for good and never the source of what goes elsewhere, as [`new_address`] makes it. The
/// kernel shows both in the flags as soon as the lifetimes are set.
pub(crate) fn is_as_made(found: &AddressHeader) -> bool {
    found.flags.contains(AddressHeaderFlags::Permanent)
        && match found.family {
            AddressFamily::Inet => matches!(found.scope, AddressScope::Link | AddressScope::Host),
            _ => found.flags.contains(AddressHeaderFlags::Deprecated),
        }
}

fn address(vip: IpAddr, prefix: u8, device: u32) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(vip);
    message.header.prefix_len = prefix;
    message.header.index = device;
    message.attributes.push(AddressAttribute::Local(vip));
    message
}

fn route(vip: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(vip);
    message.header.destination_prefix_length = host_prefix(vip);
    message.header.table = TABLE_LOCAL;
    message.header.kind = RouteType::Local;
    message.header.protocol = RouteProtocol::from(ROUTE_PROTOCOL);
    message.attributes.push(RouteAttribute::Destination(route_address(vip)));
    message.attributes.push(RouteAttribute::Priority(ROUTE_PROTOCOL.into()));
    message
}

#[cfg(test)]
mod tests {
    use netlink::{Protocol, Transcript};

    use super::*;

    fn encoded(fill: impl FnOnce(&mut Requests)) -> Vec<u8> {
        let mut requests = Requests::default();
        fill(&mut requests);
        requests.batch.as_bytes().to_vec()
    }

    fn message(kind: u16, flags: u16, body: &[&[u8]]) -> Vec<u8> {
        let body = body.concat();
        let length = u32::try_from(16 + body.len()).unwrap();
        let kind_and_flags = [kind.to_ne_bytes(), flags.to_ne_bytes()].concat();
        [&length.to_ne_bytes()[..], &kind_and_flags, &[0; 8], &body].concat()
    }

    fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + payload.len()).unwrap();
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), payload].concat()
    }

    #[test]
    fn an_ipv6_vip_is_deprecated_without_duplicate_detection_or_prefix_route() {
        let vip = "fd00::1".parse().unwrap();
        let octets = [&[0xfd][..], &[0; 14], &[1]].concat();
        let expected = message(
            20, // RTM_NEWADDR
            0x501,
            &[
                &[10, 128, 0, 0],
                &7u32.to_ne_bytes(),
                &attribute(2, &octets),                                     // IFA_LOCAL
                &attribute(1, &octets),                                     // IFA_ADDRESS
                &attribute(6, &[&[0; 4][..], &[255; 4], &[0; 8]].concat()), // IFA_CACHEINFO: preferred, valid
                &attribute(8, &0x202u32.to_ne_bytes()),                     // IFA_FLAGS: NODAD, NOPREFIXROUTE
            ],
        );
        assert_eq!(encoded(|requests| requests.bind_address(0, vip, 7)), expected);
    }

    #[test]
    fn an_ipv4_address_has_the_scope_of_a_link() {
        let vip = "10.96.0.1".parse().unwrap();
        let octets = [10, 96, 0, 1];
        let expected = message(
            20, // RTM_NEWADDR
            0x501,
            &[
                &[2, 32, 0, 253],
                &7u32.to_ne_bytes(),
                &attribute(2, &octets), // IFA_LOCAL
                &attribute(1, &octets), // IFA_ADDRESS
            ],
        );
        assert_eq!(encoded(|requests| requests.bind_address(0, vip, 7)), expected);
    }

    #[test]
    fn an_address_is_as_made_if_it_lasts_and_is_not_a_source() {
        const PERMANENT: u8 = 0x80;
        const DEPRECATED: u8 = 0x20;
        let found = |family, flags, scope| {
            is_as_made(&AddressHeader::parse(&[family, 128, flags, scope, 7, 0, 0, 0]).unwrap())
        };
        for scope in [253, 254] {
            assert!(found(2, PERMANENT, scope));
            assert!(!found(2, 0, scope), "it will go");
        }
        assert!(!found(2, PERMANENT | DEPRECATED, 0), "IPv4 disregards that it is deprecated");
        assert!(found(10, PERMANENT | DEPRECATED, 0));
        assert!(!found(10, PERMANENT, 0));
        assert!(!found(10, DEPRECATED, 0), "it will go");
    }

    #[test]
    fn an_ipv4_address_is_deleted_by_ifa_local_alone() {
        let vip = "10.96.0.1".parse().unwrap();
        let expected = message(21, 1, &[&[2, 24, 0, 0], &7u32.to_ne_bytes(), &attribute(2, &[10, 96, 0, 1])]);
        assert_eq!(encoded(|requests| requests.unbind_address(0, vip, 24, 7)), expected);
    }

    #[test]
    fn a_route_is_replaced_by_its_own_protocol_and_metric_and_goes_by_lo() {
        let (vip, source) = ("10.96.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap());
        let expected = message(
            24, // RTM_NEWROUTE
            0x501,
            &[
                &[2, 32, 0, 0, 255, 73, 254, 2], // table local, our protocol, scope host, type local
                &0u32.to_ne_bytes(),
                &attribute(1, &[10, 96, 0, 1]),      // RTA_DST
                &attribute(6, &73u32.to_ne_bytes()), // RTA_PRIORITY
                &attribute(4, &1u32.to_ne_bytes()),  // RTA_OIF
                &attribute(7, &[192, 0, 2, 1]),      // RTA_PREFSRC
            ],
        );
        assert_eq!(encoded(|requests| requests.bind_route(0, vip, Some(source))), expected);
    }

    #[test]
    fn a_refused_vip_has_the_kernels_own_words() {
        let transcript = Transcript::default();
        let words = b"Invalid prefsrc address\0";
        // struct nlmsgerr with the header of the request alone, and NLMSGERR_ATTR_MSG: capped, with TLVs.
        let error = [&(-(Errno::EINVAL as i32)).to_ne_bytes()[..], &[0; 16], &attribute(1, words)].concat();
        let mut answer = message(2, 0x300, &[&error]);
        answer.splice(8..12, 1u32.to_ne_bytes());
        transcript.push(&answer);
        let mut requests = Requests::default();
        requests.bind_route(7, "10.96.0.1".parse().unwrap(), Some("203.0.113.5".parse().unwrap()));
        let refused =
            requests.send(&mut transcript.replay(|| Socket::open(Protocol::Route)).unwrap()).unwrap();
        let refused_with: Vec<_> =
            refused.iter().map(|(operation, error)| (*operation, error.to_string())).collect();
        assert_eq!(refused_with, [(7, "EINVAL (Invalid argument): Invalid prefsrc address".to_owned())]);
    }

    #[test]
    fn only_our_route_is_deleted() {
        let vip = "10.96.0.1".parse().unwrap();
        let expected = message(
            25, // RTM_DELROUTE
            1,
            &[
                &[2, 32, 0, 0, 255, 73, 255, 2], // scope nowhere: any
                &0u32.to_ne_bytes(),
                &attribute(1, &[10, 96, 0, 1]),
                &attribute(6, &73u32.to_ne_bytes()),
            ],
        );
        assert_eq!(encoded(|requests| requests.unbind_route(0, vip)), expected);
    }
}
