use ipvs::Protocol;
use proptest::prelude::*;

use super::*;
use crate::{Ruleset, element::KNOWN_SETS, nft::element as coded};

fn plain(key: &[u8]) -> RawElement<'_> {
    RawElement { start: key, end: None, value: None }
}

fn element(set: &str, family: Family, raw: RawElement<'_>) -> Option<Element> {
    let known = KNOWN_SETS.iter().find(|known| known.set.name == set)?;
    known.read(family, raw)
}

/// The key, the other end of an interval, and the value.
fn bytes(element: &Element) -> (Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>) {
    let key = Key::from(element);
    let value = (!key.value.is_empty()).then(|| coded::bytes(&key.value).to_vec());
    (coded::bytes(&key.start).to_vec(), key.last().map(|last| coded::bytes(&last).to_vec()), value)
}

fn hairpin(protocol: Protocol, pod: &str) -> Element {
    let pod: std::net::SocketAddr = pod.parse().unwrap();
    Element::Hairpin(HairpinFlow { protocol, pod: RealServerAddress { ip: pod.ip(), port: pod.port() } })
}

#[test]
fn the_protocol_lies_in_its_first_byte_and_the_port_in_network_order() {
    let (key, ..) = bytes(&hairpin(Protocol::Tcp, "10.0.0.1:80"));
    assert_eq!(key, [10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0, 10, 0, 0, 1]);
}

#[test]
fn the_longest_key_fits() {
    assert_eq!(bytes(&hairpin(Protocol::Sctp, "[fd00::1]:65535")).0.len(), 40);
}

#[test]
fn a_hairpin_between_two_pods_is_not_ours() {
    let (mut key, ..) = bytes(&hairpin(Protocol::Tcp, "10.0.0.1:80"));
    assert!(element("hairpin", Family::V4, plain(&key)).is_some());
    key[15] = 2;
    assert_eq!(element("hairpin", Family::V4, plain(&key)), None);
}

#[test]
fn one_key_is_another_element_in_each_set() {
    let address = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 0, 0, 1].into(), port: 80 };
    let (key, ..) = bytes(&Element::ClusterIp(address));
    let element = |set| element(set, Family::V4, plain(&key));
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
    let (start, end, _) = bytes(&source("10.0.0.0", "10.255.255.255"));
    let (start, end) = (start.as_slice(), end.as_deref().unwrap());
    assert_eq!(start, [192, 0, 2, 1, 6, 0, 0, 0, 1, 187, 0, 0, 10, 0, 0, 0]);
    assert_eq!(end, [192, 0, 2, 1, 6, 0, 0, 0, 1, 187, 0, 0, 10, 255, 255, 255]);
    let read = |start, end| element("allowed-sources", Family::V4, RawElement { end, ..plain(start) });
    assert_eq!(read(start, Some(end)), Some(source("10.0.0.0", "10.255.255.255")));
    assert_eq!(read(end, Some(start)), None, "the end lies before the start");
    assert_eq!(read(start, None), None, "no end");
    let mut other_port = end.to_vec();
    other_port[9] = 188;
    assert_eq!(read(start, Some(&other_port)), None, "an interval of ports");
}

#[test]
fn a_tunnels_exit_is_found_by_the_end_of_the_pods_address_and_leads_there_alone() {
    let to = ServiceAddress { protocol: Protocol::Tcp, ip: "2001:db8::1".parse().unwrap(), port: 80 };
    let pod = RealServerAddress { ip: "fd00::1:203:405".parse().unwrap(), port: 8080 };
    let exit = Element::TunnelExit(TunnelExit { to, pod });
    let (start, _, value) = bytes(&exit);
    let (start, value) = (start.as_slice(), value.as_deref().unwrap());
    assert_eq!(start[..4], [2, 3, 4, 5]);
    assert_eq!(value[16..], [31, 144, 0, 0]);
    let read = |start, value| element("tunnel-exits", Family::V6, RawElement { value, ..plain(start) });
    assert_eq!(read(start, Some(value)), Some(exit));
    assert_eq!(read(start, None), None, "no value");
    let mut elsewhere = value.to_vec();
    elsewhere[15] = 6;
    assert_eq!(read(start, Some(&elsewhere)), None, "another pod");
}

fn key_of(set: &str) -> &'static [Datatype] {
    KNOWN_SETS.iter().find(|known| known.set.name == set).unwrap().set.key
}

fn any_set() -> impl Strategy<Value = &'static str> {
    prop::sample::select(Ruleset::known_sets().map(|set| set.name).collect::<Vec<_>>())
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
        let pod = RealServerAddress { ip: client(host), port };
        match set {
            Element::ALLOWED_SOURCES => {
                let (first, last) = (client(host / 2), client(host));
                Element::AllowedSource(AllowedSource { to, first, last })
            }
            Element::HEALTH_CHECK_PORTS => {
                Element::HealthCheckPort(HealthCheckPort { family: Family::from(ip), port })
            }
            Element::HAIRPIN => Element::Hairpin(HairpinFlow { protocol, pod }),
            Element::CLUSTER_IP_FOR => Element::ClusterIpFor(ClusterIpFor { to, cluster_ip: pod }),
            Element::MAX_SEGMENT_SIZES => Element::MaxSegmentSize(MaxSegmentSize { to, bytes: port }),
            Element::TUNNEL_EXITS => Element::TunnelExit(TunnelExit { to, pod }),
            // Addresses, and addresses of virtual servers.
            other => {
                let key = if key_of(other) == IpAddr::KEY { ip.key() } else { to.key() };
                element(other, Family::from(ip), plain(&coded::bytes(&key.start))).unwrap()
            }
        }
    }
}

proptest! {
    #[test]
    fn an_element_is_read_back_from_its_key(wanted in any_element()) {
        let (start, end, value) = bytes(&wanted);
        let raw = RawElement { start: &start, end: end.as_deref(), value: value.as_deref() };
        prop_assert_eq!(element(wanted.set(), wanted.family(), raw), Some(wanted));
    }

    #[test]
    fn any_bytes_that_decode_encode_to_themselves(
        start in prop::collection::vec(any::<u8>(), 0..48),
        end in prop::option::of(prop::collection::vec(any::<u8>(), 0..48)),
        value in prop::option::of(prop::collection::vec(any::<u8>(), 0..24)),
        v6: bool,
        set in any_set(),
    ) {
        let family = if v6 { Family::V6 } else { Family::V4 };
        let raw = RawElement { start: &start, end: end.as_deref(), value: value.as_deref() };
        if let Some(element) = element(set, family, raw) {
            prop_assert_eq!(element.set(), set);
            prop_assert_eq!(bytes(&element), (start, end, value));
        }
    }
}
