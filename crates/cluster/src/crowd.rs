//! Two thousand Services without clients, for a cluster that is used meanwhile.

use anyhow::Result;
use serde_json::{Value, json};

use crate::kubectl;

/// Where they are, and how many in each.
pub(crate) const NAMESPACES: [&str; 2] = ["crowd-1", "crowd-2"];
const EACH: usize = 1000;

/// How many one call of kubectl makes: beside tests a thousand can take longer than one may.
const AT_ONCE: usize = 100;

/// How many there are altogether.
pub(crate) const SIZE: usize = EACH * NAMESPACES.len();

/// Makes a namespace and its Services, as fast as the API server takes them.
pub(crate) fn make(name: &str) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    kubectl::create(&[namespace])?;
    let services: Vec<_> = (0..EACH).map(|number| service(name, number)).collect();
    services.chunks(AT_ONCE).try_for_each(kubectl::create)
}

/// Deletes all of them that are there, with their namespaces, and waits until they are gone.
pub(crate) fn delete_all() -> Result<()> {
    let all = NAMESPACES.join(" ");
    kubectl::run(&format!("delete namespace {all} --ignore-not-found --wait --timeout=600s"))
}

fn service(namespace: &str, number: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": format!("service-{number}"), "namespace": namespace},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    })
}
