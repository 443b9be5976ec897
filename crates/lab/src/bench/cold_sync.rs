//! The first sync of a node that has nothing, and how long everything takes from the start and from the lists on.

use anyhow::Result;
use testkit::kernel_baseline::Size;

use super::{
    case::Program,
    figures::{ColdSync, Figures},
    node::{Node, Running, between},
};

pub(super) fn measure(size: Size, program: Program) -> Result<Figures> {
    let node = Node::new(size)?;
    let running = node.start(program, &[])?;
    wait(&node, &running).map(Figures::ColdSync)
}

/// Waits until the kernel has everything, and returns how long it took.
pub(super) fn wait(node: &Node, running: &Running) -> Result<ColdSync> {
    let synced = node.synced(running)?;
    Ok(ColdSync {
        from_start: between(running.started, synced.end())?,
        from_lists: between(node.api.lists()?.complete, synced.end())?,
        in_syncs: synced.took,
    })
}
