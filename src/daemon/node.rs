//! What this node can do, and how it is seen from outside.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    path::Path,
};

use ipvs::Family;

/// The families that the kernel serves here: IPv4, and IPv6 unless it is not built in or switched off.
pub(super) fn families() -> BTreeSet<Family> {
    let built_in = Path::new("/proc/net/if_inet6").exists();
    let disabled = fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    let switched_off = disabled.is_ok_and(|value| value.trim() == "1");
    let ipv6 = (built_in && !switched_off).then_some(Family::V6);
    [Family::V4].into_iter().chain(ipv6).collect()
}

/// In the range for documentation, at an end of it that even documentation does not use.
const UNKNOWN_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0x0db8, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xfffe);

/// The addresses that this node has towards the outside, as the kernel picks them: the source of a
/// packet to an address that can only be reached by the default route. Nothing is sent. A family
/// without such a route has none.
pub(super) fn outward_addresses() -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
    // Documentation addresses (RFC 5737, RFC 3849): routed nowhere in particular.
    let ipv4 = source_towards(Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into());
    let ipv6 = source_towards(Ipv6Addr::UNSPECIFIED.into(), UNKNOWN_V6.into());
    let ipv4 = ipv4.and_then(|ip| if let IpAddr::V4(ip) = ip { Some(ip) } else { None });
    let ipv6 = ipv6.and_then(|ip| if let IpAddr::V6(ip) = ip { Some(ip) } else { None });
    (ipv4, ipv6)
}

fn source_towards(any: IpAddr, destination: IpAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((destination, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
