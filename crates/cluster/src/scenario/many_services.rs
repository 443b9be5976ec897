//! A controller makes thousands of Services without clients, and a namespace with a thousand is deleted, while others are
//! used.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::clients::Clients;
use crate::{
    kubectl::{self, patiently},
    node::Node,
    state::Cluster,
    web::{End, Web},
};

/// Meanwhile an application is rolled and asked: no request fails. Each node ends up with what it should have.
pub(super) fn come_and_go(cluster: &Cluster) -> Result<()> {
    let done = under_load(cluster);
    // Without a word: the first complaint counts.
    drop(delete_all());
    done
}

fn under_load(cluster: &Cluster) -> Result<()> {
    delete_all()?;
    let web = Web::deploy(cluster, 4, End::Drained)?;
    let node = cluster.first_worker()?;
    let before = virtual_servers(node)?;
    let clients = Clients::start(cluster, &web, 0)?;
    let started = Instant::now();
    for namespace in NAMESPACES {
        make(namespace)?;
        web.restart()?;
    }
    println!("{SIZE} Services were made in {:.0} s", started.elapsed().as_secs_f64());
    follow(cluster, before + SIZE)?;

    let started = Instant::now();
    delete_all()?;
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
            let there = virtual_servers(node)?;
            ensure!(there == expected, "{} has {there} virtual servers instead of {expected}", node.name);
            Ok(())
        })?;
    }
    println!("every node had {expected} virtual servers {:.1} s later", started.elapsed().as_secs_f64());
    Ok(())
}

fn virtual_servers(node: &Node) -> Result<usize> {
    let printed = node.run("ipvsadm -Ln | grep -c '^[TUS]'")?;
    printed.trim().parse().with_context(|| format!("ipvsadm on {} counts {printed:?}", node.name))
}

/// Where the Services are, and how many in each.
const NAMESPACES: [&str; 2] = ["crowd-1", "crowd-2"];
const EACH: usize = 1000;

/// How many one call of kubectl makes: beside tests a thousand can take longer than one may.
const AT_ONCE: usize = 100;

/// How many there are altogether.
const SIZE: usize = EACH * NAMESPACES.len();

/// Makes all of them.
pub(crate) fn make_all() -> Result<()> {
    NAMESPACES.iter().try_for_each(|namespace| make(namespace))
}

/// Makes a namespace and its Services, as fast as the API server takes them.
fn make(name: &str) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    kubectl::create(&[namespace])?;
    let services: Vec<_> = (0..EACH).map(|number| service(name, number)).collect();
    services.chunks(AT_ONCE).try_for_each(kubectl::create)
}

/// Deletes all of them that are there, with their namespaces, and waits until they are gone.
pub(crate) fn delete_all() -> Result<()> {
    let all = NAMESPACES.join(" ");
    kubectl::run(&format!("delete namespace {all} --ignore-not-found --wait --timeout=600s"))
}

fn service(namespace: &str, number: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": format!("service-{number}"), "namespace": namespace},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    })
}
