//! Installs and removes kube-ipvs in each documented way, with the documents' own commands.

pub(super) mod another_mode;
pub(super) mod as_service;
mod back;
pub(super) mod by_manifests;
pub(super) mod by_patch;
pub(super) mod mishaps;

use std::{fs, io::ErrorKind, os::unix::fs::symlink, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use guest::platform::{self, Platform};
use serde_json::Value;

use super::clients::{Clients, RATE};
use crate::{
    documents,
    kubectl::{self, patiently},
    node::Node,
    proxy,
    state::{self, Cluster},
    web::{End, Web},
};

/// How many connections each client holds, where nothing else is said.
const HELD: u32 = 25;

/// The image's tag in the documents, and one that stands for the next version.
pub(super) const TAG: &str = env!("CARGO_PKG_VERSION");
const NEXT_TAG: &str = "0.1.1-next";

/// An application, whose clients lose nothing.
struct UnderLoad {
    web: Web,
    /// How many requests a second they make together.
    rate: u32,
    /// How many connections each of them holds meanwhile.
    held: u32,
}

impl UnderLoad {
    fn new(web: Web) -> Self {
        Self { web, rate: RATE, held: HELD }
    }

    fn during<T>(&self, cluster: &Cluster, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let clients = Clients::start_at_rate(cluster, &self.web, self.rate, self.held)?;
        let done = work();
        let outcomes = clients.end();
        // What went wrong with the work explains what became of the requests.
        let (done, outcomes) = (done?, outcomes?);
        outcomes.expect_all_answered()?;
        outcomes.expect_no_silence()?;
        outcomes.expect_all_held()?;
        Ok(done)
    }
}

/// Gives the nodes both images, which differ by name, and starts the application.
fn prepare(cluster: &Cluster) -> Result<UnderLoad> {
    proxy::build_image()?;
    let (image, next) = (proxy::IMAGE, proxy::IMAGE.replace(TAG, NEXT_TAG));
    for node in &cluster.nodes {
        proxy::load_image(node)?;
        node.run(&format!("ctr --namespace k8s.io images tag --force {image} {next} >/dev/null"))?;
    }
    Ok(UnderLoad::new(Web::deploy(cluster, 4, End::Drained)?))
}

/// "Check a node" of docs/install.md, in its pod, which is ready and has the image of this tag: all that it says is
/// good.
fn check(node: &Node, app: &str, tag: &str) -> Result<()> {
    let pod = patiently(Duration::from_secs(120), || ready_pod(node, app, tag))?;
    let on_node = format!("={}", node.name);
    let words = [("default/web", "default/kubernetes"), ("POD", &pod), ("=NODE", &on_node)];
    for command in documents::commands("install.md", "Check a node", &words)? {
        match command.strip_prefix("kube-ipvs ") {
            Some(words) => expect_good(words, &in_pod(&pod, words)?).with_context(|| node.name.clone())?,
            None => drop(documents::run(&command)?),
        }
    }
    expect_nothing_of_kube_proxy(node)
}

/// Fails unless the node soon has nothing of kube-proxy in nf_tables and iptables.
fn expect_nothing_of_kube_proxy(node: &Node) -> Result<()> {
    patiently(Duration::from_secs(30), || {
        let left = kube_proxy_rules(node)?;
        ensure!(left.is_empty(), "{} still has leftovers of kube-proxy: {left}", node.name);
        Ok(())
    })
}

/// `probe` and `trace`, in the pod of a node: all of cluster DNS answers, and a packet that the node sends there is
/// followed to a pod and back. Both fail otherwise.
fn follow_packets(node: &Node, app: &str, tag: &str) -> Result<()> {
    let pod = ready_pod(node, app, tag)?;
    patiently(Duration::from_secs(60), || {
        for words in ["probe kube-system/kube-dns", "trace kube-system/kube-dns --probe --count=1"] {
            in_pod(&pod, words).with_context(|| format!("{}: kube-ipvs {words}", node.name))?;
        }
        Ok(())
    })
}

/// What kube-ipvs prints in a pod.
fn in_pod(pod: &str, words: &str) -> Result<String> {
    kubectl::output(&format!("--namespace=kube-system exec {pod} -- kube-ipvs {words}"))
}

/// What docs/install.md says to expect of a command.
fn expect_good(words: &str, printed: &str) -> Result<()> {
    let is_good = match words.split(' ').next() {
        Some("status") => {
            let is_bad = |line: &str| line.starts_with("failed:") || line.starts_with("problem:");
            printed.lines().any(|line| line.starts_with("synced:") && line.contains("yes"))
                && !printed.lines().any(is_bad)
        }
        Some("diff") => printed.is_empty(),
        Some("explain") => printed.contains(" used,"),
        _ => bail!("no expectation for what kube-ipvs {words} prints: add it to expect_good"),
    };
    ensure!(is_good, "kube-ipvs {words}: {printed}");
    Ok(())
}

/// "Check a node" on every node, where packets end on the last one, and all nodes at once.
pub(super) fn check_all(cluster: &Cluster, app: &str, tag: &str) -> Result<()> {
    cluster.nodes.iter().try_for_each(|node| check(node, app, tag))?;
    let last = cluster.nodes.last().context("the cluster has no node")?;
    follow_packets(last, app, tag)?;
    check_fleet(cluster)
}

/// The name of the pod on a node, if it is the only one, ready, and has the image of this tag.
fn ready_pod(node: &Node, app: &str, tag: &str) -> Result<String> {
    let pod = only_pod(node, app)?;
    let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let image = text("/spec/containers/0/image");
    ensure!(image.ends_with(&format!(":{tag}")), "{}: the pod has the image {image}, not {tag}", node.name);
    ensure!(text("/metadata/deletionTimestamp").is_empty(), "{}: the pod is going", node.name);
    let is_ready = pod.pointer("/status/containerStatuses/0/ready") == Some(&Value::Bool(true));
    ensure!(is_ready, "{}: the pod is not ready", node.name);
    Ok(text("/metadata/name").to_owned())
}

/// The pods of an application on a node, as kubectl's words.
fn pods_on(node: &Node, app: &str) -> String {
    let name = &node.name;
    format!("--namespace=kube-system pods --selector=k8s-app={app} --field-selector=spec.nodeName={name}")
}

/// The pod on a node, if it is the only one.
fn only_pod(node: &Node, app: &str) -> Result<Value> {
    let pods = kubectl::json(&format!("get {}", pods_on(node, app)))?;
    match pods.pointer("/items").and_then(Value::as_array).map(Vec::as_slice) {
        Some([pod]) => Ok(pod.clone()),
        _ => bail!("{} has not one pod {app}", node.name),
    }
}

/// What kube-proxy has in nf_tables and iptables. Three chains whose name begins with KUBE are the kubelet's, and
/// KUBE-FORWARD stays where the host drops what it forwards (docs/migration.md).
fn kube_proxy_rules(node: &Node) -> Result<String> {
    let look = "set -e; nft list tables >/tmp/rules; ipset list -name >>/tmp/rules; \
         iptables-save >>/tmp/rules; ip6tables-save >>/tmp/rules; \
         grep -E 'kube-proxy|KUBE-' /tmp/rules | \
         grep -vE 'KUBE-(KUBELET-CANARY|IPTABLES-HINT|FIREWALL|FORWARD)' || true";
    node.run(look)
}

fn rolled_out() -> Result<()> {
    kubectl::wait_for_rollout("kube-system", "daemonset/kube-ipvs")
}

/// An address of the API server that works without Services.
fn server(cluster: &Cluster) -> Result<String> {
    Ok(format!("https://{}:6443", cluster.control_plane()?.ipv4()))
}

/// All nodes at once, by `kubectl ipvs` of docs/commands.md.
///
/// Asks every node through its pod: each is in order and lacks nothing, and a Service is the same on all.
fn check_fleet(cluster: &Cluster) -> Result<()> {
    let plugins = plugins()?;
    let all = format!("{} nodes", cluster.nodes.len());
    patiently(Duration::from_secs(30), || {
        let expected = [
            ("ipvs status", "in order"),
            ("ipvs diff", "nothing differs"),
            ("ipvs explain kube-system/kube-dns", ""),
        ];
        for (asked, answer) in expected {
            let printed = kubectl::output_with_plugins(&plugins, asked)?;
            let is_said_of_all = printed.lines().any(|line| line.starts_with(&all) && line.contains(answer));
            ensure!(is_said_of_all, "kubectl {asked}: {printed}");
        }
        Ok(())
    })
}

/// A directory with the program of the image, which was built for the cluster, by its other name.
fn plugins() -> Result<PathBuf> {
    let plugins = state::directory().join("plugins");
    let plugin = plugins.join("kubectl-ipvs");
    fs::create_dir_all(&plugins).context("making a directory for kubectl's plugins")?;
    match symlink(platform::built_program(Platform::HERE), &plugin) {
        // It leads to the same place each time.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made.with_context(|| plugin.display().to_string()),
    }?;
    Ok(plugins)
}

/// Changes these words in kubeadm's ConfigMap.
fn edit_configuration(from: &str, to: &str) -> Result<()> {
    let text = kubectl::output("--namespace=kube-system get configmap kube-proxy --output=yaml")?;
    ensure!(text.contains(from), "the ConfigMap kube-proxy has no {from:?}");
    let kubectl = "kubectl -n kube-system";
    let change =
        format!("{kubectl} get configmap kube-proxy -o yaml | sed 's/{from}/{to}/' | {kubectl} replace -f -");
    documents::run(&change).map(drop)
}

/// Waits until every node has this sync period. The kubelet writes a changed ConfigMap within a minute or two.
fn wait_for_configuration(cluster: &Cluster, sync_period: &str) -> Result<()> {
    let has_it =
        format!(r#"curl -s http://127.0.0.1:10249/configz | grep -q '"syncPeriod":"{sync_period}"'"#);
    let wait = |node: &Node| patiently(Duration::from_secs(180), || node.run(&has_it)).map(drop);
    cluster.nodes.iter().try_for_each(wait)
}
