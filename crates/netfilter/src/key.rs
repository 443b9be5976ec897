//! Elements as the kernel's sets hold them: the fields of the key, each filled up to four bytes.

use std::{fmt, net::IpAddr};

use ipvs::{Family, Protocol, RealServerAddress, ServiceAddress};

use crate::{Element, HairpinFlow};

/// The bytes of a key: at most two IPv6 addresses, a protocol and a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    bytes: [u8; 40],
    length: usize,
}

impl Key {
    fn append(&mut self, field: &[u8]) {
        let end = self.length + field.len();
        if let Some(space) = self.bytes.get_mut(self.length..end) {
            space.copy_from_slice(field);
        }
        self.length = end.next_multiple_of(4);
    }

    fn append_address(&mut self, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => self.append(&ip.octets()),
            IpAddr::V6(ip) => self.append(&ip.octets()),
        }
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl From<&Element> for Key {
    fn from(element: &Element) -> Self {
        let mut key = Self { bytes: [0; 40], length: 0 };
        let (ip, protocol, port) = parts(element);
        key.append_address(ip);
        key.append(&[protocol.number()]);
        key.append(&port.to_be_bytes());
        if let Element::Hairpin(_) = element {
            key.append_address(ip);
        }
        key
    }
}

/// The element with this key in this set; `None` if it cannot be ours: an unknown set or protocol,
/// another length, or a hairpin whose two ends differ.
pub(crate) fn element(set: &str, family: Family, key: &[u8]) -> Option<Element> {
    let (ip, rest) = split_address(family, key)?;
    let ([protocol, 0, 0, 0], rest) = rest.split_first_chunk()? else { return None };
    let ([high, low, 0, 0], rest) = rest.split_first_chunk()? else { return None };
    let protocol = Protocol::from_number(u16::from(*protocol))?;
    let port = u16::from_be_bytes([*high, *low]);
    let address = ServiceAddress { protocol, ip, port };
    match set {
        Element::CLUSTER_IPS if rest.is_empty() => Some(Element::ClusterIp(address)),
        Element::EXTERNAL if rest.is_empty() => Some(Element::External(address)),
        Element::HAIRPIN if split_address(family, rest)? == (ip, &[]) => {
            Some(Element::Hairpin(HairpinFlow { protocol, pod: RealServerAddress { ip, port } }))
        }
        _ => None,
    }
}

/// Writes an element's key in nft's syntax.
pub(crate) fn write(element: &Element, f: &mut impl fmt::Write) -> fmt::Result {
    let (ip, protocol, port) = parts(element);
    let protocol = match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    };
    write!(f, "{ip} . {protocol} . {port}")?;
    match element {
        Element::ClusterIp(_) | Element::External(_) => Ok(()),
        Element::Hairpin(_) => write!(f, " . {ip}"),
    }
}

fn parts(element: &Element) -> (IpAddr, Protocol, u16) {
    match element {
        Element::ClusterIp(address) | Element::External(address) => {
            (address.ip, address.protocol, address.port)
        }
        Element::Hairpin(flow) => (flow.pod.ip, flow.protocol, flow.pod.port),
    }
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
        assert_eq!(key.as_ref(), [10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0, 10, 0, 0, 1]);
    }

    #[test]
    fn the_longest_key_fits() {
        assert_eq!(Key::from(&hairpin(Protocol::Sctp, "[fd00::1]:65535")).as_ref().len(), 40);
    }

    #[test]
    fn a_hairpin_between_two_pods_is_not_ours() {
        let mut key = Key::from(&hairpin(Protocol::Tcp, "10.0.0.1:80")).as_ref().to_vec();
        assert!(element("hairpin", Family::V4, &key).is_some());
        key[15] = 2;
        assert_eq!(element("hairpin", Family::V4, &key), None);
    }

    #[test]
    fn one_key_is_another_element_in_each_set() {
        let address = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 0, 0, 1].into(), port: 80 };
        let key = Key::from(&Element::ClusterIp(address));
        let element = |set| element(set, Family::V4, key.as_ref());
        assert_eq!(element("cluster-ips"), Some(Element::ClusterIp(address)));
        assert_eq!(element("external"), Some(Element::External(address)));
        assert_eq!(element("hairpin"), None);
        assert_eq!(element("another"), None);
    }

    fn any_set() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![Element::CLUSTER_IPS, Element::EXTERNAL, Element::HAIRPIN])
    }

    prop_compose! {
        fn any_element()(
            ip: IpAddr,
            protocol in prop::sample::select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp]),
            port: u16,
            set in any_set(),
        ) -> Element {
            match set {
                Element::CLUSTER_IPS => Element::ClusterIp(ServiceAddress { protocol, ip, port }),
                Element::EXTERNAL => Element::External(ServiceAddress { protocol, ip, port }),
                _ => Element::Hairpin(HairpinFlow { protocol, pod: RealServerAddress { ip, port } }),
            }
        }
    }

    proptest! {
        #[test]
        fn an_element_is_read_back_from_its_key(wanted in any_element()) {
            let key = Key::from(&wanted);
            prop_assert_eq!(element(wanted.set(), wanted.family(), key.as_ref()), Some(wanted));
        }

        #[test]
        fn any_bytes_that_decode_encode_to_themselves(
            bytes in prop::collection::vec(any::<u8>(), 0..48),
            v6: bool,
            set in any_set(),
        ) {
            let family = if v6 { Family::V6 } else { Family::V4 };
            if let Some(element) = element(set, family, &bytes) {
                let key = Key::from(&element);
                prop_assert_eq!((element.set(), key.as_ref()), (set, bytes.as_slice()));
            }
        }
    }
}
