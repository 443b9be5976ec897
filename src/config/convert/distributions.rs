//! The configuration files of distributions that run kube-proxy themselves: k3s, RKE2, Talos.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Error,
    input::{kind, object, texts},
    present::{ClusterCidr, CommandLine, Inputs},
};

/// What k3s passes to kube-proxy unless `kube-proxy-arg` overrides it, but for what differs from node to node
/// and for the pods' ranges: `kubeProxyArgs` in pkg/daemons/agent/agent_linux.go, k3s 1.36.
const OF_K3S: [&str; 5] = [
    "--proxy-mode=iptables",
    "--healthz-bind-address=127.0.0.1",
    "--conntrack-max-per-core=0",
    "--conntrack-tcp-timeout-established=0s",
    "--conntrack-tcp-timeout-close-wait=0s",
];

/// Reads kube-proxy's arguments and the pods' ranges from the configuration file of k3s, or of RKE2, whose
/// agent is that of k3s.
pub(super) fn read_k3s(name: &str, file: &Value, present: &mut Inputs) -> Result<bool, Error> {
    let Value::Object(options) = file else { return Ok(false) };
    let of = ["kube-proxy-arg", "cluster-cidr", "disable-kube-proxy"].map(|option| given(options, option));
    let [arguments, ranges, _] = &of;
    if of.iter().all(Option::is_none) {
        return Ok(false);
    }
    // k3s gives its own flags only where none is given; of two the last counts.
    let arguments = arguments.iter().flatten().map(|argument| k3s_flag(argument));
    let verbosity = given(options, "v").into_iter().flatten().map(|level| format!("--v={level}"));
    let words = OF_K3S.map(str::to_owned).into_iter().chain(verbosity).chain(arguments).collect();
    present.add_command_line(CommandLine { name: name.to_owned(), words, config_maps: Vec::new() })?;
    present.cluster_cidr = ClusterCidr::Distribution(ranges.as_ref().map(|ranges| ranges.join(",")));
    Ok(true)
}

/// The flag of an argument. A plus adds it to that of k3s; the last one counts all the same.
fn k3s_flag(argument: &str) -> String {
    let argument = argument.trim_start_matches("--");
    match argument.split_once('=') {
        Some((name, value)) => format!("--{}={value}", name.trim_end_matches('+')),
        None => format!("--{argument}"),
    }
}

/// The values of an option. With a plus they are added to those of an earlier file.
fn given(options: &Map<String, Value>, option: &str) -> Option<Vec<String>> {
    let value = options.get(option).or_else(|| options.get(&format!("{option}+")))?;
    Some(texts(value))
}

/// The document that takes the place of `cluster.proxy`: pkg/machinery/config/types/k8s/proxy.go, Talos 1.14.
const PROXY: &str = "KubeProxyConfig";
/// The document that takes the place of `cluster.network`: network.go there.
const NETWORK: &str = "KubeNetworkConfig";

/// The mode without one, from Kubernetes 1.31 on.
const MODE: &str = "nftables";

/// The part of the main document that is read.
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

/// Whether one of these documents is of a machine configuration of Talos: its `cluster` section, or from
/// Talos 1.14 on documents of their own.
pub(super) fn is_talos(documents: &[Value]) -> bool {
    let is_one = |document: &Value| {
        let has_version = |field| document.get(field).and_then(Value::as_str) == Some("v1alpha1");
        let is_main =
            has_version("version") && (document.get("machine").or(document.get("cluster"))).is_some();
        is_main || has_version("apiVersion") && [PROXY, NETWORK].contains(&kind(document))
    };
    documents.iter().any(is_one)
}

/// Reads kube-proxy's arguments or file, and the pods' ranges, from a machine configuration of Talos.
pub(super) fn read_talos(name: &str, documents: Vec<Value>, present: &mut Inputs) -> Result<bool, Error> {
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

/// `manageProxyConfigArgs` in internal/app/machined/pkg/controllers/k8s/control_plane.go has the flags that
/// Talos adds.
fn by_flags(name: &str, proxy: Proxy, present: &mut Inputs) -> Result<(), Error> {
    let mode = proxy.mode.as_deref().filter(|mode| !mode.is_empty()).unwrap_or(MODE);
    let added = [format!("--proxy-mode={mode}"), "--conntrack-max-per-core=0".to_owned()];
    let words = added.into_iter().chain(flags(proxy.extra_args)).collect();
    present.add_command_line(CommandLine { name: name.to_owned(), words, config_maps: Vec::new() })
}

fn by_file(name: &str, proxy: Proxy, present: &mut Inputs) -> Result<(), Error> {
    let mut file = proxy.config.unwrap_or_default();
    file.insert("apiVersion".to_owned(), json!("kubeproxy.config.k8s.io/v1alpha1"));
    file.insert("kind".to_owned(), json!("KubeProxyConfiguration"));
    file.entry("mode").or_insert_with(|| json!(proxy.mode.unwrap_or_else(|| MODE.to_owned())));
    if let Value::Object(conntrack) = file.entry("conntrack").or_insert_with(|| json!({})) {
        conntrack.entry("maxPerCore").or_insert_with(|| json!(0));
    }
    let text = serde_saphyr::to_string(&file).map_err(crate::config::Error::Encode)?;
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
