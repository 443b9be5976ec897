//! The cluster as the API server tells it: a Node, and Services of one TCP port with their endpoints elsewhere.

use std::net::Ipv4Addr;

use serde_json::{Value, json};
use testkit::floor::{PORT, Size, TARGET_PORT, pod, vip};

/// The Node that the programs under test run on, by the name they are started with.
pub(super) fn node(ip: Ipv4Addr) -> Value {
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
pub(super) fn service(number: u32) -> Value {
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

/// As the EndpointSlice controller writes it, with the last endpoint left out if `shortened`.
pub(super) fn slice(size: Size, number: u32, shortened: bool) -> Value {
    let service = name(number);
    let mut numbers = size.endpoints_of(number);
    if shortened {
        numbers.next_back();
    }
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
        "endpoints": numbers.map(endpoint).collect::<Value>(),
        "ports": [{"name": "", "port": TARGET_PORT, "protocol": "TCP"}],
    })
}

fn name(number: u32) -> String {
    format!("service-{number}")
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
