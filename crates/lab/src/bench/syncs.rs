//! Times of syncs: the first one, a restart, the first VIP, the periodic comparison, and how phases grow.

use std::{
    fs,
    net::UdpSocket,
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use guest::programs::processor_times;
use ipvs::{Ipvs as _, KernelIpvs, VirtualServerId};
use testkit::{
    daemon::eventually_within,
    kernel_baseline::{self, Size, read, write},
    lab::Lab,
};

use super::{
    case::{Binding, Program},
    endpoint_change::{AT_ONCE, changes},
    figures::{ColdSync, Figures, Phases},
    node::{Node, PATIENCE, Process, Running, Syncs, between},
};

/// The first sync of a node that has nothing, and how long everything takes from the start and from the lists on.
pub(super) fn cold_sync(size: Size, program: Program) -> Result<Figures> {
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

/// A second start over what the first has written: nothing must be written again.
pub(super) fn restart(size: Size, binding: Binding) -> Result<Figures> {
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
    let (before, spent_before) = (node.syncs()?, processor_time(running.id())?);
    let after = eventually_within(PATIENCE, "the period is over often enough", || {
        thread::sleep(Duration::from_millis(480));
        let now = node.syncs()?;
        ensure!(now.count >= before.count + f64::from(times), "{} syncs", now.count);
        Ok(now)
    })?;
    let spent = processor_time(running.id())? - spent_before;
    let daemon = running.kube_ipvs()?;
    let status = daemon.status(&node.lab.node)?;
    let report = status.pointer("/last_full_sync/report").context("no full sync in the status")?;
    ensure!(report.get("done").is_some_and(|done| done == 0), "there was something to do: {report}");
    let Syncs { count, took, .. } = after;
    let syncs = count - before.count;
    Ok(Figures::Reconcile { wall: (took - before.took) / syncs, processor: spent / syncs })
}

/// The processor time of a process, in seconds.
fn processor_time(process: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let [own, _] = processor_times(&stat).context("a stat without times")?;
    Ok(own.as_secs_f64())
}

/// Enough for a median.
const CHANGES: u32 = 20;

/// One size of several: what each phase of kube-ipvs takes, for seeing how it grows.
pub(super) fn growth(size: Size, binding: Binding) -> Result<Figures> {
    let node = Node::new(size)?;
    let program = Program::KubeIpvs(binding);
    let running = node.start(program, &[AT_ONCE])?;
    let cold_sync = wait(&node, &running)?;
    thread::sleep(REST);
    let memory = resident_memory(running.id())?;

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

/// What the kernel itself needs, with no program in between.
pub(super) fn kernel_baseline(size: Size, binding: Binding) -> Result<Figures> {
    let lab = Lab::new(0, testkit::kernel_baseline::TARGET_PORT)?;
    let (written, reading) = lab.node.inside(move || {
        let written = write(size, binding.into())?;
        anyhow::Ok((written, read(binding.into())?))
    })??;
    Ok(Figures::KernelBaseline {
        write: written.as_secs_f64(),
        read_ipvs_by_netlink: reading.ipvs_by_netlink.as_secs_f64(),
        read_ipvs_as_text: reading.ipvs_as_text.as_secs_f64(),
        read_rest: reading.rest.as_secs_f64(),
    })
}

/// The time in which memory that only the sync needed is given back, if ever.
pub(super) const REST: Duration = Duration::from_secs(10);

/// Resident memory: at rest after the first sync, and the peak until then.
pub(super) fn memory(size: Size, program: Program) -> Result<Figures> {
    let node = Node::new(size)?;
    let running = node.start(program, &[])?;
    node.synced(&running)?;
    thread::sleep(REST);
    let Memory { steady, peak } = resident_memory(running.id())?;
    Ok(Figures::Memory { steady, peak })
}

/// What a process has, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) steady: u64,
    pub(super) peak: u64,
}

/// Reads it from /proc.
pub(super) fn resident_memory(process: u32) -> Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kibibytes.map(|kibibytes| kibibytes * 1024).with_context(|| format!("no {name} in {status}"))
    };
    Ok(Memory { steady: bytes("VmRSS:")?, peak: bytes("VmHWM:")? })
}
