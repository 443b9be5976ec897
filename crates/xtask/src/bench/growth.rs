//! One size of several: what each phase of kube-ipvs takes, for seeing how it grows.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use testkit::floor::Size;

use super::api::Resource;
use super::case::{Binding, Figures, Phases, Program};
use super::endpoint_change::{AT_ONCE, changes};
use super::memory::{self, REST};
use super::node::{Node, Process, between};

/// Enough for a median.
const CHANGES: u32 = 20;

pub(super) fn measure(size: Size, binding: Binding) -> Result<Figures> {
    let node = Node::new(size)?;
    let program = Program::KubeIpvs(binding);
    let running = node.start(program, &[AT_ONCE])?;
    let synced = node.synced(&running)?;
    let (services, slices) = (node.api.sent(Resource::Services)?, node.api.sent(Resource::EndpointSlices)?);
    let complete = services.complete.max(slices.complete);
    thread::sleep(REST);
    let memory = memory::of(running.id())?;

    let Process::KubeIpvs(daemon) = &running.process else { bail!("kube-ipvs was asked for") };
    let begun = Instant::now();
    daemon.ask(&node.lab.node, "resync")?;
    let resync = begun.elapsed();
    // A change that comes while another look at everything goes on would wait for it.
    thread::sleep(Duration::from_secs(1));
    let (change, _) = changes(&node, program, CHANGES)?;
    Ok(Figures::Growth(Phases {
        lists: between(services.asked.min(slices.asked), complete)?,
        sync: between(complete, synced)?,
        resync: resync.as_secs_f64(),
        change: change.p50,
        steady: memory.steady,
        peak: memory.peak,
    }))
}
