//! How soon a starting node reaches the API server through its Service: from the start of the program, and
//! from the first byte that it receives, until `default/kubernetes` is served.

use std::{
    net::UdpSocket,
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use ipvs::{Ipvs as _, KernelIpvs, VirtualServerId};
use testkit::kernel_baseline::{self, Size};

use super::{
    case::{Binding, Program},
    figures::Figures,
    node::{Node, PATIENCE, between},
};

/// The time between two checks; the program under test shares the processor.
const PAUSE: Duration = Duration::from_millis(1);

pub(super) fn measure(size: Size, binding: Binding) -> Result<Figures> {
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
