//! The periodic comparison of everything, when there is nothing to do.

use std::{fs, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use guest::process::processor_times;
use testkit::{daemon::eventually_within, kernel_baseline::Size};

use super::{
    case::{Binding, Program},
    figures::Figures,
    node::{Node, PATIENCE, Syncs},
};

/// Often, so that what the program does between two of them hardly counts.
const PERIOD: &str = "--ipvs-sync-period=1s";

pub(super) fn measure(size: Size, binding: Binding, times: u32) -> Result<Figures> {
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
