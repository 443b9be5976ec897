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
            Element::LOCAL_CLIENTS_ONLY => Element::LocalClientsOnly(to),
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
