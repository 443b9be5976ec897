//! The daemon on a node, as an operator measures it, and what the node's kernel has of it.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::kubectl::patiently;
use crate::node::Node;
use crate::state::Cluster;

/// kubeadm's DaemonSet calls it by kube-proxy's name.
pub(super) const PROCESS: &str = "$(pgrep --oldest --exact 'kube-proxy|kube-ipvs')";

/// What a daemon takes.
pub(super) struct Size {
    /// Resident.
    pub(super) memory_kib: u64,
    /// Open.
    pub(super) descriptors: u64,
}

impl Size {
    pub(super) fn of_daemon(cluster: &Cluster, node: &Node) -> Result<Self> {
        let script =
            format!("awk '/^VmRSS/ {{ print $2 }}' /proc/{PROCESS}/status; ls /proc/{PROCESS}/fd | wc -l");
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

/// Virtual and real servers, VIPs, and each line and element of the tables, in no order.
pub(super) fn kernel_state(cluster: &Cluster, node: &Node) -> Result<BTreeSet<String>> {
    let script = "ipvsadm -Sn; ip -oneline address show dev kube-ipvs0 | awk '{ print $4 }'; \
                  for family in ip ip6; do nft --stateless list table $family kube-ipvs | tr ',{}' '\\n\\n\\n' \
                  | sed 's/^[ \\t]*//; s/[ \\t]*$//' | sed \"s/^/$family /\"; done";
    Ok(node.run(cluster, script)?.lines().map(str::to_owned).collect())
}

/// Ends the daemon, empties the kernel of what it made, and lets the kubelet start another.
pub(super) fn start_afresh(cluster: &Cluster, node: &Node) -> Result<()> {
    let script = format!(
        "systemctl stop kubelet && kill {PROCESS} && while kill -0 {PROCESS} 2>/dev/null; do sleep 0.1; done; \
         ipvsadm -C && ip link delete kube-ipvs0 && nft delete table ip kube-ipvs && nft delete table ip6 kube-ipvs \
         && systemctl start kubelet"
    );
    node.run(cluster, &script)?;
    patiently(Duration::from_secs(180), || node.run(cluster, "curl -sf http://127.0.0.1:10256/readyz"))?;
    Ok(())
}
