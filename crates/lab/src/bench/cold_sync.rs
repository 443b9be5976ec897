//! The first sync of a node that has nothing, and how long everything takes from the start and from the lists on.

use anyhow::Result;
use testkit::kernel_baseline::Size;

use super::case::Program;
use super::figures::{ColdSync, Figures};
use super::node::{Node, between};

pub(super) fn measure(size: Size, program: Program) -> Result<Figures> {
    let node = Node::new(size)?;
    let running = node.start(program, &[])?;
    let synced = node.synced(&running)?;
    Ok(Figures::ColdSync(ColdSync {
        from_start: between(running.started, synced.end())?,
        from_lists: between(node.api.lists()?.complete, synced.end())?,
        in_syncs: synced.took,
    }))
}
