//! A controller makes thousands of Services, and a namespace with a thousand is deleted, while others are used.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::clients::Clients;
use crate::{
    crowd,
    kubectl::patiently,
    node::Node,
    state::Cluster,
    web::{End, Web},
};

/// Meanwhile an application is rolled and asked: no request fails. Each node ends up with what it should have.
pub(super) fn come_and_go(cluster: &Cluster) -> Result<()> {
    let done = under_load(cluster);
    // Without a word: the first complaint counts.
    drop(crowd::delete_all());
    done
}

fn under_load(cluster: &Cluster) -> Result<()> {
    crowd::delete_all()?;
    let web = Web::deploy(cluster, 4, End::Drained)?;
    let node = cluster.first_worker()?;
    let before = virtual_servers(node)?;
    let clients = Clients::start(cluster, &web, 0)?;
    let started = Instant::now();
    for namespace in crowd::NAMESPACES {
        crowd::make(namespace)?;
        web.restart()?;
    }
    println!("{} Services were made in {:.0} s", crowd::SIZE, started.elapsed().as_secs_f64());
    follow(cluster, before + crowd::SIZE)?;

    let started = Instant::now();
    crowd::delete_all()?;
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
