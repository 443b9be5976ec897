//! A second start over what the first has written: nothing must be written again.

use anyhow::{Context as _, Result, ensure};
use testkit::kernel_baseline::Size;

use super::{
    case::{Binding, Program},
    figures::Figures,
    node::{Node, Process, between},
};

pub(super) fn measure(size: Size, binding: Binding) -> Result<Figures> {
    let node = Node::new(size)?;
    let first = node.start(Program::KubeIpvs(binding), &[])?;
    node.synced(&first)?;
    if let Process::KubeIpvs(daemon) = first.process {
        daemon.kill()?;
    }
    let second = node.start(Program::KubeIpvs(binding), &[])?;
    let synced = node.synced(&second)?;
    let daemon = second.kube_ipvs()?;
    let status = daemon.status(&node.lab.node)?;
    let report = status.pointer("/last_full_sync/report").context("no full sync in the status")?;
    ensure!(report.get("done").is_some_and(|done| done == 0), "something was written again: {report}");
    let lists = node.api.lists()?;
    Ok(Figures::Restart {
        list_transfer: between(lists.asked, lists.complete)?,
        ready: between(second.started, synced.end())?,
    })
}
