//! One size of several: what each phase of kube-ipvs takes, for seeing how it grows.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use testkit::kernel_baseline::Size;

use super::{
    case::{Binding, Program},
    cold_sync,
    endpoint_change::{AT_ONCE, changes},
    figures::{Figures, Phases},
    memory::{self, REST},
    node::Node,
};

/// Enough for a median.
const CHANGES: u32 = 20;

pub(super) fn measure(size: Size, binding: Binding) -> Result<Figures> {
    let node = Node::new(size)?;
    let program = Program::KubeIpvs(binding);
    let running = node.start(program, &[AT_ONCE])?;
    let cold_sync = cold_sync::wait(&node, &running)?;
    thread::sleep(REST);
    let memory = memory::read(running.id())?;

    let daemon = running.kube_ipvs()?;
    let begun = Instant::now();
    daemon.ask(&node.lab.node, "resync")?;
    let resync = begun.elapsed();
    // A change that comes during a full comparison would wait for it.
    thread::sleep(Duration::from_secs(1));
    let (change, _) = changes(&node, program, CHANGES)?;
    Ok(Figures::Growth(Phases {
        cold_sync,
        resync: resync.as_secs_f64(),
        change: change.p50,
        steady: memory.steady,
        peak: memory.peak,
    }))
}
