//! Nodes that are drained, rebooted, lose power, and come back.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::clients::Clients;
use crate::{
    kubectl::{self, patiently},
    load_balancer::EXCLUDED,
    network,
    network::pods,
    node::Node,
    state::Cluster,
    up,
    web::{Address, Client, End, Web},
};

/// How long a node that is new or back is asked.
const ASKED: Duration = Duration::from_secs(10);

/// How long proxies may take to do what an EndpointSlice says.
const PROXIES_FOLLOW: Duration = Duration::from_secs(3);

/// The last worker is taken out of load balancers, drained and rebooted: no request fails. Then it loses power: what
/// went to it fails until the node's pods are taken out of their Services, and afterwards nothing does. At last a new
/// node joins, serves, and leaves.
pub(super) fn come_and_go(cluster: &Cluster) -> Result<()> {
    ensure!(cluster.workers().len() > 1, "the clients are on the only worker");
    let web = Web::deploy(cluster, 4, End::Drained)?;
    let node = cluster.workers().last().context("a cluster without workers")?;
    let done = drain_and_reboot(cluster, &web, node).and_then(|()| lose_power(cluster, &web, node));
    // Whatever has failed, it is used again.
    let returned = if node.is_on() { Ok(()) } else { boot(node) };
    let used = used_again(node);
    done?;
    returned?;
    used?;
    answers(cluster, &web, node)?;
    println!("{} is back", node.name);
    let clients = Clients::start(cluster, &web, 0)?;
    joins(cluster, &web)?;
    clients.end()?.expect_all_answered()
}

fn drain_and_reboot(cluster: &Cluster, web: &Web, node: &Node) -> Result<()> {
    let clients = Clients::start(cluster, web, 0)?;
    take_out(node)?;
    node.shut_down()?;
    boot(node)?;
    used_again(node)?;
    answers(cluster, web, node)?;
    println!("{} was drained and rebooted", node.name);
    clients.end()?.expect_all_answered()
}

fn lose_power(cluster: &Cluster, web: &Web, node: &Node) -> Result<()> {
    ensure!(web.ready_endpoints_on(node)? > 0, "no pod is on {}", node.name);
    node.cut_power()?;
    wait(node, "Unknown")?;
    patiently(Duration::from_secs(60), || {
        ensure!(web.ready_endpoints_on(node)? == 0, "endpoints on {} are still ready", node.name);
        Ok(())
    })?;
    println!("{} lost power, and the cluster knows", node.name);
    thread::sleep(PROXIES_FOLLOW);
    let clients = Clients::start(cluster, web, 0)?;
    thread::sleep(Duration::from_secs(20));
    clients.end()?.expect_all_answered()
}

/// A node joins, serves, and leaves.
fn joins(cluster: &Cluster, web: &Web) -> Result<()> {
    let number = u8::try_from(cluster.nodes.len())? + 1;
    let new = up::node(number);
    let mut more = Cluster::open()?;
    more.nodes.push(new.clone());
    more.save()?;
    let served = serves(&more, web, &new);
    // It leaves in any case.
    let left = new.cut_power().and_then(|()| network::disconnect(&new)).and_then(|()| new.forget());
    let deleted = kubectl::run(&format!("delete node {} --ignore-not-found", new.name));
    cluster.save()?;
    served?;
    left?;
    deleted
}

fn serves(cluster: &Cluster, web: &Web, new: &Node) -> Result<()> {
    up::boot(cluster, std::slice::from_ref(new))?;
    up::join(cluster, new)?;
    pods::connect(cluster)?;
    wait(new, "True")?;
    answers(cluster, web, new)?;
    println!("{} has joined, has pods, and serves", new.name);
    take_out(new)
}

/// The pods of the application move, some to this node, and it answers for all of them.
pub(super) fn answers(cluster: &Cluster, web: &Web, node: &Node) -> Result<()> {
    let is_ready = format!("curl -sf http://127.0.0.1:10256{}", cluster.proxy.readiness());
    patiently(Duration::from_secs(120), || node.run(&is_ready))?;
    web.restart()?;
    web.wait()?;
    ensure!(web.ready_endpoints_on(node)? > 0, "no pod was scheduled on {}", node.name);
    let load = web.ask(Client::Outside, Address::NodePort(node), 50, 0)?;
    thread::sleep(ASKED);
    let outcome = load.end()?;
    ensure!(outcome.failures() == 0, "{} does not serve: {:?}", node.name, outcome.failed);
    Ok(())
}

/// As before maintenance: load balancers lead elsewhere, and its pods move.
fn take_out(node: &Node) -> Result<()> {
    leave_out(node)?;
    let options = "--ignore-daemonsets --delete-emptydir-data --force --timeout=180s";
    kubectl::run(&format!("drain {} {options}", node.name))
}

/// Pods may be on it, and load balancers may lead to it.
fn used_again(node: &Node) -> Result<()> {
    lead_to(node)?;
    kubectl::run(&format!("uncordon {}", node.name))
}

/// Load balancers lead elsewhere.
pub(super) fn leave_out(node: &Node) -> Result<()> {
    kubectl::run(&format!("label node {} {EXCLUDED}=", node.name))
}

/// Load balancers lead there too.
pub(super) fn lead_to(node: &Node) -> Result<()> {
    kubectl::run(&format!("label node {} {EXCLUDED}-", node.name))
}

/// Switches it on, and waits until the cluster knows of this boot, and that the node is ready.
pub(super) fn boot(node: &Node) -> Result<()> {
    node.boot()?;
    node.wait_until_up()?;
    let boot = node.run("cat /proc/sys/kernel/random/boot_id")?;
    patiently(Duration::from_secs(120), || {
        let words = format!("get node {} --output=jsonpath={{.status.nodeInfo.bootID}}", node.name);
        ensure!(kubectl::output(&words)? == boot.trim(), "{} has not come back", node.name);
        Ok(())
    })?;
    wait(node, "True")
}

/// Waits until the cluster says this of the node's being ready.
fn wait(node: &Node, ready: &str) -> Result<()> {
    kubectl::run(&format!("wait --for=condition=Ready={ready} node {} --timeout=180s", node.name))
}
