//! The short form in which scripts write Services and EndpointSlices, and the objects it stands for.
//!
//! The words are the fields of the Kubernetes API. What is left out is left out of the object too.

use std::net::IpAddr;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Map, Value, json};

/// The Service of `service NAME FIELD=VALUE…`.
pub(crate) fn service(name: &str, fields: &str) -> Result<Value> {
    let mut object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}});
    let mut spec = Map::new();
    for (field, value) in pairs(fields)? {
        match field {
            "type" | "externalTrafficPolicy" | "internalTrafficPolicy" | "externalName" => {
                spec.insert(field.to_owned(), value.into());
            }
            "allocateLoadBalancerNodePorts" | "publishNotReadyAddresses" => {
                spec.insert(field.to_owned(), boolean(value)?.into());
            }
            "externalIPs" => drop(spec.insert(field.to_owned(), list(value).collect())),
            "ports" => drop(spec.insert(field.to_owned(), each(value, service_port)?)),
            "clusterIPs" => spec.extend(cluster_ips(value)?),
            "sessionAffinity" => spec.extend(session_affinity(value)?),
            "ingress" => object["status"] = json!({"loadBalancer": {"ingress": each(value, ingress)?}}),
            _ => set_label(&mut object, field, value)?,
        }
    }
    object["spec"] = spec.into();
    Ok(object)
}

/// The EndpointSlice of `slice NAME FIELD=VALUE…` and the lines below it, one endpoint each.
pub(crate) fn slice<'a>(
    name: &str,
    fields: &str,
    endpoints: impl IntoIterator<Item = &'a str>,
) -> Result<Value> {
    let endpoints = endpoints.into_iter().map(endpoint).collect::<Result<Vec<_>>>()?;
    let first = endpoints.first().and_then(|endpoint| endpoint["addresses"][0].as_str());
    let family = if first.is_some_and(|address| address.contains(':')) { "IPv6" } else { "IPv4" };
    let mut object = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": family,
        "endpoints": endpoints,
        "ports": [],
    });
    for (field, value) in pairs(fields)? {
        match field {
            "service" => set_label(&mut object, "label:kubernetes.io/service-name", value)?,
            "addressType" => object[field] = value.into(),
            "ports" => object[field] = each(value, slice_port)?,
            _ => set_label(&mut object, field, value)?,
        }
    }
    Ok(object)
}

/// `ADDRESS[,ADDRESS] FIELD=VALUE…`.
fn endpoint(line: &str) -> Result<Value> {
    let (addresses, fields) = line.split_once(' ').unwrap_or((line, ""));
    let mut object = json!({"addresses": list(addresses).collect::<Value>()});
    for (field, value) in pairs(fields)? {
        match field {
            "ready" | "serving" | "terminating" => object["conditions"][field] = boolean(value)?.into(),
            "node" => object["nodeName"] = value.into(),
            "zones" => object["hints"]["forZones"] = names(value),
            "nodes" => object["hints"]["forNodes"] = names(value),
            _ => bail!("an endpoint has no field {field}"),
        }
    }
    Ok(object)
}

/// `IP`, or one of each family; `None` is a headless Service.
fn cluster_ips(value: &str) -> Result<Map<String, Value>> {
    let mut spec = Map::new();
    spec.insert("clusterIP".into(), list(value).next().context("clusterIPs is empty")?);
    if value != "None" {
        let ips = list(value).collect::<Vec<_>>();
        let policy = if ips.len() == 2 { "RequireDualStack" } else { "SingleStack" };
        spec.insert("ipFamilyPolicy".into(), policy.into());
        spec.insert("clusterIPs".into(), ips.into());
    }
    Ok(spec)
}

/// `ClientIP/SECONDS`, or `None`.
fn session_affinity(value: &str) -> Result<Map<String, Value>> {
    let mut spec = Map::new();
    let (kind, seconds) = value.split_once('/').unwrap_or((value, ""));
    spec.insert("sessionAffinity".into(), kind.into());
    if kind == "ClientIP" {
        let seconds: u32 = seconds.parse().context("sessionAffinity is ClientIP/SECONDS or None")?;
        spec.insert("sessionAffinityConfig".into(), json!({"clientIP": {"timeoutSeconds": seconds}}));
    }
    Ok(spec)
}

/// `[NAME:]PORT[/PROTOCOL][@NODEPORT]`.
fn service_port(text: &str) -> Result<Value> {
    let (text, node_port) = match text.split_once('@') {
        Some((text, node_port)) => (text, Some(number(node_port)?)),
        None => (text, None),
    };
    let mut port = slice_port(text)?;
    if let Some(node_port) = node_port {
        port["nodePort"] = node_port.into();
    }
    Ok(port)
}

/// `[NAME:]PORT[/PROTOCOL]`.
fn slice_port(text: &str) -> Result<Value> {
    let (text, protocol) = text.split_once('/').unwrap_or((text, "TCP"));
    let (name, port) = text.split_once(':').unwrap_or(("", text));
    Ok(json!({"name": name, "port": number(port)?, "protocol": protocol}))
}

/// `IP[/MODE]` or `HOSTNAME`.
fn ingress(text: &str) -> Result<Value> {
    let (address, mode) = text.split_once('/').unwrap_or((text, ""));
    match (address.parse::<IpAddr>().is_ok(), mode) {
        (true, "") => Ok(json!({"ip": address})),
        (true, mode) => Ok(json!({"ip": address, "ipMode": mode})),
        (false, "") => Ok(json!({"hostname": address})),
        (false, _) => bail!("only an address has a mode, not {address}"),
    }
}

/// `label:KEY=VALUE`.
fn set_label(object: &mut Value, field: &str, value: &str) -> Result<()> {
    let label = field.strip_prefix("label:").with_context(|| format!("there is no field {field}"))?;
    object["metadata"]["labels"][label] = value.into();
    Ok(())
}

/// The words of a line, each FIELD=VALUE; no field twice.
pub(crate) fn pairs(fields: &str) -> Result<Vec<(&str, &str)>> {
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for word in fields.split_whitespace() {
        let (field, value) = word.split_once('=').with_context(|| format!("{word} is not FIELD=VALUE"))?;
        ensure!(pairs.iter().all(|(other, _)| *other != field), "{field} is given twice");
        pairs.push((field, value));
    }
    Ok(pairs)
}

/// The parts between commas; none of an empty text.
fn list(value: &str) -> impl Iterator<Item = Value> {
    value.split(',').filter(|part| !part.is_empty()).map(Value::from)
}

fn names(value: &str) -> Value {
    list(value).map(|name| json!({"name": name})).collect()
}

fn each(value: &str, make: impl Fn(&str) -> Result<Value>) -> Result<Value> {
    value.split(',').filter(|part| !part.is_empty()).map(make).collect()
}

fn boolean(value: &str) -> Result<bool> {
    value.parse().with_context(|| format!("{value} is neither true nor false"))
}

fn number(value: &str) -> Result<u16> {
    value.parse().with_context(|| format!("{value} is not a port"))
}
