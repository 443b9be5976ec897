//! Decoding of replies. Each function takes the attributes of one message.
//!
//! Unknown attributes are skipped, as the kernel adds some now and then. Everything else that is not
//! understood is an error of that entry alone.

use std::net::IpAddr;

use netlink::{Attribute, Error, attributes, find};

use super::uapi::{self, dest, info, message, service, stats};
use crate::{
    Family, Forwarding, Info, ObservedRealServer, ObservedVirtualServer, Protocol, RealServer,
    RealServerAddress, Scheduler, ServiceAddress, ServiceFlags, Stats, Timeouts, Tunnel, TunnelKind,
    VirtualServer, VirtualServerId,
};

/// The entry of a GET_SERVICE reply.
pub(super) fn virtual_server(reply: &[u8]) -> Result<ObservedVirtualServer, Error> {
    let (mut protocol, mut address, mut port, mut mark) = (0, None, 0, None);
    let (mut family, mut scheduler, mut netmask) = (None, None, None);
    let (mut flags, mut timeout, mut engine) = (0, 0, None);
    let (mut narrow, mut wide) = (&[][..], &[][..]);
    for attribute in attributes(container(reply, message::SERVICE)?) {
        let attribute = attribute?;
        match attribute.kind {
            service::AF => family = Some(address_family(&attribute)?),
            service::PROTOCOL => protocol = attribute.u16()?,
            service::ADDR => address = Some(attribute),
            service::PORT => port = attribute.u16_be()?,
            service::FWMARK => mark = Some(attribute.u32()?),
            service::SCHED_NAME => scheduler = Some(self::scheduler(&attribute)?),
            // struct ip_vs_flags: the flags, then a mask that says nothing in a reply.
            service::FLAGS => flags = attribute.u32()?,
            service::TIMEOUT => timeout = attribute.u32()?,
            service::NETMASK => netmask = Some(attribute),
            service::PE_NAME => engine = Some(attribute.string()?).filter(|name| !name.is_empty()),
            service::STATS => narrow = attribute.payload,
            service::STATS64 => wide = attribute.payload,
            _ => {}
        }
    }
    let family = family.ok_or_else(|| missing("address family"))?;
    let id = match mark {
        Some(mark) => VirtualServerId::Mark { family, mark },
        None => VirtualServerId::Address(ServiceAddress {
            protocol: Protocol::from_number(protocol)
                .ok_or_else(|| malformed(format!("IPVS does not balance protocol {protocol}")))?,
            ip: ip(&address.ok_or_else(|| missing("address"))?, family)?,
            port,
        }),
    };
    let config = VirtualServer {
        id,
        scheduler: scheduler.ok_or_else(|| missing("scheduler"))?,
        flags: ServiceFlags::from_bits_retain(flags & !uapi::HASHED),
        timeout,
        prefix_length: netmask
            .map_or(Ok(family.address_bits()), |netmask| prefix_length(&netmask, family))?,
        persistence_engine: engine.map(Into::into),
    };
    Ok(ObservedVirtualServer { config, stats: counters(narrow, wide)? })
}

/// The entry of a GET_DEST reply about a virtual server of this family.
pub(super) fn real_server(reply: &[u8], of: Family) -> Result<ObservedRealServer, Error> {
    let (mut family, mut address, mut port, mut forwarding) = (of, None, 0, None);
    let (mut weight, mut upper_threshold, mut lower_threshold) = (0, 0, 0);
    let (mut active_connections, mut inactive_connections, mut persistent_connections) = (0, 0, 0);
    let mut tunnel = Tunnel::default();
    let (mut narrow, mut wide) = (&[][..], &[][..]);
    for attribute in attributes(container(reply, message::DEST)?) {
        let attribute = attribute?;
        match attribute.kind {
            dest::ADDR => address = Some(attribute),
            dest::PORT => port = attribute.u16_be()?,
            dest::FWD_METHOD => forwarding = Some(self::forwarding(attribute.u32()?)?),
            dest::WEIGHT => weight = attribute.u32()?,
            dest::U_THRESH => upper_threshold = attribute.u32()?,
            dest::L_THRESH => lower_threshold = attribute.u32()?,
            dest::ACTIVE_CONNS => active_connections = attribute.u32()?,
            dest::INACT_CONNS => inactive_connections = attribute.u32()?,
            dest::PERSIST_CONNS => persistent_connections = attribute.u32()?,
            dest::ADDR_FAMILY => family = address_family(&attribute)?,
            dest::TUN_TYPE => tunnel.kind = tunnel_kind(attribute.u8()?)?,
            dest::TUN_PORT => tunnel.port = attribute.u16_be()?,
            dest::TUN_FLAGS => tunnel.flags = attribute.u16()?,
            dest::STATS => narrow = attribute.payload,
            dest::STATS64 => wide = attribute.payload,
            _ => {}
        }
    }
    let config = RealServer {
        address: RealServerAddress { ip: ip(&address.ok_or_else(|| missing("address"))?, family)?, port },
        forwarding: forwarding.ok_or_else(|| missing("forwarding method"))?,
        weight,
        upper_threshold,
        lower_threshold,
        tunnel,
    };
    Ok(ObservedRealServer {
        config,
        active_connections,
        inactive_connections,
        persistent_connections,
        stats: counters(narrow, wide)?,
    })
}

/// The answer to GET_CONFIG.
pub(super) fn timeouts(reply: &[u8]) -> Result<Timeouts, Error> {
    let mut timeouts = Timeouts::default();
    for attribute in attributes(reply) {
        let attribute = attribute?;
        match attribute.kind {
            message::TIMEOUT_TCP => timeouts.tcp = attribute.u32()?,
            message::TIMEOUT_TCP_FIN => timeouts.tcp_fin = attribute.u32()?,
            message::TIMEOUT_UDP => timeouts.udp = attribute.u32()?,
            _ => {}
        }
    }
    Ok(timeouts)
}

/// The answer to GET_INFO.
pub(super) fn info(reply: &[u8]) -> Result<Info, Error> {
    let mut info = Info { version: (0, 0, 0), connection_table_size: 0 };
    for attribute in attributes(reply) {
        let attribute = attribute?;
        match attribute.kind {
            info::VERSION => {
                let [_, major, minor, patch] = attribute.u32()?.to_be_bytes();
                info.version = (major, minor, patch);
            }
            info::CONN_TAB_SIZE => info.connection_table_size = attribute.u32()?,
            _ => {}
        }
    }
    Ok(info)
}

/// Reads the counters from one of their two containers; kernels since 4.1 send both. Those of the narrow one have 32
/// bits, except for the bytes: they overflow within minutes on a fast link.
fn counters(narrow: &[u8], wide: &[u8]) -> Result<Stats, Error> {
    let mut read = Stats::default();
    for attribute in attributes(if wide.is_empty() { narrow } else { wide }) {
        let attribute = attribute?;
        let counter = match attribute.kind {
            stats::CONNS => &mut read.connections,
            stats::INPKTS => &mut read.packets_in,
            stats::OUTPKTS => &mut read.packets_out,
            stats::INBYTES => &mut read.bytes_in,
            stats::OUTBYTES => &mut read.bytes_out,
            stats::CPS => &mut read.connections_per_second,
            stats::INPPS => &mut read.packets_in_per_second,
            stats::OUTPPS => &mut read.packets_out_per_second,
            stats::INBPS => &mut read.bytes_in_per_second,
            stats::OUTBPS => &mut read.bytes_out_per_second,
            _ => continue,
        };
        *counter = if attribute.payload.len() < 8 { attribute.u32()?.into() } else { attribute.u64()? };
    }
    Ok(read)
}

/// The payload of the attribute `kind`.
fn container(reply: &[u8], kind: u16) -> Result<&[u8], Error> {
    let found = find(reply, kind).ok_or_else(|| malformed(format!("no attribute {kind}")))?;
    Ok(found.payload)
}

/// Replies carry 16 bytes for either family, an IPv4 address in the first four.
fn ip(attribute: &Attribute<'_>, family: Family) -> Result<IpAddr, Error> {
    match family {
        Family::V4 => attribute.array::<4>().map(IpAddr::from),
        Family::V6 => attribute.array::<16>().map(IpAddr::from),
    }
}

/// For IPv4 a mask in network order, for IPv6 a prefix length in host order.
fn prefix_length(netmask: &Attribute<'_>, family: Family) -> Result<u8, Error> {
    match family {
        Family::V4 => Ok(u8::try_from(netmask.u32_be()?.leading_ones()).unwrap_or(32)),
        Family::V6 => u8::try_from(netmask.u32()?).map_err(|_| malformed("prefix length above 255".into())),
    }
}

fn scheduler(attribute: &Attribute<'_>) -> Result<Scheduler, Error> {
    attribute.string()?.parse().map_err(|error: crate::InvalidScheduler| malformed(error.to_string()))
}

fn address_family(attribute: &Attribute<'_>) -> Result<Family, Error> {
    match attribute.u16()? {
        uapi::AF_INET => Ok(Family::V4),
        uapi::AF_INET6 => Ok(Family::V6),
        other => Err(malformed(format!("address family {other}"))),
    }
}

fn forwarding(method: u32) -> Result<Forwarding, Error> {
    use Forwarding::{Bypass, Local, Masquerade, Route, Tunnel};
    let number = method & uapi::FORWARDING_MASK;
    let known = [Masquerade, Local, Tunnel, Route, Bypass].into_iter().find(|known| *known as u32 == number);
    known.ok_or_else(|| malformed(format!("forwarding method {number}")))
}

fn tunnel_kind(number: u8) -> Result<TunnelKind, Error> {
    let known = [TunnelKind::Ipip, TunnelKind::Gue, TunnelKind::Gre];
    let known = known.into_iter().find(|known| *known as u8 == number);
    known.ok_or_else(|| malformed(format!("tunnel type {number}")))
}

fn missing(what: &str) -> Error {
    malformed(format!("an entry without {what}"))
}

fn malformed(what: String) -> Error {
    Error::Malformed { what }
}

#[cfg(test)]
mod tests;
