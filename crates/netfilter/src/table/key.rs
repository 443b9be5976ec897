//! Elements as the kernel's sets hold them.

use std::{fmt, net::IpAddr};

use ipvs::{Family, Protocol, RealServerAddress, ServiceAddress};

use crate::{
    AllowedSource, Element, HairpinFlow, HealthCheckPort,
    nft::key::{Bytes, Key},
};

impl From<&Element> for Key {
    fn from(element: &Element) -> Self {
        let empty = Bytes::new();
        let start = match element {
            Element::Vip(ip) => empty.append_address(*ip),
            Element::HealthCheckPort(check) => empty.append_port(Protocol::Tcp, check.port),
            Element::Restricted(to)
            | Element::ClusterIp(to)
            | Element::External(to)
            | Element::ExternalLocal(to)
            | Element::LocalClientsOnly(to) => empty.append_service(to),
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
        Self { start, end }
    }
}

/// The element with this key in this set; `None` if it cannot be ours: an unknown set or protocol, a wrong
/// length, an interval where none is allowed or in another field than the last, a hairpin whose two ends
/// differ.
pub(crate) fn element(set: &str, family: Family, start: &[u8], end: Option<&[u8]>) -> Option<Element> {
    match (set, end) {
        (Element::ALLOWED_SOURCES, Some(end)) => {
            let (to, rest) = split_service(family, start)?;
            let (same, rest_of_end) = split_service(family, end)?;
            let (first, last) = (last_address(family, rest)?, last_address(family, rest_of_end)?);
            let source = AllowedSource { to, first, last };
            (to == same && first <= last).then_some(Element::AllowedSource(source))
        }
        (_, Some(_)) | (Element::ALLOWED_SOURCES, None) => None,
        (Element::VIPS, None) => last_address(family, start).map(Element::Vip),
        (Element::HEALTH_CHECK_PORTS, None) => {
            let (Protocol::Tcp, port, &[]) = split_port(start)? else { return None };
            Some(Element::HealthCheckPort(HealthCheckPort { family, port }))
        }
        (_, None) => {
            let (to, rest) = split_service(family, start)?;
            match set {
                Element::RESTRICTED if rest.is_empty() => Some(Element::Restricted(to)),
                Element::CLUSTER_IPS if rest.is_empty() => Some(Element::ClusterIp(to)),
                Element::EXTERNAL if rest.is_empty() => Some(Element::External(to)),
                Element::EXTERNAL_LOCAL if rest.is_empty() => Some(Element::ExternalLocal(to)),
                Element::LOCAL_CLIENTS_ONLY if rest.is_empty() => Some(Element::LocalClientsOnly(to)),
                Element::HAIRPIN if last_address(family, rest)? == to.ip => {
                    let pod = RealServerAddress { ip: to.ip, port: to.port };
                    Some(Element::Hairpin(HairpinFlow { protocol: to.protocol, pod }))
                }
                _ => None,
            }
        }
    }
}

/// Writes an element's key in nft's syntax.
pub(crate) fn write(element: &Element, f: &mut impl fmt::Write) -> fmt::Result {
    match element {
        Element::Vip(ip) => write!(f, "{ip}"),
        Element::HealthCheckPort(check) => write!(f, "tcp . {}", check.port),
        Element::Restricted(to)
        | Element::ClusterIp(to)
        | Element::External(to)
        | Element::ExternalLocal(to)
        | Element::LocalClientsOnly(to) => write_service(to, f),
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
