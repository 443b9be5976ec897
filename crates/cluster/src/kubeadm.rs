//! kubeadm: init, join, and the configuration that both are given.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::{images, node::Node, proxy::Proxy, state::Cluster};

/// The subnets of pods and of Services; kubeadm gives each node a part of the first.
pub(crate) const POD_SUBNETS: &str = "10.244.0.0/16,fd00:10:244::/56";
const SERVICE_SUBNETS: &str = "10.96.0.0/16,fd00:10:96::/112";

/// What nodes join with.
const TOKEN: &str = "abcdef.0123456789abcdef";

/// What kubeadm finds missing here: User Mode Linux has one processor, and so no cpusets.
const IGNORED: [&str; 2] = ["NumCPU", "SystemVerification"];

/// Nodes are in as many zones: seven nodes are two workers in each, which some of Kubernetes' tests need.
const ZONES: u8 = 3;

/// Makes the first node a control plane.
pub(crate) fn init(cluster: &Cluster, proxy: Proxy) -> Result<()> {
    let node = cluster.control_plane()?;
    let documents = [
        json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "InitConfiguration",
            "localAPIEndpoint": {"advertiseAddress": node.ipv4(), "bindPort": 6443},
            "bootstrapTokens": [{"token": TOKEN, "ttl": "0s"}],
            "nodeRegistration": registration(node),
        }),
        json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "ClusterConfiguration",
            "kubernetesVersion": images::kubernetes_version()?,
            "networking": {"podSubnet": POD_SUBNETS, "serviceSubnet": SERVICE_SUBNETS},
            // Each write would wait for this machine's own disk.
            "etcd": {"local": {"extraArgs": [{"name": "unsafe-no-fsync", "value": "true"}]}},
        }),
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            // An image that was removed could not be pulled again.
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        }),
        json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": proxy.mode(),
        }),
    ];
    run(cluster, node, "init", &documents)
}

/// Makes a node a worker.
pub(crate) fn join(cluster: &Cluster, node: &Node) -> Result<()> {
    let server = format!("{}:6443", cluster.control_plane()?.ipv4());
    let document = json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "discovery": {
            "bootstrapToken": {"token": TOKEN, "apiServerEndpoint": server, "unsafeSkipCAVerification": true},
        },
        "nodeRegistration": registration(node),
    });
    run(cluster, node, "join", &[document])
}

/// How a node calls itself; everything else is kubeadm's default.
fn registration(node: &Node) -> Value {
    json!({
        "name": node.name,
        "kubeletExtraArgs": [
            {"name": "node-ip", "value": format!("{},{}", node.ipv4(), node.ipv6())},
            {"name": "node-labels", "value": format!("topology.kubernetes.io/zone=zone-{}", node.number % ZONES)},
        ],
        "ignorePreflightErrors": IGNORED,
    })
}

fn run(cluster: &Cluster, node: &Node, verb: &str, documents: &[Value]) -> Result<()> {
    let texts: Vec<String> = documents.iter().map(Value::to_string).collect();
    let path = "/etc/kubernetes/kubeadm.yaml";
    node.write(cluster, path, &texts.join("\n---\n"))?;
    let log = format!("/var/log/kubeadm-{verb}.log");
    let command = format!("kubeadm {verb} --config {path} >{log} 2>&1 || {{ tail -n 30 {log} >&2; false; }}");
    node.run(cluster, &command).map(drop).with_context(|| format!("kubeadm {verb}"))
}
