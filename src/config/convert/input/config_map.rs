//! A ConfigMap with kube-proxy's file, as kubeadm makes it, and often with the kubeconfig beside it.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::super::{Error, present::Present};

/// As much of a ConfigMap as is read.
#[derive(Deserialize)]
struct ConfigMap {
    data: Option<BTreeMap<String, String>>,
}

/// As much of a kubeconfig as is read.
#[derive(Deserialize)]
struct Kubeconfig {
    kind: Option<String>,
    #[serde(default)]
    clusters: Vec<NamedCluster>,
}

/// A cluster in a kubeconfig.
#[derive(Deserialize)]
struct NamedCluster {
    cluster: Cluster,
}

/// Where a cluster is.
#[derive(Deserialize)]
struct Cluster {
    server: String,
}

/// Reads the file; a note names the API server of the kubeconfig.
pub(super) fn read(name: &str, object: serde_json::Value, present: &mut Present) -> Result<bool, Error> {
    let ConfigMap { data } = super::object(name, "ConfigMap", object)?;
    let mut is_something = false;
    for (key, text) in data.unwrap_or_default() {
        if text.contains("KubeProxyConfiguration") {
            present.add_file(format!("{name}: {key}"), text)?;
            is_something = true;
        } else if let Some(server) = api_server(&text) {
            present.notes.push(format!(
                "{key}: the API server is {server}: set it as server in manifests/base/kubeconfig.conf"
            ));
        }
    }
    Ok(is_something)
}

/// The API server, if the text is a kubeconfig.
fn api_server(text: &str) -> Option<String> {
    let Kubeconfig { kind, clusters } = serde_saphyr::from_str(text).ok()?;
    let first = clusters.into_iter().next()?;
    (kind.as_deref() == Some("Config")).then_some(first.cluster.server)
}
