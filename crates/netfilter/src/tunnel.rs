//! The tunnel by which other nodes send to pods of this one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipvs::Family;

/// The address at the end of the tunnel, the same on every node. Our table makes it the destination of a
/// packet from another node that is for a pod of this one. The device has it. No network routes it: IPv4
/// link-local, and an IPv6 range of our own (RFC 4193; "kubipvs").
pub const fn end(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::new(169, 254, 73, 1)),
        Family::V6 => IpAddr::V6(Ipv6Addr::new(0xfd6b, 0x7562, 0x6970, 0x7673, 0, 0, 0, 1)),
    }
}

/// The device that unpacks what is sent there.
pub const fn device(family: Family) -> &'static str {
    match family {
        Family::V4 => "kube-ipvs-tun4",
        Family::V6 => "kube-ipvs-tun6",
    }
}

/// The kernel's module with devices of that kind.
pub const fn module(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipip",
        Family::V6 => "ip6_tunnel",
    }
}

/// The UDP port of generic UDP encapsulation, assigned by IANA.
pub const GUE_PORT: u16 = 6080;

/// The last four bytes of a pod's address, by which a packet that leaves the tunnel is known to be for it:
/// the whole of an IPv4 address.
pub const fn address_end(ip: IpAddr) -> Ipv4Addr {
    match ip {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(ip) => {
            let [.., one, two, three, four] = ip.octets();
            Ipv4Addr::new(one, two, three, four)
        }
    }
}
