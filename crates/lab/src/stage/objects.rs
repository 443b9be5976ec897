//! Services and EndpointSlices as they are written to the API server.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Client,
    api::{DeleteParams, PostParams},
    core::Request,
};
use serde_json::{Value, json};
use testkit::objects::with;

/// The namespace of all of them.
pub(crate) const NAMESPACE: &str = "stage";
/// What pods listen on.
pub(crate) const POD_PORT: u16 = 8080;
/// The ports that a Service may have. A slice has them all, so that it need not change with the Service.
pub(crate) const PORTS: [u16; 4] = [80, 443, 8000, 9090];
/// Services that are written at the same time.
const AT_ONCE: usize = 32;
/// Endpoints from here on are no pods of the lab: nothing answers there.
const IMAGINARY: u8 = 100;

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Service,
    Slice,
}

/// One request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Write {
    Create(Kind, Value),
    Replace(Kind, Value),
    Delete(Kind, String),
}

/// An endpoint by its number: pod `number` of the lab if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) number: u8,
    pub(crate) condition: Condition,
}

/// How an endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Ready,
    Unready,
    Terminating,
}

impl Kind {
    /// A request for objects of this kind.
    fn request(self) -> Request {
        Request::new(match self {
            Self::Service => format!("/api/v1/namespaces/{NAMESPACE}/services"),
            Self::Slice => format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"),
        })
    }
}

impl Write {
    /// Asks the API server for it.
    pub(crate) async fn send(&self, client: &Client) -> Result<()> {
        let post = PostParams::default();
        let request = match self {
            Self::Create(kind, object) => kind.request().create(&post, serde_json::to_vec(object)?)?,
            Self::Replace(kind, object) => {
                let name = object.pointer("/metadata/name").and_then(Value::as_str);
                let name = name.context("an object without a name")?;
                kind.request().replace(name, &post, serde_json::to_vec(object)?)?
            }
            Self::Delete(kind, name) => kind.request().delete(name, &DeleteParams::default())?,
        };
        client.request::<Value>(request).await.map(drop).with_context(|| format!("{self:?}"))
    }
}

/// Writes what belongs to some Services: some at a time, what belongs to one in its order.
pub(crate) async fn write_all(client: &Client, services: impl Iterator<Item = Vec<Write>>) -> Result<()> {
    let services = stream::iter(services).map(anyhow::Ok);
    services
        .try_for_each_concurrent(AT_ONCE, async |writes| {
            for write in writes {
                write.send(client).await?;
            }
            Ok(())
        })
        .await
}

/// The namespace that they are in.
pub(crate) fn namespace() -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
}

/// A Service of IPv4, or of both families, with these ports and without endpoints.
pub(crate) fn service(name: &str, ports: &[u16], dual: bool) -> Value {
    let port = |port: &u16| json!({"name": port_name(*port), "port": port, "targetPort": POD_PORT});
    let policy = if dual { "RequireDualStack" } else { "SingleStack" };
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {"ipFamilyPolicy": policy, "ports": ports.iter().map(port).collect::<Value>()},
    })
}

/// The same Service with external addresses that are answered directly.
pub(crate) fn answered_directly(service: Value) -> Value {
    let annotations = json!({"kube-ipvs.io/forwarding-method": "tunnel"});
    let service = with(service, "/metadata", "annotations", annotations);
    with(service, "/spec", "externalIPs", json!(["203.0.113.20", "2001:db8:113::20"]))
}

/// The same Service, which ejects failing endpoints.
pub(crate) fn ejecting(service: Value) -> Value {
    with(service, "/metadata", "annotations", json!({"kube-ipvs.io/eject": "silent,refusing"}))
}

/// A slice of IPv4 of this Service.
pub(crate) fn slice(name: &str, of: &str, endpoints: &[Endpoint]) -> Value {
    slice_of_family(name, of, "IPv4", endpoints, |number| ipv4(number).into())
}

/// The same of IPv6.
pub(crate) fn slice_v6(name: &str, of: &str, endpoints: &[Endpoint]) -> Value {
    slice_of_family(name, of, "IPv6", endpoints, |number| ipv6(number).into())
}

/// A slice with as many endpoints as the API server takes, at other addresses in each round. Nothing answers there.
pub(crate) fn large_slice(of: &str, round: u8) -> Value {
    let endpoint = |number: u16| {
        let [high, low] = number.to_be_bytes();
        json!({"addresses": [Ipv4Addr::new(10, 128 + round, high, low)]})
    };
    with(slice(of, of, &[]), "", "endpoints", (0..1_000).map(endpoint).collect())
}

fn slice_of_family(
    name: &str,
    of: &str,
    family: &str,
    endpoints: &[Endpoint],
    address: impl Fn(u8) -> IpAddr,
) -> Value {
    let endpoint = |endpoint: &Endpoint| {
        let (ready, serving, terminating) = match endpoint.condition {
            Condition::Ready => (true, true, false),
            Condition::Unready => (false, false, false),
            Condition::Terminating => (false, true, true),
        };
        json!({
            "addresses": [address(endpoint.number)],
            "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
            "nodeName": if endpoint.number < IMAGINARY { "node" } else { "elsewhere" },
        })
    };
    let port = |port: &u16| json!({"name": port_name(*port), "port": POD_PORT});
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": NAMESPACE,
            "name": name,
            "labels": {"kubernetes.io/service-name": of},
        },
        "addressType": family,
        "ports": PORTS.iter().map(port).collect::<Value>(),
        "endpoints": endpoints.iter().map(endpoint).collect::<Value>(),
    })
}

fn port_name(port: u16) -> String {
    format!("p{port}")
}

/// As `testkit::lab` gives its pods addresses.
pub(crate) fn ipv4(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, number, 2)
}

fn ipv6(number: u8) -> Ipv6Addr {
    // The lab writes the number as if it were hexadecimal.
    let number = u16::from_str_radix(&number.to_string(), 16).unwrap_or_default();
    Ipv6Addr::new(0xfd00, 0x10, 0x244, number, 0, 0, 0, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_have_the_addresses_of_the_labs_pods() {
        assert_eq!(ipv4(2).to_string(), "10.244.2.2");
        assert_eq!(ipv6(12).to_string(), "fd00:10:244:12::2");
    }
}
