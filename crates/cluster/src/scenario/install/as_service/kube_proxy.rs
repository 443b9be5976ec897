//! kube-proxy on one node, as a hand-made cluster has it: a systemd service, with the configuration of the others.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use guest::{go::control_plane, programs};
use serde_json::{Value, json};

use super::back;
use crate::{
    kubectl::{self, patiently},
    network,
    node::Node,
    proxy,
    state::Cluster,
};

/// Where its files are.
const DIRECTORY: &str = "/var/lib/kube-proxy";
const PROGRAM: &str = "/usr/local/bin/kube-proxy";
const UNIT: &str = "/etc/systemd/system/kube-proxy.service";

/// Where pods find what proves who they are.
const OF_PODS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The pod goes from the node, and the service starts.
pub(super) fn becomes_a_service(cluster: &Cluster, node: &Node) -> Result<()> {
    let program = control_plane::kube_proxy()?;
    let mut scp = network::on_router("scp");
    scp.arg("-q").args(Node::ssh_options(cluster)).arg(program).arg(format!("{}:{PROGRAM}", node.ssh_name()));
    programs::run(&mut scp).context("copying kube-proxy")?;
    let files = kubectl::json(&["--namespace=kube-system", "get", "configmap", "kube-proxy"])?;
    let file = |pointer: &str| files.pointer(pointer).and_then(Value::as_str).context("kubeadm's ConfigMap");
    let configuration = file("/data/config.conf")?;
    let kubeconfig = file("/data/kubeconfig.conf")?;
    ensure!(kubeconfig.contains(OF_PODS), "kubeadm's kubeconfig is another: {kubeconfig}");
    let token = ["--namespace=kube-system", "create", "token", "kube-proxy", "--duration=24h"];
    let authority = ["--namespace=kube-system", "get", "configmap", "kube-root-ca.crt"];
    let authority = kubectl::output(&[&authority[..], &["--output=jsonpath={.data.ca\\.crt}"]].concat())?;
    for (name, text) in [
        ("config.conf", configuration),
        ("kubeconfig.conf", &kubeconfig.replace(OF_PODS, DIRECTORY)),
        ("token", &kubectl::output(&token)?),
        ("ca.crt", &authority),
    ] {
        node.write(cluster, &format!("{DIRECTORY}/{name}"), text)?;
    }
    node.write(cluster, UNIT, &unit(node))?;
    let elsewhere = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node.name]},
        ]}],
    }}});
    choose_nodes(&elsewhere)?;
    // Only a flag says how the node is called then, until it is rebooted.
    let host_name = "hostname elsewhere";
    node.run(
        cluster,
        &format!("{host_name}; systemctl daemon-reload && systemctl enable --now kube-proxy 2>&1"),
    )?;
    serves(cluster, node)
}

/// The service goes from the node, with whatever a failure has left, and the pod returns.
pub(super) fn is_a_pod_again(cluster: &Cluster, node: &Node) -> Result<()> {
    let stop = "systemctl disable --now kube-proxy kube-ipvs; kube-ipvs cleanup --keep-ipvs; apt-get --yes purge kube-ipvs";
    let forget = format!("rm -rf {DIRECTORY} {PROGRAM} {UNIT} /etc/kube-ipvs /etc/default/kube-ipvs");
    node.run(cluster, &format!("{{ {stop}; }} >/dev/null 2>&1; {forget} && systemctl daemon-reload"))?;
    choose_nodes(&Value::Null)?;
    serves(cluster, node)
}

/// Waits until kube-proxy answers, and has synced in both families.
fn serves(cluster: &Cluster, node: &Node) -> Result<()> {
    patiently(Duration::from_secs(60), || node.run(cluster, "curl -sf http://127.0.0.1:10256/healthz"))?;
    back::wait_for_kube_proxy(cluster, node)
}

fn unit(node: &Node) -> String {
    format!(
        "[Service]
ExecStart={PROGRAM} --config={DIRECTORY}/config.conf --hostname-override={}
Restart=always
[Install]
WantedBy=multi-user.target
",
        node.name
    )
}

/// Where kubeadm's DaemonSet has pods.
fn choose_nodes(affinity: &Value) -> Result<()> {
    let patch = json!({"spec": {"template": {"spec": {"affinity": affinity}}}}).to_string();
    kubectl::output(&["--namespace=kube-system", "patch", "daemonset", "kube-proxy", "--patch", &patch])?;
    proxy::wait()
}
