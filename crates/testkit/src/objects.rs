//! A cluster as the API server sends it: a Node, and Services of one TCP port with their endpoints elsewhere.
//! For measurements: everything follows from numbers.

use std::{net::IpAddr, ops::Range};

use serde_json::{Value, json};

use crate::kernel_baseline::{PORT, Size, TARGET_PORT, pod, vip};

/// The Node that the programs under test run on, by the name they are started with.
pub fn node(addresses: &[IpAddr], pod_cidrs: &[&str]) -> Value {
    let address = |address: &IpAddr| json!({"type": "InternalIP", "address": address});
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "node",
            "uid": uid(),
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"kubernetes.io/hostname": "node"},
        },
        "spec": {"podCIDR": pod_cidrs.first(), "podCIDRs": pod_cidrs},
        "status": {"addresses": addresses.iter().map(address).collect::<Value>()},
    })
}

/// The Service of this number.
pub fn service(number: u32) -> Value {
    let ports = json!([{"port": PORT, "protocol": "TCP", "targetPort": TARGET_PORT}]);
    service_of("default", &name(number), &[vip(number).into()], &ports)
}

/// A Service with these ClusterIPs, as the API server fills in what `kubectl expose` leaves out.
pub fn service_of(namespace: &str, name: &str, ips: &[IpAddr], ports: &Value) -> Value {
    let family = |ip: &IpAddr| if ip.is_ipv4() { "IPv4" } else { "IPv6" };
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(namespace, name, &json!({"app": name})),
        "spec": {
            "clusterIP": ips.first(),
            "clusterIPs": ips,
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": ips.iter().map(family).collect::<Value>(),
            "ipFamilyPolicy": if ips.len() > 1 { "RequireDualStack" } else { "SingleStack" },
            "ports": ports,
            "selector": {"app": name},
            "sessionAffinity": "None",
            "type": "ClusterIP",
        },
        "status": {"loadBalancer": {}},
    })
}

/// The same object with this field, in the part of it that a JSON pointer names.
pub fn with(mut object: Value, part: &str, field: &str, value: Value) -> Value {
    if let Some(part) = object.pointer_mut(part).and_then(Value::as_object_mut) {
        part.insert(field.to_owned(), value);
    }
    object
}

/// With all endpoints of the Service.
pub fn slice(size: Size, number: u32) -> Value {
    slice_with(number, size.endpoints_of(number))
}

/// The same with the last endpoint left out.
pub fn shortened_slice(size: Size, number: u32) -> Value {
    let Range { start, end } = size.endpoints_of(number);
    slice_with(number, start..end.saturating_sub(1))
}

/// The EndpointSlice of the Service of this number with these endpoints.
pub fn slice_with(number: u32, endpoints: impl Iterator<Item = u32>) -> Value {
    let service = name(number);
    let endpoint = |number: u32| {
        json!({
            "addresses": [pod(number)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "elsewhere",
            "targetRef": {
                "kind": "Pod",
                "name": format!("{service}-{number}"),
                "namespace": "default",
                "uid": uid(),
            },
            "zone": "zone-a",
        })
    };
    let ports = json!([{"name": "", "port": TARGET_PORT, "protocol": "TCP"}]);
    slice_of(("default", &service), "abcde", "IPv4", &endpoints.map(endpoint).collect(), &ports)
}

/// An EndpointSlice of this Service, as the EndpointSlice controller writes it. Its name ends with `suffix`.
pub fn slice_of(
    (namespace, service): (&str, &str),
    suffix: &str,
    address_type: &str,
    endpoints: &Value,
    ports: &Value,
) -> Value {
    let labels = json!({
        "app": service,
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        "kubernetes.io/service-name": service,
    });
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata(namespace, &format!("{service}-{suffix}"), &labels),
        "addressType": address_type,
        "endpoints": endpoints,
        "ports": ports,
    })
}

/// The first is the API server's own, which a proxy should serve before all others.
fn name(number: u32) -> String {
    if number == 0 { "kubernetes".to_owned() } else { format!("service-{number}") }
}

/// As long as those of a real server.
fn uid() -> &'static str {
    "0e2f3a52-7f0b-4b7e-9f77-4a5d5f1f6a10"
}

/// With the managed fields, which a real server sends to every client.
fn metadata(namespace: &str, name: &str, labels: &Value) -> Value {
    json!({
        "name": name,
        "namespace": namespace,
        "uid": uid(),
        "resourceVersion": "1",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": labels,
        "managedFields": [{
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                "f:spec": {"f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}},
            },
            "manager": "kube-controller-manager",
            "operation": "Update",
            "time": "2026-01-01T00:00:00Z",
        }],
    })
}
