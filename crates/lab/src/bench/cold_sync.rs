//! The first sync of a node that has nothing: from both lists complete to the last write.

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
        from_start: between(running.started, synced)?,
        from_lists: between(node.api.lists()?.complete, synced)?,
        in_syncs: node.syncs()?.took,
    }))
}
