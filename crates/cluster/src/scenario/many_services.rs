//! A controller makes thousands of Services, and a namespace with a thousand is deleted, while others are used.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::clients::Clients;
use crate::kubectl::{self, patiently};
use crate::node::Node;
use crate::proxy::Proxy;
use crate::state::Cluster;
use crate::web::{End, Web};

/// How many are made in each of two namespaces.
const SERVICES: usize = 1000;
const CROWDS: [&str; 2] = ["crowd-1", "crowd-2"];

/// Meanwhile an application is rolled and asked: no request fails. Each node ends up with what it should have.
pub(super) fn come_and_go(cluster: &Cluster) -> Result<()> {
    ensure!(cluster.proxy == Proxy::KubeIpvs, "this looks at IPVS: it begins with cargo xtask cluster up");
    let web = Web::deploy(cluster, 4, End::Drained)?;
    let node = cluster.workers().first().context("a cluster without workers")?;
    let before = virtual_servers(cluster, node)?;
    let clients = Clients::start(cluster, &web, 0)?;
    let started = Instant::now();
    for crowd in CROWDS {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": crowd}});
        let services = (0..SERVICES).map(|number| service(crowd, number));
        kubectl::create(cluster, &[namespace].into_iter().chain(services).collect::<Vec<_>>())?;
        web.restart()?;
    }
    println!("{} Services were made in {:.0} s", SERVICES * CROWDS.len(), started.elapsed().as_secs_f64());
    follow(cluster, before + SERVICES * CROWDS.len())?;

    let started = Instant::now();
    for crowd in CROWDS {
        kubectl::output(cluster, &["delete", "namespace", crowd, "--wait", "--timeout=300s"])?;
    }
    println!("their namespaces were deleted in {:.0} s", started.elapsed().as_secs_f64());
    web.wait()?;
    follow(cluster, before)?;
    clients.end()?.expect_all_answered()
}

/// Waits until each node has so many virtual servers.
fn follow(cluster: &Cluster, expected: usize) -> Result<()> {
    let started = Instant::now();
    for node in &cluster.nodes {
        patiently(Duration::from_secs(60), || {
            let there = virtual_servers(cluster, node)?;
            ensure!(there == expected, "{} has {there} virtual servers instead of {expected}", node.name);
            Ok(())
        })?;
    }
    println!("every node had {expected} virtual servers {:.1} s later", started.elapsed().as_secs_f64());
    Ok(())
}

fn virtual_servers(cluster: &Cluster, node: &Node) -> Result<usize> {
    let printed = node.run(cluster, "ipvsadm -Ln | grep -c '^[TUS]'")?;
    printed.trim().parse().with_context(|| format!("ipvsadm on {} counts {printed:?}", node.name))
}

fn service(namespace: &str, number: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": format!("service-{number}"), "namespace": namespace},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    })
}
