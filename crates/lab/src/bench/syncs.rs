//! Times of syncs: the first one, a restart, the first VIP, the periodic comparison, and how phases grow.

use std::{
    net::UdpSocket,
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use ipvs::{Ipvs as _, KernelIpvs, VirtualServerId};
use testkit::{
    daemon::eventually_within,
    kernel_baseline::{self, Size, read, write},
    lab::Lab,
};

use super::{
    case::{Binding, Program},
    endpoint_change::{AT_ONCE, changes},
    figures::{ColdSync, Figures, KernelBaseline, Memory, Phases},
    node::{Node, PATIENCE, Running, Syncs, between},
};
use crate::used;

/// The first sync of a node that has nothing, and how long everything takes from the start and from the lists on.
pub(super) fn cold_sync(size: Size, program: Program) -> Result<Figures> {
    let node = Node::new(size)?;
    let running = node.start(program, &[])?;
    wait(&node, &running).map(Figures::ColdSync)
}

/// Waits until the kernel has everything, and returns how long it took.
fn wait(node: &Node, running: &Running) -> Result<ColdSync> {
    let synced = node.synced(running)?;
    Ok(ColdSync {
        from_start: between(running.started, synced.end())?,
        from_lists: between(node.api.lists()?.complete, synced.end())?,
        in_syncs: synced.took,
    })
}

/// A second start over what the first has written: nothing must be written again.
pub(super) fn restart(size: Size, binding: Binding) -> Result<Figures> {
    let node = Node::new(size)?;
    let first = node.start(Program::KubeIpvs(binding), &[])?;
    node.synced(&first)?;
    first.kill()?;
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

/// The time between two checks; the program under test shares the processor.
const PAUSE: Duration = Duration::from_millis(1);

/// How soon a starting node reaches the API server through its Service: from the start of the program, and
/// from the first byte that it receives, until `default/kubernetes` is served.
pub(super) fn first_vip(size: Size, binding: Binding) -> Result<Figures> {
    let node = Node::new(size)?;
    let running = node.start(Program::KubeIpvs(binding), &[])?;
    let served = node.lab.node.inside(until_served)??;
    Ok(Figures::FirstVip {
        from_start: between(running.started, served)?,
        from_first_byte: between(node.api.first_byte()?, served)?,
    })
}

/// Waits until the first Service can be reached, and returns the time. A VIP becomes local to the node after
/// everything else, and only then can a socket be bound to it.
fn until_served() -> Result<SystemTime> {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = UdpSocket::bind((kernel_baseline::vip(0), 0)) {
        ensure!(Instant::now() < deadline, "the first VIP is not local to the node: {error}");
        thread::sleep(PAUSE);
    }
    let served = SystemTime::now();
    let servers = KernelIpvs::open()?.real_servers(VirtualServerId::Address(kernel_baseline::address(0)))?;
    servers.first().context("the first VIP has no real server")?;
    Ok(served)
}

/// Often, so that what the program does between two of them hardly counts.
const PERIOD: &str = "--ipvs-sync-period=1s";

/// The periodic comparison of everything, when there is nothing to do.
pub(super) fn reconcile(size: Size, binding: Binding, times: u32) -> Result<Figures> {
    let node = Node::new(size)?;
    let running = node.start(Program::KubeIpvs(binding), &[PERIOD])?;
    node.synced(&running)?;
    thread::sleep(Duration::from_secs(2));
    let (before, spent_before) = (node.syncs()?, used::processor(running.id())?);
    let after = eventually_within(PATIENCE, "the period is over often enough", || {
        thread::sleep(Duration::from_millis(480));
        let now = node.syncs()?;
        ensure!(now.count >= before.count + f64::from(times), "{} syncs", now.count);
        Ok(now)
    })?;
    let spent = used::processor(running.id())? - spent_before;
    let daemon = running.kube_ipvs()?;
    let status = daemon.status(&node.lab.node)?;
    let report = status.pointer("/last_full_sync/report").context("no full sync in the status")?;
    ensure!(report.get("done").is_some_and(|done| done == 0), "there was something to do: {report}");
    let Syncs { count, took, .. } = after;
    let syncs = count - before.count;
    Ok(Figures::Reconcile { wall: (took - before.took) / syncs, processor: spent / syncs })
}

/// Enough for a median.
const CHANGES: u32 = 20;

/// One size of several: what each phase of kube-ipvs takes, for seeing how it grows.
pub(super) fn growth(size: Size) -> Result<Figures> {
    let node = Node::new(size)?;
    let program = Program::KubeIpvs(Binding::Route);
    let running = node.start(program, &[AT_ONCE])?;
    let cold_sync = wait(&node, &running)?;
    thread::sleep(REST);
    let memory = resident_memory(&running)?;

    let daemon = running.kube_ipvs()?;
    let begun = Instant::now();
    daemon.ask(&node.lab.node, "resync")?;
    let resync = begun.elapsed();
    // A change that comes during a full comparison would wait for it.
    thread::sleep(Duration::from_secs(1));
    let (change, _) = changes(&node, program, CHANGES)?;
    Ok(Figures::Growth(Phases { cold_sync, resync: resync.as_secs_f64(), change: change.p50, memory }))
}

/// What the kernel itself needs, with no program in between.
pub(super) fn kernel_baseline(size: Size, binding: Binding) -> Result<Figures> {
    let lab = Lab::new(0, testkit::kernel_baseline::TARGET_PORT)?;
    let baseline = lab.node.inside(move || {
        anyhow::Ok(KernelBaseline { write: write(size, binding.into())?, read: read(binding.into())? })
    })??;
    Ok(Figures::KernelBaseline(baseline))
}

/// The time in which memory that only the sync needed is given back, if ever.
const REST: Duration = Duration::from_secs(10);

/// Resident memory: at rest after the first sync, and the peak until then.
pub(super) fn memory(size: Size, program: Program) -> Result<Figures> {
    let node = Node::new(size)?;
    let running = node.start(program, &[])?;
    node.synced(&running)?;
    thread::sleep(REST);
    resident_memory(&running).map(Figures::Memory)
}

pub(super) fn resident_memory(running: &Running) -> Result<Memory> {
    let [steady, peak] = used::memory(running.id())?.map(|kibibytes| f64::from(kibibytes) * 1024.0);
    Ok(Memory { steady, peak })
}
