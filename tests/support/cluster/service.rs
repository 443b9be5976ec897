//! A Service and its slices, in the words of the API.

use std::net::{IpAddr, SocketAddr};

use ipvs::{Protocol, ServiceAddress};
use serde_json::{Value, json};
use testkit::lab::Lab;

/// A Service, and the endpoints in its slices, of which it has one for each of its families.
#[derive(Clone)]
pub(crate) struct Service {
    object: Value,
    endpoints: Vec<Endpoint>,
}

impl Service {
    /// A Service with this `spec`; `clusterIP` and `ipFamilies` follow from `clusterIPs`.
    pub(crate) fn new(name: &str, spec: &Value) -> Self {
        let object = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": name, "namespace": "default" },
        });
        let mut service = Self { object, endpoints: Vec::new() }.patch(&json!({ "spec": spec }));
        let vips = service.vips();
        service.object["spec"]["clusterIP"] = json!(vips[0]);
        service.object["spec"]["ipFamilies"] = vips.iter().map(|vip| family(*vip)).collect();
        service
    }

    /// `web4` or `web6`, with TCP port 80 at one ClusterIP.
    pub(crate) fn tcp(vip: &str) -> Self {
        let name = if vip.contains(':') { "web6" } else { "web4" };
        Self::new(name, &json!({ "clusterIPs": [vip], "ports": [{ "port": 80 }] }))
    }

    /// Changes what the patch names, and removes what it says is null (RFC 7386, as `kubectl patch`).
    pub(crate) fn patch(mut self, patch: &Value) -> Self {
        merge(&mut self.object, patch);
        self
    }

    /// `sessionAffinity: ClientIP`.
    pub(crate) fn affinity(self, seconds: u32) -> Self {
        self.patch(&json!({"spec": {
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": seconds } },
        }}))
    }

    /// The endpoints in the place of those it had.
    pub(crate) fn endpoints(mut self, endpoints: impl IntoIterator<Item = impl Into<Endpoint>>) -> Self {
        self.endpoints = endpoints.into_iter().map(Into::into).collect();
        self
    }

    pub(crate) fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap()
    }

    /// The first port at the first ClusterIP.
    pub(crate) fn address(&self) -> SocketAddr {
        let ServiceAddress { ip, port, .. } = self.cluster_addresses()[0];
        SocketAddr::new(ip, port)
    }

    /// Every port at every ClusterIP.
    pub(super) fn cluster_addresses(&self) -> Vec<ServiceAddress> {
        let at = |ip| {
            self.ports().iter().map(move |port| ServiceAddress {
                protocol: port["protocol"].as_str().map_or(Protocol::Tcp, |name| name.parse().unwrap()),
                ip,
                port: port["port"].as_u64().unwrap().try_into().unwrap(),
            })
        };
        self.vips().into_iter().flat_map(at).collect()
    }

    /// The pods that are its endpoints, by number.
    pub(super) fn pods(&self) -> Vec<usize> {
        self.endpoints.iter().map(|endpoint| endpoint.pod).collect()
    }

    fn vips(&self) -> Vec<IpAddr> {
        let vips = self.object["spec"]["clusterIPs"].as_array().unwrap();
        vips.iter().map(|vip| vip.as_str().unwrap().parse().unwrap()).collect()
    }

    fn ports(&self) -> &[Value] {
        self.object["spec"]["ports"].as_array().unwrap()
    }

    pub(crate) fn manifest(&self, lab: &Lab) -> Value {
        let slices = self.vips().into_iter().map(|vip| self.slice(lab, vip));
        let items: Vec<_> = [self.object.clone()].into_iter().chain(slices).collect();
        json!({ "apiVersion": "v1", "kind": "List", "items": items })
    }

    fn slice(&self, lab: &Lab, like: IpAddr) -> Value {
        let port = |port: &Value| {
            let patch = json!({ "port": super::POD_PORT, "nodePort": null });
            let mut port = port.clone();
            merge(&mut port, &patch);
            port
        };
        let endpoints: Value = self.endpoints.iter().map(|endpoint| endpoint.manifest(lab, like)).collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{}-{}", self.name(), family(like).to_lowercase()),
                "namespace": self.object["metadata"]["namespace"],
                "labels": { "kubernetes.io/service-name": self.name() },
            },
            "addressType": family(like),
            "ports": self.ports().iter().map(port).collect::<Value>(),
            "endpoints": endpoints,
        })
    }
}

/// A pod in the slices of a Service.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pod: usize,
    node: &'static str,
    zone: Option<&'static str>,
    conditions: Value,
    hints: Value,
}

/// A pod, by number from 1, that is ready and runs on the lab's node.
pub(crate) fn here(pod: usize) -> Endpoint {
    Endpoint { pod, node: "node", zone: None, conditions: json!({ "ready": true }), hints: json!({}) }
}

/// A pod that is ready and, as its slice has it, runs on another node.
pub(crate) fn elsewhere(pod: usize) -> Endpoint {
    here(pod).on("another-node")
}

/// A pod that is ready and has the network of the lab's node for its own.
pub(crate) fn host_network() -> Endpoint {
    here(HOST_NETWORK)
}

/// Stands for the node where a pod's number is expected.
const HOST_NETWORK: usize = 0;

impl From<usize> for Endpoint {
    fn from(pod: usize) -> Self {
        here(pod)
    }
}

impl Endpoint {
    /// As its slice has it, it runs on the node of this name.
    pub(crate) fn on(self, node: &'static str) -> Self {
        Self { node, ..self }
    }

    /// As its slice has it, it is in this zone.
    pub(crate) fn in_zone(self, zone: &'static str) -> Self {
        Self { zone: Some(zone), ..self }
    }

    /// It terminates and still serves.
    pub(crate) fn terminating(self) -> Self {
        Self { conditions: json!({ "ready": false, "serving": true, "terminating": true }), ..self }
    }

    /// Its slice has it for the nodes of this zone.
    pub(crate) fn for_zone(self, zone: &str) -> Self {
        Self { hints: json!({ "forZones": [{ "name": zone }] }), ..self }
    }

    fn manifest(&self, lab: &Lab, like: IpAddr) -> Value {
        let host = if self.pod == HOST_NETWORK { &lab.node } else { &lab.pods[self.pod - 1] };
        json!({
            "addresses": [host.address(like)],
            "nodeName": self.node,
            "zone": self.zone,
            "conditions": self.conditions,
            "hints": self.hints,
        })
    }
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv6() { "IPv6" } else { "IPv4" }
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (field, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(field);
        } else {
            merge(&mut target[field], value);
        }
    }
}
