//! `cargo xtask cluster status`.

use anyhow::Result;

use crate::kubectl;
use crate::state::{self, Cluster};

/// Prints the nodes, and what runs on them.
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
    print!("{}", kubectl::output(&cluster, &["get", "nodes,pods", "--all-namespaces", "--output=wide"])?);
    Ok(())
}
