//! EndpointSlices.

use std::{fmt, sync::Arc, time::SystemTime};

use ipvs::Family;
use jiff::Timestamp;
use service::{Endpoint, EndpointPort, EndpointSlice, ObjectName, SpecialAddress};

use super::{
    Decoded, Kind, Problems, View,
    field::{Field, First, List, Quoted, Text, object, owned},
    metadata::{Annotation, Metadata, RawMetadata, nameless},
    values::{self, parse_ip, port, protocol},
};

object! {
    /// An EndpointSlice as it is sent.
    pub(crate) struct RawSlice<'a> {
        1 => metadata: Field<RawMetadata<'a>>,
        2 => endpoints: List<RawEndpoint<'a>>,
        3 => ports: List<RawPort<'a>>,
        4 unless is_empty => address_type: Field<Text<'a>>,
    }

    struct RawPort<'a> {
        1 => name: Field<Text<'a>>,
        2 => protocol: Field<Text<'a>>,
        3 => port: Field<i64>,
    }

    struct RawEndpoint<'a> {
        1 => addresses: Field<First<Text<'a>>>,
        2 => conditions: Field<RawConditions>,
        6 => node_name: Field<Text<'a>>,
        7 => zone: Field<Text<'a>>,
        8 => hints: Field<RawHints<'a>>,
    }

    struct RawConditions {
        1 => ready: Field<bool>,
        2 => serving: Field<bool>,
        3 => terminating: Field<bool>,
    }

    struct RawHints<'a> {
        1 => for_zones: List<RawHint<'a>>,
        2 => for_nodes: List<RawHint<'a>>,
    }

    struct RawHint<'a> {
        1 unless is_empty => name: Field<Text<'a>>,
    }
}

impl Kind for EndpointSlice {
    const KIND: &'static str = "EndpointSlice";
    const GROUP: &'static str = "discovery.k8s.io";
    const PLURAL: &'static str = "endpointslices";
    const ALWAYS_SOME: bool = true;

    type Raw<'a> = RawSlice<'a>;

    fn read(raw: RawSlice<'_>) -> View<Self> {
        let mut problems = Problems::default();
        let mut metadata = Metadata::read(raw.metadata, &mut problems);
        let owner = metadata.label("kubernetes.io/service-name", &mut problems);
        let family = family(raw.address_type, &mut problems);
        let triggered_at = triggered_at(&mut metadata, &mut problems);
        let weight = metadata.annotation("kube-ipvs.io/weight", &mut problems);
        let weight = weight.and_then(|Annotation { at, text }| values::weight(&text, at, &mut problems));

        let decoded = match (metadata.object_name(), owner.filter(|owner| !owner.is_empty()), family) {
            (None, _, _) => Decoded::Unusable(nameless(problems)),
            (_, _, Err(AddressType::Fqdn)) => Decoded::NotOurs("its addresses are host names"),
            _ if metadata.has_label("service.kubernetes.io/headless") => {
                Decoded::NotOurs("it belongs to a headless Service")
            }
            (_, None, _) => Decoded::NotOurs("it has no label kubernetes.io/service-name"),
            (_, _, Err(AddressType::Unknown)) => Decoded::Unusable(problems.into_vec().join("; ")),
            (Some(name), Some(owner), Ok(family)) => Decoded::Object(Self {
                service: ObjectName::new(name.namespace(), &*owner),
                name,
                family,
                ports: raw.ports.read_each("ports", &mut problems, endpoint_port),
                endpoints: raw.endpoints.read_each("endpoints", &mut problems, |raw, at, problems| {
                    endpoint(raw, family, at, problems)
                }),
                weight,
                triggered_at,
                problems: problems.into_vec(),
            }),
        };
        metadata.view(decoded)
    }

    fn problems(&self) -> &[String] {
        &self.problems
    }
}

/// An `addressType` that is not an IP family.
enum AddressType {
    Fqdn,
    Unknown,
}

fn family(field: Field<Text<'_>>, problems: &mut Problems) -> Result<Family, AddressType> {
    let present = field.is_present();
    match field.read("addressType", problems).as_deref() {
        Some("IPv4") => Ok(Family::V4),
        Some("IPv6") => Ok(Family::V6),
        Some("FQDN") => Err(AddressType::Fqdn),
        Some(other) => {
            problems.add("addressType", format_args!("{} is not IPv4, IPv6 or FQDN", Quoted(other)));
            Err(AddressType::Unknown)
        }
        None => {
            if !present {
                problems.add("addressType", "not set");
            }
            Err(AddressType::Unknown)
        }
    }
}

fn triggered_at(metadata: &mut Metadata<'_>, problems: &mut Problems) -> Option<SystemTime> {
    let Annotation { at, text } =
        metadata.annotation("endpoints.kubernetes.io/last-change-trigger-time", problems)?;
    let time = text.parse::<Timestamp>().ok();
    problems.require(time, at, format_args!("{} is not a time", Quoted(&text))).map(SystemTime::from)
}

fn endpoint_port(raw: RawPort<'_>, at: fmt::Arguments<'_>, problems: &mut Problems) -> Option<EndpointPort> {
    if !raw.name.is_present() {
        // The API server fills in the empty name; without one, no Service port can be meant.
        problems.add(format_args!("{at}.name"), "not set");
    }
    let name = raw.name.read(format_args!("{at}.name"), problems);
    let protocol = protocol(raw.protocol, format_args!("{at}.protocol"), problems);
    // A slice may leave the number out to mean "all ports", which a node proxy cannot serve.
    let number = port(raw.port, format_args!("{at}.port"), problems);
    Some(EndpointPort { name: owned(name?), protocol: protocol?, port: number? })
}

fn endpoint(
    raw: RawEndpoint<'_>,
    family: Family,
    at: fmt::Arguments<'_>,
    problems: &mut Problems,
) -> Option<Endpoint> {
    let First(first) = raw.addresses.read(format_args!("{at}.addresses"), problems).unwrap_or_default();
    let at_address = format_args!("{at}.addresses[0]");
    if !first.is_present() {
        problems.add(at_address, "not set");
    }
    let text = first.read(at_address, problems)?;
    let not_an_ip = format_args!("{} is not an IP address", Quoted(&text));
    let ip = problems.require(parse_ip(&text), at_address, not_an_ip)?;
    if Family::from(ip) != family {
        problems.add(at_address, format_args!("{ip} is not an {family} address, as addressType says"));
        return None;
    }
    // The API server takes some of these. The kernel refuses a real server at most of them, and a loopback
    // address would lead to what the node keeps to itself.
    if let Some(special) = SpecialAddress::from_ip(ip) {
        problems.add(at_address, format_args!("{ip} is {special}, which a pod cannot have"));
        return None;
    }
    let conditions = raw.conditions.read(format_args!("{at}.conditions"), problems).unwrap_or_default();
    let hints = raw.hints.read(format_args!("{at}.hints"), problems).unwrap_or_default();
    let mut condition = |field: Field<bool>, name: &str, absent: bool| {
        field.read(format_args!("{at}.conditions.{name}"), problems).unwrap_or(absent)
    };
    Some(Endpoint {
        address: ip,
        ready: condition(conditions.ready, "ready", true),
        serving: condition(conditions.serving, "serving", true),
        terminating: condition(conditions.terminating, "terminating", false),
        node: raw.node_name.read(format_args!("{at}.nodeName"), problems).map(owned),
        zone: raw.zone.read(format_args!("{at}.zone"), problems).map(owned),
        zone_hints: names(hints.for_zones, format_args!("{at}.hints.forZones"), problems),
        node_hints: names(hints.for_nodes, format_args!("{at}.hints.forNodes"), problems),
    })
}

fn names(list: List<RawHint<'_>>, at: fmt::Arguments<'_>, problems: &mut Problems) -> Box<[Arc<str>]> {
    let name = |hint: RawHint, at: fmt::Arguments<'_>, problems: &mut Problems| {
        hint.name.read(format_args!("{at}.name"), problems).map(owned)
    };
    list.read_each(at, problems, name).into()
}

#[cfg(test)]
mod tests {
    use ipvs::Protocol;
    use serde_json::{Value, json};

    use super::super::View;
    use super::*;

    fn decoded(value: Value) -> Decoded<EndpointSlice> {
        serde_json::from_value::<View<EndpointSlice>>(value).unwrap().decoded
    }

    /// A slice of shop/web with these fields added.
    fn slice_with(address_type: &str, ports: Value, endpoints: Value) -> EndpointSlice {
        let labels = json!({"kubernetes.io/service-name": "web"});
        let object = Value::from_iter([
            ("metadata", json!({"name": "web-1", "namespace": "shop", "labels": labels})),
            ("addressType", address_type.into()),
            ("ports", ports),
            ("endpoints", endpoints),
        ]);
        let Decoded::Object(slice) = decoded(object) else { panic!("not decoded") };
        slice
    }

    fn addresses(slice: &EndpointSlice) -> Vec<String> {
        slice.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect()
    }

    #[test]
    fn a_slice_is_read_whole() {
        let slice = slice_with(
            "IPv4",
            json!([{"name": "", "port": 8080}, {"name": "dns", "protocol": "UDP", "port": 53}]),
            json!([{
                "addresses": ["10.244.0.5", "10.244.0.6"],
                "conditions": {"ready": false, "serving": true, "terminating": true},
                "nodeName": "n1", "zone": "z3", "targetRef": {"kind": "Pod"},
                "hints": {"forZones": [{"name": "z1"}, {"name": "z2"}], "forNodes": [{"name": "n1"}]},
            }]),
        );
        assert_eq!(
            slice,
            EndpointSlice {
                name: ObjectName::new("shop", "web-1"),
                service: ObjectName::new("shop", "web"),
                family: Family::V4,
                ports: vec![
                    EndpointPort { name: "".into(), protocol: Protocol::Tcp, port: 8080 },
                    EndpointPort { name: "dns".into(), protocol: Protocol::Udp, port: 53 },
                ],
                endpoints: vec![Endpoint {
                    address: "10.244.0.5".parse().unwrap(),
                    ready: false,
                    serving: true,
                    terminating: true,
                    node: Some("n1".into()),
                    zone: Some("z3".into()),
                    zone_hints: ["z1".into(), "z2".into()].into(),
                    node_hints: ["n1".into()].into(),
                }],
                weight: None,
                triggered_at: None,
                problems: vec![],
            }
        );
    }

    #[test]
    fn a_weight_that_cannot_be_used_is_left_out_and_named() {
        let with = |weight: Value| {
            let labels = json!({"kubernetes.io/service-name": "web"});
            let annotations = json!({"kube-ipvs.io/weight": weight});
            let metadata =
                json!({"name": "web-1", "namespace": "shop", "labels": labels, "annotations": annotations});
            let Decoded::Object(slice) = decoded(json!({"metadata": metadata, "addressType": "IPv4"})) else {
                panic!("not decoded")
            };
            (slice.weight, slice.problems)
        };
        assert_eq!(with("10".into()), (Some(10), vec![]));
        let at = "metadata.annotations[kube-ipvs.io/weight]";
        let bad = format!("{at}: \"-1\" is not a weight, a number between 0 and 65535");
        assert_eq!(with("-1".into()), (None, vec![bad]));
        assert_eq!(with("0".into()), (Some(0), vec![]));
        assert_eq!(with(7.into()), (None, vec![format!("{at}: 7 is not a string")]));
    }

    #[test]
    fn the_time_of_what_it_was_written_for_is_read() {
        let at = |time: &str| {
            let labels = json!({"kubernetes.io/service-name": "web"});
            let annotations = json!({"endpoints.kubernetes.io/last-change-trigger-time": time, "a": 7});
            let metadata =
                json!({"name": "web-1", "namespace": "shop", "labels": labels, "annotations": annotations});
            let Decoded::Object(slice) = decoded(json!({"metadata": metadata, "addressType": "IPv4"})) else {
                panic!("not decoded")
            };
            slice
        };
        let slice = at("1970-01-01T00:00:01.5Z");
        assert_eq!(slice.triggered_at, Some(SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1500)));
        assert_eq!(slice.problems, [""; 0]);
        let slice = at("yesterday");
        assert_eq!((slice.triggered_at, slice.problems.len()), (None, 1));
    }

    #[test]
    fn an_absent_condition_has_its_default() {
        let slice = slice_with(
            "IPv4",
            json!([]),
            json!([{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"], "conditions": {"ready": null}}]),
        );
        for endpoint in &slice.endpoints {
            assert_eq!((endpoint.ready, endpoint.serving, endpoint.terminating), (true, true, false));
        }
        assert_eq!(slice.endpoints.len(), 2);
    }

    #[test]
    fn a_port_without_a_name_or_a_number_is_left_out() {
        let slice = slice_with(
            "IPv4",
            json!([{"port": 80}, {"name": "all"}, {"name": "zero", "port": 0}, {"name": "web", "port": 81}]),
            json!([]),
        );
        assert_eq!(slice.ports, [EndpointPort { name: "web".into(), protocol: Protocol::Tcp, port: 81 }]);
        assert_eq!(
            slice.problems,
            [
                "ports[0].name: not set",
                "ports[1].port: not set",
                "ports[2].port: 0 is not between 1 and 65535"
            ]
        );
    }

    #[test]
    fn a_bad_endpoint_is_left_out_and_named() {
        let slice = slice_with(
            "IPv6",
            json!([]),
            json!([
                {"addresses": ["fd00::1"]},
                {"addresses": []},
                {"addresses": ["10.0.0.1"]},
                {"addresses": ["pod-7"]},
                "fd00::2",
                {"addresses": ["FD00:0::3"], "conditions": {"ready": "yes"}},
                {"addresses": [null, "fd00::4"]},
                {"addresses": [7, "fd00::5"]},
                {"addresses": ["fd00::6", 7, {"a": [1]}, "pod-8"]},
            ]),
        );
        assert_eq!(addresses(&slice), ["fd00::1", "fd00::3", "fd00::6"]);
        assert_eq!(
            slice.problems,
            [
                "endpoints[1].addresses[0]: not set",
                "endpoints[2].addresses[0]: 10.0.0.1 is not an IPv6 address, as addressType says",
                "endpoints[3].addresses[0]: \"pod-7\" is not an IP address",
                "endpoints[4]: \"fd00::2\" is not an object",
                "endpoints[5].conditions.ready: \"yes\" is not true or false",
                "endpoints[6].addresses[0]: not set",
                "endpoints[7].addresses[0]: 7 is not a string",
            ]
        );
    }

    #[test]
    fn an_address_that_no_pod_has_is_left_out_and_named() {
        let special = ["0.1.2.3", "127.0.0.1", "169.254.1.1", "239.1.1.1", "255.255.255.255"];
        let endpoints = special.iter().chain(&["10.0.0.1"]).map(|ip| json!({"addresses": [ip]})).collect();
        let slice = slice_with("IPv4", json!([]), endpoints);
        assert_eq!(addresses(&slice), ["10.0.0.1"]);
        assert_eq!(slice.problems.len(), special.len());
        assert_eq!(
            slice.problems[1],
            "endpoints[1].addresses[0]: 127.0.0.1 is a loopback address, which a pod cannot have"
        );
    }

    #[test]
    fn slices_that_concern_no_virtual_server_are_not_ours() {
        let slice = |labels: Value, address_type: &str| {
            decoded(json!({
                "metadata": {"name": "web-1", "namespace": "shop", "labels": labels},
                "addressType": address_type,
            }))
        };
        let owner = json!({"kubernetes.io/service-name": "web"});
        let headless = json!({"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""});
        assert!(matches!(slice(owner.clone(), "FQDN"), Decoded::NotOurs(_)));
        assert!(matches!(slice(headless, "IPv4"), Decoded::NotOurs(_)));
        assert!(matches!(slice(json!({}), "IPv4"), Decoded::NotOurs(_)));
        assert!(matches!(slice(json!({"kubernetes.io/service-name": ""}), "IPv4"), Decoded::NotOurs(_)));
        assert_eq!(
            slice(owner, "IPX"),
            Decoded::Unusable("addressType: \"IPX\" is not IPv4, IPv6 or FQDN".into())
        );
    }
}
