//! Nodes that are drained, rebooted, lose power, and come back.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::clients::Clients;
use crate::kubectl::{self, patiently};
use crate::node::Node;
use crate::state::Cluster;
use crate::web::{Address, End, Web};
use crate::{kubeadm, network, pod_network, up};

/// The last worker is drained and rebooted: no request fails. Then it loses power: what went to it fails until the
/// node's pods are taken out of their Services, and afterwards nothing does.
pub(super) fn come_and_go(cluster: &Cluster) -> Result<()> {
    let web = Web::deploy(cluster, 4, End::Drained)?;
    let node = cluster.workers().last().context("a cluster without workers")?;

    let clients = Clients::start(cluster, &web, 0)?;
    let drain =
        ["drain", &node.name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=180s"];
    kubectl::output(cluster, &drain)?;
    reboot(cluster, node)?;
    kubectl::output(cluster, &["uncordon", &node.name])?;
    web.restart()?;
    web.wait()?;
    println!("{} was drained and rebooted", node.name);
    clients.end()?.expect_all_answered()?;

    node.cut_power()?;
    wait(cluster, node, "Unknown")?;
    println!("{} lost power, and the cluster knows", node.name);
    // Pods of such a node are not ready at once; the proxies follow.
    std::thread::sleep(Duration::from_secs(10));
    let clients = Clients::start(cluster, &web, 0)?;
    std::thread::sleep(Duration::from_secs(20));
    clients.end()?.expect_all_answered()?;
    node.boot(cluster)?;
    node.wait_until_up(cluster)?;
    returns(cluster, node)?;
    println!("{} is back", node.name);
    let clients = Clients::start(cluster, &web, 0)?;
    joins(cluster, &web)?;
    clients.end()?.expect_all_answered()
}

/// A node joins, serves, and leaves.
fn joins(cluster: &Cluster, web: &Web<'_>) -> Result<()> {
    let number = u8::try_from(cluster.nodes.len())? + 1;
    let new = up::node(number);
    let mut more = Cluster::open()?;
    more.nodes.push(new.clone());
    more.save()?;
    up::boot(&more, std::slice::from_ref(&new))?;
    kubeadm::join(&more, &new)?;
    pod_network::connect(&more)?;
    wait(&more, &new, "True")?;
    let at = web.address(Address::NodePort(&new))?;
    patiently(Duration::from_secs(120), || {
        let mut curl = network::inside("curl");
        let status = curl
            .args(["--silent", "--fail", "--max-time", "2"])
            .arg(format!("http://{at}/hostname"))
            .status();
        ensure!(status?.success(), "{at} does not answer");
        Ok(())
    })?;
    println!("{} has joined, and serves at {at}", new.name);
    let drain =
        ["drain", &new.name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=180s"];
    kubectl::output(&more, &drain)?;
    kubectl::output(&more, &["delete", "node", &new.name])?;
    new.cut_power()?;
    network::disconnect(&new)?;
    cluster.save()
}

fn reboot(cluster: &Cluster, node: &Node) -> Result<()> {
    node.shut_down(cluster)?;
    node.boot(cluster)?;
    node.wait_until_up(cluster)?;
    returns(cluster, node)
}

/// Waits until the cluster knows of this boot of the node, and that it is ready.
fn returns(cluster: &Cluster, node: &Node) -> Result<()> {
    let boot = node.run(cluster, "cat /proc/sys/kernel/random/boot_id")?;
    patiently(Duration::from_secs(120), || {
        let known = ["get", "node", &node.name, "--output=jsonpath={.status.nodeInfo.bootID}"];
        ensure!(kubectl::output(cluster, &known)? == boot.trim(), "{} has not come back", node.name);
        Ok(())
    })?;
    wait(cluster, node, "True")
}

/// Waits until the cluster says this of the node's being ready.
fn wait(cluster: &Cluster, node: &Node, ready: &str) -> Result<()> {
    let condition = format!("--for=condition=Ready={ready}");
    kubectl::output(cluster, &["wait", &condition, "node", &node.name, "--timeout=180s"]).map(drop)
}
