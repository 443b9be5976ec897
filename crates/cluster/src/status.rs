//! `cargo xtask cluster status`.

use anyhow::{Result, ensure};

use crate::{
    kubectl,
    state::{self, Cluster},
};

/// Prints the nodes, and what runs on them. Fails if one is off.
pub(crate) fn run() -> Result<()> {
    let cluster = Cluster::open()?;
    for node in &cluster.nodes {
        let state = if node.is_on() { "on" } else { "off" };
        println!(
            "{:14} {:3} {} {} {}",
            node.name,
            state,
            node.ipv4(),
            node.ipv6(),
            node.directory().display()
        );
    }
    println!("{}", state::kubeconfig().display());
    print!("{}", kubectl::output(&["get", "nodes,pods", "--all-namespaces", "--output=wide"])?);
    let off: Vec<&str> =
        cluster.nodes.iter().filter(|node| !node.is_on()).map(|node| node.name.as_str()).collect();
    ensure!(off.is_empty(), "off: {}", off.join(", "));
    Ok(())
}
