//! Objects of Kubernetes in protobuf, made of their JSON, as an API server writes them.
//!
//! Only fields that tests use are known; another is an error of the test.

#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a test that is wrong must stop"
)]

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value};

/// The numbers of fields, as in `generated.proto` of k8s.io/api and k8s.io/apimachinery. Behind a colon is the message
/// that a field has, or what JSON writes differently.
const MESSAGES: &[(&str, &str)] = &[
    ("Service", "metadata=1:ObjectMeta spec=2:ServiceSpec status=3:ServiceStatus"),
    (
        "ServiceSpec",
        "ports=1:ServicePort selector=2:map clusterIP=3 type=4 externalIPs=5 sessionAffinity=7 loadBalancerIP=8 \
         loadBalancerSourceRanges=9 externalName=10 externalTrafficPolicy=11 healthCheckNodePort=12 \
         publishNotReadyAddresses=13 sessionAffinityConfig=14:SessionAffinityConfig ipFamilyPolicy=17 clusterIPs=18 \
         ipFamilies=19 allocateLoadBalancerNodePorts=20 loadBalancerClass=21 internalTrafficPolicy=22 \
         trafficDistribution=23",
    ),
    ("ServicePort", "name=1 protocol=2 port=3 targetPort=4:IntOrString nodePort=5 appProtocol=6"),
    ("SessionAffinityConfig", "clientIP=1:ClientIPConfig"),
    ("ClientIPConfig", "timeoutSeconds=1"),
    ("ServiceStatus", "loadBalancer=1:LoadBalancerStatus"),
    ("LoadBalancerStatus", "ingress=1:LoadBalancerIngress"),
    ("LoadBalancerIngress", "ip=1 hostname=2 ipMode=3"),
    ("EndpointSlice", "metadata=1:ObjectMeta endpoints=2:Endpoint ports=3:EndpointPort addressType=4"),
    (
        "Endpoint",
        "addresses=1 conditions=2:EndpointConditions hostname=3 targetRef=4:ObjectReference nodeName=6 zone=7 \
         hints=8:EndpointHints",
    ),
    ("EndpointConditions", "ready=1 serving=2 terminating=3"),
    ("EndpointHints", "forZones=1:Hint forNodes=2:Hint"),
    ("Hint", "name=1"),
    ("EndpointPort", "name=1 protocol=2 port=3 appProtocol=4"),
    ("ObjectReference", "kind=1 namespace=2 name=3 uid=4"),
    ("Node", "metadata=1:ObjectMeta spec=2:NodeSpec status=3:NodeStatus"),
    ("NodeSpec", "podCIDR=1 podCIDRs=7 providerID=3 unschedulable=4 taints=5:Taint"),
    ("Taint", "key=1 value=2 effect=3"),
    ("NodeStatus", "addresses=5:NodeAddress"),
    ("NodeAddress", "type=1 address=2"),
    (
        "ObjectMeta",
        "name=1 generateName=2 namespace=3 uid=5 resourceVersion=6 generation=7 creationTimestamp=8:time \
         deletionTimestamp=9:time labels=11:map annotations=12:map finalizers=14 managedFields=17:ManagedFieldsEntry",
    ),
    (
        "ManagedFieldsEntry",
        "manager=1 operation=2 apiVersion=3 time=4:time fieldsType=6 fieldsV1=7:FieldsV1 subresource=8",
    ),
    ("ServiceCIDR", "metadata=1:ObjectMeta"),
    ("ListMeta", "resourceVersion=2 continue=3"),
    ("Status", "status=2 message=3 reason=4 code=6"),
];

/// An object, by its JSON, in the envelope that each object has.
#[must_use]
pub fn object(kind: &str, json: &Value) -> Vec<u8> {
    envelope(kind, &message(kind, json))
}

/// A list of objects of this kind.
#[must_use]
pub fn list(kind: &str, version: &str, objects: impl IntoIterator<Item = Value>) -> Vec<u8> {
    let mut list = Vec::new();
    field(&mut list, 1, &message("ListMeta", &serde_json::json!({"resourceVersion": version})));
    for object in objects {
        field(&mut list, 2, &message(kind, &object));
    }
    envelope(&format!("{kind}List"), &list)
}

/// An event of a watch, behind its length. `kind` is that of the object.
#[must_use]
pub fn event(event: &str, kind: &str, object: &Value) -> Vec<u8> {
    let (mut extension, mut body) = (Vec::new(), Vec::new());
    field(&mut extension, 1, &self::object(kind, object));
    field(&mut body, 1, event.as_bytes());
    field(&mut body, 2, &extension);
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], &body].concat()
}

/// `Unknown` of k8s.io/apimachinery/pkg/runtime, whose last two fields the server sends empty.
fn envelope(kind: &str, raw: &[u8]) -> Vec<u8> {
    let version = match kind.trim_end_matches("List") {
        "EndpointSlice" => "discovery.k8s.io/v1",
        "ServiceCIDR" => "networking.k8s.io/v1",
        _ => "v1",
    };
    let mut type_meta = Vec::new();
    field(&mut type_meta, 1, version.as_bytes());
    field(&mut type_meta, 2, kind.as_bytes());
    let mut unknown = b"k8s\0".to_vec();
    field(&mut unknown, 1, &type_meta);
    field(&mut unknown, 2, raw);
    field(&mut unknown, 3, &[]);
    field(&mut unknown, 4, &[]);
    unknown
}

/// A message by itself.
#[must_use]
pub fn message(kind: &str, json: &Value) -> Vec<u8> {
    let fields = MESSAGES.iter().find(|(name, _)| *name == kind).map_or("", |(_, fields)| *fields);
    assert!(!fields.is_empty(), "no message {kind}");
    let fields: BTreeMap<&str, &str> =
        fields.split_whitespace().filter_map(|field| field.split_once('=')).collect();
    let mut written = Vec::new();
    for (name, value) in json.as_object().into_iter().flatten() {
        if ["apiVersion", "kind"].contains(&&**name) && !fields.contains_key(&**name) {
            continue;
        }
        let field = fields.get(&**name).unwrap_or_else(|| panic!("{kind} has no {name}"));
        let (number, shape) = field.split_once(':').unwrap_or((field, ""));
        let number = number.parse().expect("the number of a field");
        match value {
            Value::Array(values) => values.iter().for_each(|value| one(&mut written, number, shape, value)),
            Value::Object(entries) if shape == "map" => map(&mut written, number, entries),
            value => one(&mut written, number, shape, value),
        }
    }
    written
}

fn map(written: &mut Vec<u8>, number: usize, entries: &Map<String, Value>) {
    for (key, value) in entries {
        let mut entry = Vec::new();
        field(&mut entry, 1, key.as_bytes());
        one(&mut entry, 2, "", value);
        field(written, number, &entry);
    }
}

/// A value, but not a list.
fn one(written: &mut Vec<u8>, number: usize, shape: &str, value: &Value) {
    match (shape, value) {
        (_, Value::Null) => {}
        ("time", Value::String(time)) => {
            let mut seconds = Vec::new();
            let time: Timestamp = time.parse().expect("a time");
            varint(&mut seconds, 1, u64::try_from(time.as_second()).unwrap_or(0));
            field(written, number, &seconds);
        }
        ("IntOrString", Value::Number(port)) => {
            let mut either = Vec::new();
            varint(&mut either, 2, port.as_u64().unwrap_or(0));
            field(written, number, &either);
        }
        ("FieldsV1", fields) => {
            let mut raw = Vec::new();
            field(&mut raw, 1, fields.to_string().as_bytes());
            field(written, number, &raw);
        }
        ("", Value::String(text)) => field(written, number, text.as_bytes()),
        ("", Value::Bool(value)) => varint(written, number, u64::from(*value)),
        // A negative number is sign-extended to ten bytes.
        ("", Value::Number(value)) => varint(written, number, value.as_i64().unwrap_or(0).cast_unsigned()),
        (kind, Value::Object(_)) => field(written, number, &message(kind, value)),
        _ => panic!("{value} cannot be written as {shape:?}"),
    }
}

/// A field that begins with its length.
fn field(written: &mut Vec<u8>, number: usize, value: &[u8]) {
    number_alone(written, (number << 3) | 2);
    number_alone(written, value.len());
    written.extend(value);
}

fn varint(written: &mut Vec<u8>, number: usize, value: u64) {
    number_alone(written, number << 3);
    number_alone(written, usize::try_from(value).unwrap_or(0));
}

/// A varint: seven bits in each byte, the lowest first, and a bit that says whether another byte follows.
fn number_alone(written: &mut Vec<u8>, mut value: usize) {
    while value > 0x7f {
        written.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
        value >>= 7;
    }
    written.push(u8::try_from(value).unwrap_or_default());
}
