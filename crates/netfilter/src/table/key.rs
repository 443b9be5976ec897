//! Elements as the kernel's sets hold them.

use std::{fmt, net::IpAddr};

use ipvs::{Family, Protocol, RealServerAddress, ServiceAddress};

use crate::{
    AllowedSource, ClusterIpFor, Element, HairpinFlow, HealthCheckPort, MaxSegmentSize, TunnelExit,
    nft::{
        element::{Bytes, Key},
        set::RawElement,
    },
    tunnel::address_end,
};

impl From<&Element> for Key {
    fn from(element: &Element) -> Self {
        let empty = Bytes::new();
        let start = match element {
            Element::Vip(ip)
            | Element::EndpointHere(ip)
            | Element::EndpointElsewhere(ip)
            | Element::TunnelSender(ip) => empty.append_address(*ip),
            Element::HealthCheckPort(check) => empty.append_port(Protocol::Tcp, check.port),
            Element::Restricted(to)
            | Element::ClusterIp(to)
            | Element::External(to)
            | Element::ExternalLocal(to)
            | Element::LocalClientsOnly(to)
            | Element::DirectReturn(to)
            | Element::ClusterIpFor(ClusterIpFor { to, .. })
            | Element::MaxSegmentSize(MaxSegmentSize { to, .. }) => empty.append_service(to),
            Element::TunnelExit(TunnelExit { to, pod }) => {
                empty.append_address_end(pod.ip).append_service(to)
            }
            Element::AllowedSource(source) => empty.append_service(&source.to).append_address(source.first),
            Element::Hairpin(flow) => {
                let at = ServiceAddress { protocol: flow.protocol, ip: flow.pod.ip, port: flow.pod.port };
                empty.append_service(&at).append_address(flow.pod.ip)
            }
        };
        let end = match element {
            Element::AllowedSource(source) => {
                Some(empty.append_service(&source.to).append_address(source.last))
            }
            _ => None,
        };
        let value = match element {
            Element::ClusterIpFor(ClusterIpFor { cluster_ip: at, .. })
            | Element::TunnelExit(TunnelExit { pod: at, .. }) => Some(empty.append_destination(at)),
            Element::MaxSegmentSize(MaxSegmentSize { bytes, .. }) => Some(Bytes::port(*bytes)),
            _ => None,
        };
        Self { start, end, value }
    }
}

/// The element that a set of ours shows; `None` if it cannot be ours: an unknown set or protocol, a wrong length, an
/// interval where none is allowed or in another field than the last, a hairpin whose two ends differ, an exit that leads
/// elsewhere than its key says.
pub(crate) fn element(set: &str, family: Family, raw: RawElement<'_>) -> Option<Element> {
    let RawElement { start, end, value } = raw;
    match (end, value) {
        (None, None) => plain_element(set, family, start),
        (Some(end), None) if set == Element::ALLOWED_SOURCES => {
            let (to, rest) = split_service(family, start)?;
            let (same, rest_of_end) = split_service(family, end)?;
            let (first, last) = (last_address(family, rest)?, last_address(family, rest_of_end)?);
            let source = AllowedSource { to, first, last };
            (to == same && first <= last).then_some(Element::AllowedSource(source))
        }
        (None, Some(value)) => mapped_element(set, family, start, value),
        (Some(_), _) => None,
    }
}

/// The element of a set without intervals.
fn plain_element(set: &str, family: Family, key: &[u8]) -> Option<Element> {
    let address = || last_address(family, key);
    let service = || {
        let (to, rest) = split_service(family, key)?;
        rest.is_empty().then_some(to)
    };
    match set {
        Element::VIPS => address().map(Element::Vip),
        Element::ENDPOINTS_HERE => address().map(Element::EndpointHere),
        Element::ENDPOINTS_ELSEWHERE => address().map(Element::EndpointElsewhere),
        Element::TUNNEL_SENDERS => address().map(Element::TunnelSender),
        Element::RESTRICTED => service().map(Element::Restricted),
        Element::CLUSTER_IPS => service().map(Element::ClusterIp),
        Element::EXTERNAL => service().map(Element::External),
        Element::EXTERNAL_LOCAL => service().map(Element::ExternalLocal),
        Element::LOCAL_CLIENTS_ONLY => service().map(Element::LocalClientsOnly),
        Element::DIRECT_RETURN => service().map(Element::DirectReturn),
        Element::HEALTH_CHECK_PORTS => {
            let (Protocol::Tcp, port, &[]) = split_port(key)? else { return None };
            Some(Element::HealthCheckPort(HealthCheckPort { family, port }))
        }
        Element::HAIRPIN => {
            let (to, rest) = split_service(family, key)?;
            let pod = RealServerAddress { ip: to.ip, port: to.port };
            let hairpin = HairpinFlow { protocol: to.protocol, pod };
            (last_address(family, rest)? == to.ip).then_some(Element::Hairpin(hairpin))
        }
        _ => None,
    }
}

/// The element of a map.
fn mapped_element(set: &str, family: Family, key: &[u8], value: &[u8]) -> Option<Element> {
    match set {
        Element::CLUSTER_IP_FOR => {
            let (to, &[]) = split_service(family, key)? else { return None };
            let cluster_ip = destination(family, value)?;
            Some(Element::ClusterIpFor(ClusterIpFor { to, cluster_ip }))
        }
        Element::MAX_SEGMENT_SIZES => {
            let (to, &[]) = split_service(family, key)? else { return None };
            let bytes = u16::from_be_bytes(value.try_into().ok()?);
            Some(Element::MaxSegmentSize(MaxSegmentSize { to, bytes }))
        }
        Element::TUNNEL_EXITS => {
            let (end, rest) = key.split_first_chunk::<4>()?;
            let (to, &[]) = split_service(family, rest)? else { return None };
            let pod = destination(family, value)?;
            let same = Bytes::new().append_address_end(pod.ip).as_ref() == end;
            same.then_some(Element::TunnelExit(TunnelExit { to, pod }))
        }
        _ => None,
    }
}

/// Writes an element in nft's syntax.
pub(crate) fn write(element: &Element, f: &mut impl fmt::Write) -> fmt::Result {
    match element {
        Element::Vip(ip)
        | Element::EndpointHere(ip)
        | Element::EndpointElsewhere(ip)
        | Element::TunnelSender(ip) => write!(f, "{ip}"),
        Element::HealthCheckPort(check) => write!(f, "tcp . {}", check.port),
        Element::Restricted(to)
        | Element::ClusterIp(to)
        | Element::External(to)
        | Element::ExternalLocal(to)
        | Element::LocalClientsOnly(to)
        | Element::DirectReturn(to) => write_service(to, f),
        Element::ClusterIpFor(ClusterIpFor { to, cluster_ip }) => {
            write_service(to, f)?;
            write!(f, " : {} . {}", cluster_ip.ip, cluster_ip.port)
        }
        Element::MaxSegmentSize(MaxSegmentSize { to, bytes }) => {
            write_service(to, f)?;
            write!(f, " : {bytes}")
        }
        Element::TunnelExit(TunnelExit { to, pod }) => {
            write!(f, "{} . ", address_end(pod.ip))?;
            write_service(to, f)?;
            write!(f, " : {} . {}", pod.ip, pod.port)
        }
        Element::AllowedSource(source) => {
            write_service(&source.to, f)?;
            write!(f, " . {}-{}", source.first, source.last)
        }
        Element::Hairpin(flow) => {
            let at = ServiceAddress { protocol: flow.protocol, ip: flow.pod.ip, port: flow.pod.port };
            write_service(&at, f)?;
            write!(f, " . {}", flow.pod.ip)
        }
    }
}

fn write_service(to: &ServiceAddress, f: &mut impl fmt::Write) -> fmt::Result {
    let protocol = match to.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
        // nft prints a protocol without a name like that.
        other => return write!(f, "{} . {} . {}", to.ip, other.number(), to.port),
    };
    write!(f, "{} . {protocol} . {}", to.ip, to.port)
}

/// An address with a port, as a map has it for a value.
fn destination(family: Family, bytes: &[u8]) -> Option<RealServerAddress> {
    let (ip, rest) = split_address(family, bytes)?;
    let &[high, low, 0, 0] = rest else { return None };
    Some(RealServerAddress { ip, port: u16::from_be_bytes([high, low]) })
}

fn split_service(family: Family, bytes: &[u8]) -> Option<(ServiceAddress, &[u8])> {
    let (ip, rest) = split_address(family, bytes)?;
    let (protocol, port, rest) = split_port(rest)?;
    Some((ServiceAddress { protocol, ip, port }, rest))
}

fn split_port(bytes: &[u8]) -> Option<(Protocol, u16, &[u8])> {
    let [protocol, 0, 0, 0, high, low, 0, 0, rest @ ..] = bytes else { return None };
    Some((Protocol::from_number(u16::from(*protocol))?, u16::from_be_bytes([*high, *low]), rest))
}

/// The only address in these bytes.
fn last_address(family: Family, bytes: &[u8]) -> Option<IpAddr> {
    let (ip, rest) = split_address(family, bytes)?;
    rest.is_empty().then_some(ip)
}

fn split_address(family: Family, bytes: &[u8]) -> Option<(IpAddr, &[u8])> {
    match family {
        Family::V4 => bytes.split_first_chunk::<4>().map(|(ip, rest)| (IpAddr::from(*ip), rest)),
        Family::V6 => bytes.split_first_chunk::<16>().map(|(ip, rest)| (IpAddr::from(*ip), rest)),
    }
}

#[cfg(test)]
mod tests;
