//! Decoding survives whatever comes.

use ipvs::RealServer;
use proptest::{
    collection::{btree_map, vec},
    prelude::*,
    sample::{Index, select},
};
use serde_json::{Value, json};
use service::{
    AddressKind, Change, DesiredVirtualServer, EndpointSlice, Event, Node, Options, Service, SpecialAddress,
    State,
};

use testkit::protobuf::message;

use super::*;

/// An object with every field that any kind has.
fn object() -> Value {
    json!({
        "metadata": {
            "name": "web", "namespace": "shop", "resourceVersion": "1",
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "labels": {"kubernetes.io/service-name": "web", "topology.kubernetes.io/zone": "z1"},
        },
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00::7"],
            "ipFamilies": ["IPv4", "IPv6"], "externalIPs": ["198.51.100.7", "2001:db8::7"],
            "ports": [
                {"name": "a", "protocol": "TCP", "port": 80, "nodePort": 30080},
                {"name": "b", "protocol": "UDP", "port": 53, "nodePort": 30053},
            ],
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local",
            "loadBalancerSourceRanges": ["198.51.100.0/24"], "healthCheckNodePort": 30099,
        },
        "status": {
            "loadBalancer": {"ingress": [{"ip": "192.0.2.7", "ipMode": "VIP"}, {"hostname": "lb"}]},
            "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
        },
        "addressType": "IPv4",
        "ports": [{"name": "a", "protocol": "TCP", "port": 8080}],
        "endpoints": [{
            "addresses": ["10.244.0.5"], "nodeName": "n1",
            "conditions": {"ready": false, "serving": true, "terminating": true},
            "hints": {"forZones": [{"name": "z1"}], "forNodes": [{"name": "n1"}]},
        }],
    })
}

/// The paths to all values within a value, as JSON pointers.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Array(list) => {
            for (i, element) in list.iter().enumerate() {
                places(element, &format!("{at}/{i}"), found);
            }
        }
        Value::Object(map) => {
            for (key, field) in map {
                places(field, &format!("{at}/{}", key.replace('/', "~1")), found);
            }
        }
        _ => {}
    }
}

/// Texts with a meaning in some field.
const WORDS: [&str; 11] =
    ["", "None", "VIP", "Proxy", "Local", "IPv6", "SCTP", "127.0.0.1", "::", "fe80::1", "ff02::1"];

fn anything() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<u64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        1 => (-1..65_537).prop_map(Value::from),
        8 => select(&WORDS[..]).prop_map(Value::from),
        1 => any::<String>().prop_map(Value::from),
    ];
    scalar.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map("[a-z]{0,4}|ip|port|address", inner, 0..4).prop_map(Value::from_iter),
        ]
    })
}

proptest! {
    #[test]
    fn any_object_decodes_and_asks_for_nothing_that_breaks_the_node(
        changes in vec((any::<Index>(), anything()), 1..8),
    ) {
        let mut object = object();
        for (place, value) in changes {
            let mut all = Vec::new();
            places(&object, "", &mut all);
            *object.pointer_mut(place.get::<String>(&all)).unwrap() = value;
        }
        let mut state = State::new(Options::new("n1"));
        if let Decoded::Object(node) = View::<Node>::deserialize(&object).unwrap().decoded {
            state.apply(Change::Node(Some(node)));
        }
        let slices = match View::<EndpointSlice>::deserialize(&object).unwrap().decoded {
            Decoded::Object(slice) => vec![slice],
            Decoded::NotOurs(_) | Decoded::Unusable(_) => Vec::new(),
        };
        if let Decoded::Object(service) = View::<Service>::deserialize(&object).unwrap().decoded {
            state.apply(Change::Services(Event::Apply(service)));
            state.apply(Change::Slices(Event::Replace(slices)));
            for server in state.virtual_servers() {
                let DesiredVirtualServer { address, kind, real_servers, .. } = &**server;
                let may_be_link_local = *kind == AddressKind::ClusterIp && address.ip.is_ipv4();
                match SpecialAddress::from_ip(address.ip) {
                    None => {}
                    Some(SpecialAddress::LinkLocal) if may_be_link_local => {}
                    Some(special) => prop_assert!(false, "{address} is {special}"),
                }
                prop_assert!(address.port != 0);
                for RealServer { address: endpoint, weight, .. } in real_servers.iter() {
                    prop_assert!(endpoint.ip.is_ipv4() == address.ip.is_ipv4() && endpoint.port != 0 && *weight != 0);
                    prop_assert_eq!(SpecialAddress::from_ip(endpoint.ip), None, "{} is an endpoint of {}", endpoint, address);
                }
            }
            prop_assert!(state.vips().all(|vip| state.virtual_servers().any(|server| server.address.ip == *vip)));
        }
    }
}

/// The part of [`object`] that a kind has.
fn of_kind(fields: &[&str], spec: &[&str], status: &[&str]) -> Value {
    let mut object = object();
    let keep = |value: &mut Value, fields: &[&str]| {
        value.as_object_mut().unwrap().retain(|field, _| fields.contains(&&**field));
    };
    keep(&mut object, fields);
    for (part, fields) in [("spec", spec), ("status", status)] {
        object.get_mut(part).into_iter().for_each(|part| keep(part, fields));
    }
    object
}

/// Fails unless an object, and the object without each of its fields, is read alike in both encodings.
fn is_read_alike<T: Kind>(object: &Value) {
    let mut all = Vec::new();
    places(object, "", &mut all);
    for place in all.iter().filter(|place| !place.is_empty()).chain([&String::new()]) {
        let mut object = object.clone();
        let (parent, field) = place.rsplit_once('/').unwrap_or_default();
        match object.pointer_mut(parent) {
            Some(Value::Object(fields)) => _ = fields.remove(&field.replace("~1", "/")),
            Some(Value::Array(elements)) => _ = elements.remove(field.parse().unwrap()),
            _ => panic!("no {place}"),
        }
        let json = serde_json::from_value::<View<T>>(object.clone()).unwrap();
        let protobuf = View::<T>::from_protobuf(Message::new(&message(T::KIND, &object))).unwrap();
        assert_eq!((&protobuf.name, &protobuf.version), (&json.name, &json.version), "without {place}");
        assert_eq!(protobuf.decoded, json.decoded, "without {place}");
    }
}

#[test]
fn an_object_is_read_alike_in_protobuf_and_in_json_whichever_field_it_lacks() {
    let spec = object()["spec"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let spec: Vec<&str> = spec.iter().map(String::as_str).collect();
    is_read_alike::<Service>(&of_kind(&["metadata", "spec", "status"], &spec, &["loadBalancer"]));
    is_read_alike::<EndpointSlice>(&of_kind(&["metadata", "addressType", "ports", "endpoints"], &[], &[]));
    let mut node = of_kind(&["metadata", "spec", "status"], &[], &["addresses"]);
    node["spec"] = json!({
        "podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00::/64"], "taints": [{"key": "a"}],
    });
    node["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:06Z");
    is_read_alike::<Node>(&node);
}

#[test]
fn strings_of_protobuf_that_are_not_text_are_left_out_alone() {
    let mut slice = of_kind(&["metadata", "addressType", "ports", "endpoints"], &[], &[]);
    slice["endpoints"] = json!([{"addresses": ["10.244.0.5"]}, {"addresses": ["10.244.0.6"]}]);
    let mut bytes = message("EndpointSlice", &slice);
    let at = bytes.windows(10).position(|bytes| bytes == b"10.244.0.5").unwrap();
    bytes[at] = 0xff;
    let view = View::<EndpointSlice>::from_protobuf(Message::new(&bytes)).unwrap();
    let Decoded::Object(slice) = view.decoded else { panic!("{:?}", view.decoded) };
    assert_eq!(slice.endpoints.len(), 1);
    assert_eq!(slice.problems.len(), 1, "{:?}", slice.problems);
    assert!(slice.problems[0].contains("is not a string"), "{:?}", slice.problems);
}
