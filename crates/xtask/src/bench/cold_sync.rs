//! The first sync of a node that has nothing: from both lists complete to the last write.

use anyhow::Result;
use testkit::floor::Size;

use super::api::Resource;
use super::case::{Figures, Program};
use super::node::{Node, between};

pub(super) fn measure(size: Size, program: Program) -> Result<Figures> {
    let node = Node::new(size)?;
    let running = node.start(program, &[])?;
    let synced = node.synced(&running)?;
    let services = node.api.sent(Resource::Services)?.complete;
    let slices = node.api.sent(Resource::EndpointSlices)?.complete;
    Ok(Figures::ColdSync { seconds: between(services.max(slices), synced)? })
}
