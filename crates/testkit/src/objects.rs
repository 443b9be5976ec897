//! A cluster as the API server sends it: a Node, and Services of one TCP port with their endpoints elsewhere.
//! For measurements: everything follows from numbers.

use std::{net::Ipv4Addr, ops::Range};

use serde_json::{Value, json};

use crate::kernel_baseline::{PORT, Size, TARGET_PORT, pod, vip};

/// The Node that the programs under test run on, by the name they are started with.
pub fn node(ip: Ipv4Addr) -> Value {
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
        "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": ip}]},
    })
}

/// As the API server fills in what `kubectl expose` leaves out.
pub fn service(number: u32) -> Value {
    let (name, ip) = (name(number), vip(number));
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(&name, &json!({"app": name})),
        "spec": {
            "clusterIP": ip,
            "clusterIPs": [ip],
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"port": PORT, "protocol": "TCP", "targetPort": TARGET_PORT}],
            "selector": {"app": name},
            "sessionAffinity": "None",
            "type": "ClusterIP",
        },
        "status": {"loadBalancer": {}},
    })
}

/// As the EndpointSlice controller writes it, with all endpoints of the Service.
pub fn slice(size: Size, number: u32) -> Value {
    slice_of(number, size.endpoints_of(number))
}

/// The same with the last endpoint left out.
pub fn shortened_slice(size: Size, number: u32) -> Value {
    let Range { start, end } = size.endpoints_of(number);
    slice_of(number, start..end.saturating_sub(1))
}

/// The EndpointSlice of a Service with these endpoints.
pub fn slice_of(number: u32, endpoints: impl Iterator<Item = u32>) -> Value {
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
    let labels = json!({
        "app": service,
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        "kubernetes.io/service-name": service,
    });
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata(&format!("{service}-abcde"), &labels),
        "addressType": "IPv4",
        "endpoints": endpoints.map(endpoint).collect::<Value>(),
        "ports": [{"name": "", "port": TARGET_PORT, "protocol": "TCP"}],
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

/// With the managed fields, which a real server sends to everybody.
fn metadata(name: &str, labels: &Value) -> Value {
    json!({
        "name": name,
        "namespace": "default",
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
