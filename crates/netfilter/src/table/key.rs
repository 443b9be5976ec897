//! Elements as the kernel's sets hold them: the fields of the key, each filled up to four bytes.

use std::{fmt, net::IpAddr};

use ipvs::{Family, Protocol, RealServerAddress, ServiceAddress};

use crate::{AllowedSource, Element, HairpinFlow, HealthCheckPort};

/// The bytes of one end of a key: at most two IPv6 addresses, a protocol and a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes {
    bytes: [u8; 40],
    length: usize,
}

/// A key. In an interval set it has two ends, both included; fields that are not intervals are the same in
/// both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) start: Bytes,
    pub(crate) end: Option<Bytes>,
}

impl Bytes {
    const fn new() -> Self {
        Self { bytes: [0; 40], length: 0 }
    }

    fn append(mut self, field: &[u8]) -> Self {
        let end = self.length + field.len();
        if let Some(space) = self.bytes.get_mut(self.length..end) {
            space.copy_from_slice(field);
        }
        self.length = end.next_multiple_of(4);
        self
    }

    fn append_address(self, ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => self.append(&ip.octets()),
            IpAddr::V6(ip) => self.append(&ip.octets()),
        }
    }

    fn append_port_of(self, protocol: Protocol, port: u16) -> Self {
        self.append(&[protocol.number()]).append(&port.to_be_bytes())
    }

    /// The three fields that name a virtual server.
    fn append_service(self, to: &ServiceAddress) -> Self {
        self.append_address(to.ip).append_port_of(to.protocol, to.port)
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl From<&Element> for Key {
    fn from(element: &Element) -> Self {
        let empty = Bytes::new();
        let start = match element {
            Element::Vip(ip) => empty.append_address(*ip),
            Element::HealthCheckPort(check) => empty.append_port_of(Protocol::Tcp, check.port),
            Element::Restricted(to)
            | Element::ClusterIp(to)
            | Element::External(to)
            | Element::ExternalLocal(to) => empty.append_service(to),
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
        | Element::ExternalLocal(to) => write_service(to, f),
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hairpin(protocol: Protocol, pod: &str) -> Element {
        let pod: std::net::SocketAddr = pod.parse().unwrap();
        Element::Hairpin(HairpinFlow { protocol, pod: RealServerAddress { ip: pod.ip(), port: pod.port() } })
    }

    #[test]
    fn the_protocol_lies_in_its_first_byte_and_the_port_in_network_order() {
        let key = Key::from(&hairpin(Protocol::Tcp, "10.0.0.1:80"));
        assert_eq!(key.start.as_ref(), [10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0, 10, 0, 0, 1]);
    }

    #[test]
    fn the_longest_key_fits() {
        assert_eq!(Key::from(&hairpin(Protocol::Sctp, "[fd00::1]:65535")).start.as_ref().len(), 40);
    }

    #[test]
    fn a_hairpin_between_two_pods_is_not_ours() {
        let mut key = Key::from(&hairpin(Protocol::Tcp, "10.0.0.1:80")).start.as_ref().to_vec();
        assert!(element("hairpin", Family::V4, &key, None).is_some());
        key[15] = 2;
        assert_eq!(element("hairpin", Family::V4, &key, None), None);
    }

    #[test]
    fn one_key_is_another_element_in_each_set() {
        let address = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 0, 0, 1].into(), port: 80 };
        let key = Key::from(&Element::ClusterIp(address));
        let element = |set| element(set, Family::V4, key.start.as_ref(), None);
        assert_eq!(element("cluster-ips"), Some(Element::ClusterIp(address)));
        assert_eq!(element("external"), Some(Element::External(address)));
        assert_eq!(element("hairpin"), None);
        assert_eq!(element("another"), None);
    }

    fn source(first: &str, last: &str) -> Element {
        let to = ServiceAddress { protocol: Protocol::Tcp, ip: [192, 0, 2, 1].into(), port: 443 };
        let [first, last] = [first, last].map(|ip| ip.parse().unwrap());
        Element::AllowedSource(AllowedSource { to, first, last })
    }

    #[test]
    fn allowed_clients_are_an_interval_in_the_last_field() {
        let key = Key::from(&source("10.0.0.0", "10.255.255.255"));
        let [start, end] = [key.start.as_ref(), key.end.as_ref().unwrap().as_ref()];
        assert_eq!(start, [192, 0, 2, 1, 6, 0, 0, 0, 1, 187, 0, 0, 10, 0, 0, 0]);
        assert_eq!(end, [192, 0, 2, 1, 6, 0, 0, 0, 1, 187, 0, 0, 10, 255, 255, 255]);
        let read = |start, end| element("allowed-sources", Family::V4, start, end);
        assert_eq!(read(start, Some(end)), Some(source("10.0.0.0", "10.255.255.255")));
        assert_eq!(read(end, Some(start)), None, "the end lies before the start");
        assert_eq!(read(start, None), None, "no end");
        let mut other_port = end.to_vec();
        other_port[9] = 188;
        assert_eq!(read(start, Some(&other_port)), None, "an interval of ports");
    }

    fn any_set() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            Element::VIPS,
            Element::RESTRICTED,
            Element::ALLOWED_SOURCES,
            Element::CLUSTER_IPS,
            Element::EXTERNAL,
            Element::EXTERNAL_LOCAL,
            Element::HAIRPIN,
            Element::HEALTH_CHECK_PORTS,
        ])
    }

    prop_compose! {
        fn any_element()(
            ip: IpAddr,
            protocol in prop::sample::select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp]),
            port: u16,
            host: u32,
            set in any_set(),
        ) -> Element {
            let to = ServiceAddress { protocol, ip, port };
            let client = |number: u32| match ip {
                IpAddr::V4(_) => IpAddr::V4(number.into()),
                IpAddr::V6(_) => IpAddr::V6(u128::from(number).into()),
            };
            match set {
                Element::VIPS => Element::Vip(ip),
                Element::RESTRICTED => Element::Restricted(to),
                Element::ALLOWED_SOURCES => {
                    let (first, last) = (client(host / 2), client(host));
                    Element::AllowedSource(AllowedSource { to, first, last })
                }
                Element::CLUSTER_IPS => Element::ClusterIp(to),
                Element::EXTERNAL => Element::External(to),
                Element::EXTERNAL_LOCAL => Element::ExternalLocal(to),
                Element::HEALTH_CHECK_PORTS => {
                    Element::HealthCheckPort(HealthCheckPort { family: Family::from(ip), port })
                }
                _ => Element::Hairpin(HairpinFlow { protocol, pod: RealServerAddress { ip, port } }),
            }
        }
    }

    proptest! {
        #[test]
        fn an_element_is_read_back_from_its_key(wanted in any_element()) {
            let key = Key::from(&wanted);
            let end = key.end.as_ref().map(AsRef::as_ref);
            let read = element(wanted.set(), wanted.family(), key.start.as_ref(), end);
            prop_assert_eq!(read, Some(wanted));
        }

        #[test]
        fn any_bytes_that_decode_encode_to_themselves(
            start in prop::collection::vec(any::<u8>(), 0..48),
            end in prop::option::of(prop::collection::vec(any::<u8>(), 0..48)),
            v6: bool,
            set in any_set(),
        ) {
            let family = if v6 { Family::V6 } else { Family::V4 };
            if let Some(element) = element(set, family, &start, end.as_deref()) {
                let key = Key::from(&element);
                prop_assert_eq!((element.set(), key.start.as_ref()), (set, start.as_slice()));
                prop_assert_eq!(key.end.as_ref().map(AsRef::as_ref), end.as_deref());
            }
        }
    }
}
