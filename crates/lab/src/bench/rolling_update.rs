//! Every endpoint of some Services is replaced, one per change, at a steady pace: how far the kernel is
//! behind the watch.

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::mpsc::{Receiver, TryRecvError, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use ipvs::{Ipvs as _, KernelIpvs, VirtualServerId};
use testkit::{
    kernel_baseline::{self, Size},
    objects,
};

use super::{
    case::{Binding, Program},
    endpoint_change::{AT_ONCE, watch},
    figures::Figures,
    node::{Node, PATIENCE},
};
use crate::statistics::Percentiles;

/// Of all endpoints, this part is replaced.
const PART: u32 = 10;
/// 100 changes in a second.
const PACE: Duration = Duration::from_millis(10);
/// No full comparison is due meanwhile, so one that happens was caused by a change.
const NEVER: &str = "--ipvs-sync-period=1h";
/// The time in which the aftermath of a start, perhaps another full comparison, ends.
const AFTER_THE_START: Duration = Duration::from_secs(2);

/// A change: this Service is to have this endpoint from now on.
struct Expected {
    service: u32,
    endpoint: IpAddr,
}

pub(super) fn measure(size: Size) -> Result<Figures> {
    let node = Node::new(size)?;
    let running = node.start(Program::KubeIpvs(Binding::Route), &[AT_ONCE, NEVER])?;
    node.synced(&running)?;
    let watch = watch(&node)?;
    thread::sleep(AFTER_THE_START);
    let begun = Instant::now();
    let (sender, expected) = channel();
    let kernel = node.lab.node.spawn(move || arrivals(&expected))?;

    let services = size.services.div_ceil(PART);
    for (change, (step, service)) in
        (0..size.endpoints).flat_map(|step| (0..services).map(move |service| (step, service))).enumerate()
    {
        let due = begun + PACE * u32::try_from(change)?;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        // The new endpoints have the numbers after all others.
        let new = |old| old + size.services * size.endpoints;
        let old = size.endpoints_of(service);
        let replaced = old.start + step;
        let now = old.map(|number| if number > replaced { number } else { new(number) });
        node.api.change(&objects::slice_with(service, now));
        sender.send(Expected { service, endpoint: kernel_baseline::pod(new(replaced)).into() })?;
    }
    drop(sender);
    let arrived = kernel.join().map_err(|_| anyhow::anyhow!("looking at the kernel failed"))???;
    let lags = arrived.iter().map(|arrived| {
        let delivered = watch.recv_timeout(PATIENCE).context("the watch was silent")?;
        Ok(arrived.saturating_duration_since(delivered).as_secs_f64())
    });
    let lags = lags.collect::<Result<Vec<_>>>()?;

    let daemon = running.kube_ipvs()?;
    let status = daemon.status(&node.lab.node)?;
    let age = status.pointer("/last_full_sync/age").and_then(serde_json::Value::as_f64);
    let age = age.context("no full sync in the status")?;
    ensure!(age > begun.elapsed().as_secs_f64(), "there was a full sync {age} s ago");
    let changes = lags.len();
    Ok(Figures::RollingUpdate {
        changes,
        lag: Percentiles::from_times(lags).context("nothing was measured")?,
    })
}

/// When each change was in the kernel. They arrive in their order, several at a time if the program is
/// behind.
fn arrivals(expected: &Receiver<Expected>) -> Result<Vec<Instant>> {
    let mut kernel = KernelIpvs::open()?;
    let (mut open, mut arrived) = (VecDeque::new(), Vec::new());
    let mut last = Instant::now();
    loop {
        loop {
            match expected.try_recv() {
                Ok(expected) => open.push_back(expected),
                Err(TryRecvError::Disconnected) if open.is_empty() => return Ok(arrived),
                Err(_) => break,
            }
        }
        while let Some(Expected { service, endpoint }) = open.front() {
            let servers =
                kernel.real_servers(VirtualServerId::Address(kernel_baseline::address(*service)))?;
            let takes = |server: &ipvs::ObservedRealServer| {
                server.config.address.ip == *endpoint && server.config.weight > 0
            };
            if !servers.iter().any(takes) {
                break;
            }
            last = Instant::now();
            arrived.push(last);
            open.pop_front();
        }
        ensure!(open.is_empty() || last.elapsed() < PATIENCE, "a change has not reached the kernel");
        // Lets the program under test have the processor, if there is only one.
        thread::sleep(Duration::from_millis(1));
    }
}
