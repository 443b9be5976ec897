//! A machine configuration of Talos: its `cluster` section, or from Talos 1.14 on documents of their own.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    super::{
        Error,
        present::{ClusterCidr, CommandLine, Present},
    },
    kind, object, texts,
};
use crate::config;

/// The document that takes the place of `cluster.proxy`: pkg/machinery/config/types/k8s/proxy.go, Talos 1.14.
const PROXY: &str = "KubeProxyConfig";
/// The document that takes the place of `cluster.network`: network.go there.
const NETWORK: &str = "KubeNetworkConfig";

/// The mode without one, from Kubernetes 1.31 on.
const MODE: &str = "nftables";

/// As much of the main document as is read.
#[derive(Deserialize)]
struct Machine {
    cluster: Option<Cluster>,
}

/// Settings of the cluster.
#[derive(Default, Deserialize)]
struct Cluster {
    network: Option<Network>,
    proxy: Option<Proxy>,
}

/// The network.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Network {
    pod_subnets: Option<Vec<String>>,
}

/// kube-proxy.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Proxy {
    mode: Option<String>,
    extra_args: Option<BTreeMap<String, Value>>,
    /// The configuration file without its kind; only in a document of its own.
    config: Option<Map<String, Value>>,
}

/// Whether one of these documents is Talos'.
pub(super) fn is_among(documents: &[Value]) -> bool {
    let is_talos = |document: &Value| {
        let says = |field| document.get(field).and_then(Value::as_str) == Some("v1alpha1");
        let is_main = says("version") && (document.get("machine").or(document.get("cluster"))).is_some();
        is_main || says("apiVersion") && [PROXY, NETWORK].contains(&kind(document))
    };
    documents.iter().any(is_talos)
}

/// Reads how kube-proxy is started, and the pods' ranges.
pub(super) fn read(name: &str, documents: Vec<Value>, present: &mut Present) -> Result<bool, Error> {
    let (mut main, mut own, mut network) = (None, None, None);
    for document in documents {
        match kind(&document) {
            "" => main = object::<Machine>(name, "machine configuration", document)?.cluster,
            PROXY => own = Some(object::<Proxy>(name, PROXY, document)?),
            NETWORK => network = Some(object::<Network>(name, NETWORK, document)?),
            _ => {}
        }
    }
    let Cluster { network: in_main, proxy } = main.unwrap_or_default();
    let ranges = network.or(in_main).and_then(|network| network.pod_subnets);
    present.cluster_cidr = ClusterCidr::Distribution(ranges.map(|ranges| ranges.join(",")));
    match own {
        Some(own) => by_file(name, own, present)?,
        None => by_flags(name, proxy.unwrap_or_default(), present)?,
    }
    Ok(true)
}

/// `manageProxyConfigArgs` in internal/app/machined/pkg/controllers/k8s/control_plane.go has what Talos adds.
fn by_flags(name: &str, proxy: Proxy, present: &mut Present) -> Result<(), Error> {
    let mode = proxy.mode.as_deref().filter(|mode| !mode.is_empty()).unwrap_or(MODE);
    let added = [format!("--proxy-mode={mode}"), "--conntrack-max-per-core=0".to_owned()];
    let words = added.into_iter().chain(flags(proxy.extra_args)).collect();
    present.add_command_line(CommandLine { name: name.to_owned(), words, config_maps: Vec::new() })
}

fn by_file(name: &str, proxy: Proxy, present: &mut Present) -> Result<(), Error> {
    let mut file = proxy.config.unwrap_or_default();
    file.insert("apiVersion".to_owned(), json!("kubeproxy.config.k8s.io/v1alpha1"));
    file.insert("kind".to_owned(), json!("KubeProxyConfiguration"));
    file.entry("mode").or_insert_with(|| json!(proxy.mode.unwrap_or_else(|| MODE.to_owned())));
    if let Value::Object(conntrack) = file.entry("conntrack").or_insert_with(|| json!({})) {
        conntrack.entry("maxPerCore").or_insert_with(|| json!(0));
    }
    let text = serde_saphyr::to_string(&file).map_err(config::Error::Encode)?;
    present.add_file(format!("{name}: {PROXY}"), text)?;
    let words = flags(proxy.extra_args).collect();
    present.add_command_line(CommandLine { name: name.to_owned(), words, config_maps: Vec::new() })
}

/// A flag has one value, or several.
fn flags(of: Option<BTreeMap<String, Value>>) -> impl Iterator<Item = String> {
    of.unwrap_or_default()
        .into_iter()
        .flat_map(|(flag, values)| texts(&values).into_iter().map(move |value| format!("--{flag}={value}")))
}
