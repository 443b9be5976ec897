//! The daemon on a node, as an operator measures it, and what the node's kernel has of it.

use std::{collections::BTreeSet, fmt, time::Duration};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{
    kubectl::{self, patiently},
    node::Node,
    state::Cluster,
};

/// kubeadm's DaemonSet calls it by kube-proxy's name.
pub(super) const PROCESS: &str = "$(pgrep --oldest --exact 'kube-proxy|kube-ipvs')";

/// How its container has fared so far, as the kubelet counts it.
pub(super) struct Restarts {
    /// How often it was started again.
    pub(super) count: u64,
    /// Why it ended the last time.
    pub(super) reason: String,
}

impl Restarts {
    pub(super) fn of_daemon(node: &Node) -> Result<Self> {
        let field = format!("--field-selector=spec.nodeName={}", node.name);
        let pods = ["--namespace=kube-system", "get", "pods", "--selector=k8s-app=kube-proxy", &field];
        let pods = kubectl::json(&pods)?;
        let container =
            pods.pointer("/items/0/status/containerStatuses/0").context("no pod of the daemon")?;
        let count = container.pointer("/restartCount").and_then(Value::as_u64).context("no restartCount")?;
        let reason = container.pointer("/lastState/terminated/reason").and_then(Value::as_str);
        Ok(Self { count, reason: reason.unwrap_or_default().to_owned() })
    }
}

/// What a daemon takes.
pub(super) struct Size {
    /// Resident, without pages of files, which the kernel takes back when it likes.
    pub(super) memory_kib: u64,
    /// Open.
    pub(super) descriptors: u64,
}

impl Size {
    pub(super) fn of_daemon(cluster: &Cluster, node: &Node) -> Result<Self> {
        let script =
            format!("awk '/^RssAnon/ {{ print $2 }}' /proc/{PROCESS}/status; ls /proc/{PROCESS}/fd | wc -l");
        let printed = node.run(cluster, &script)?;
        let mut numbers = printed.lines().map(|line| line.trim().parse());
        let mut number =
            || numbers.next().and_then(Result::ok).with_context(|| format!("{}: {printed}", node.name));
        Ok(Self { memory_kib: number()?, descriptors: number()? })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KiB, {} descriptors", self.memory_kib, self.descriptors)
    }
}

/// Virtual and real servers, VIPs, and each line and element of the tables with its set or chain, in no order; before
/// each, how often it is there.
pub(super) type KernelState = BTreeSet<String>;

/// What there is now.
pub(super) fn kernel_state(cluster: &Cluster, node: &Node) -> Result<KernelState> {
    let script = "{ ipvsadm -Sn; ip -oneline address show dev kube-ipvs0 | awk '{ print $4 }'; \
                  for family in ip ip6; do nft --stateless list table $family kube-ipvs | awk -v family=$family ' \
                  /^\\t(set|map|chain|flowtable) / { place = $1 \" \" $2 } \
                  { count = split($0, parts, /[,{}]/); \
                    for (i = 1; i <= count; i++) { gsub(/^[ \\t]+|[ \\t]+$/, \"\", parts[i]); \
                    if (parts[i] != \"\") print family, place \": \" parts[i] } }'; done; } | sort | uniq -c";
    Ok(node.run(cluster, script)?.lines().map(str::to_owned).collect())
}

/// Ends the daemon, empties the kernel of what it made, and lets the kubelet start another, whatever went wrong.
pub(super) fn start_afresh(cluster: &Cluster, node: &Node) -> Result<()> {
    let script = format!(
        "trap 'systemctl start kubelet' EXIT; systemctl stop kubelet && daemon={PROCESS} && kill $daemon && \
         timeout 60 tail --pid=$daemon -f /dev/null && ipvsadm -C && ip link delete kube-ipvs0 && \
         nft delete table ip kube-ipvs && nft delete table ip6 kube-ipvs"
    );
    node.run(cluster, &script)?;
    patiently(Duration::from_secs(180), || node.run(cluster, "curl -sf http://127.0.0.1:10256/readyz"))?;
    Ok(())
}
