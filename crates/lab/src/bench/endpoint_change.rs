//! One endpoint goes and comes back: the time from the write at the API server to the kernel, compared with
//! the time in which the watch delivers the same change to a client that does nothing with it.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, bail, ensure};
use ipvs::{Ipvs as _, KernelIpvs, VirtualServerId};
use testkit::{
    daemon::eventually_within,
    kernel_baseline::{self, Size},
    objects,
};

use super::{
    case::Program,
    figures::Figures,
    node::{Node, PATIENCE, between},
};
use crate::statistics::Percentiles;

/// After a sync both programs wait a second before the next, unless an option says otherwise. A thousand changes that
/// far from each other would take too long.
pub(super) const AT_ONCE: &str = "--ipvs-min-sync-period=0s";
/// Between two changes to kube-ipvs.
const PAUSE: Duration = Duration::from_millis(20);
/// The same for kube-proxy: long after its last sync, so that it does not wait.
const PAUSE_OF_KUBE_PROXY: Duration = Duration::from_millis(2500);
/// The distance between changed Services, so that none is changed again soon.
const STRIDE: u32 = 7919;

pub(super) fn measure(size: Size, program: Program, times: u32) -> Result<Figures> {
    let node = Node::new(size)?;
    let arguments: &[_] = match program {
        Program::KubeIpvs(_) => &[AT_ONCE],
        Program::KubeProxy(_) => &[],
    };
    let running = node.start(program, arguments)?;
    node.synced(&running)?;
    let (kernel, watch) = changes(&node, program, times)?;
    Ok(Figures::EndpointChange { kernel, watch })
}

/// Makes this many changes; returns their times to the kernel, and by the watch alone.
pub(super) fn changes(node: &Node, program: Program, times: u32) -> Result<(Percentiles, Percentiles)> {
    let size = node.size;
    let pause = match program {
        Program::KubeIpvs(_) => PAUSE,
        Program::KubeProxy(_) => PAUSE_OF_KUBE_PROXY,
    };
    let watch = watch(node)?;
    let (mut kernel, mut delivered) = (Vec::new(), Vec::new());
    for change in 0..times {
        thread::sleep(pause);
        // Every second change restores what the previous one removed.
        let (service, shortened) = ((change / 2).wrapping_mul(STRIDE) % size.services, change % 2 == 0);
        let slice = if shortened { objects::shortened_slice } else { objects::slice }(size, service);
        let (start, written) = (Instant::now(), SystemTime::now());
        node.api.change(&slice);
        kernel.push(match program {
            Program::KubeIpvs(_) => {
                let endpoints = if shortened { size.endpoints - 1 } else { size.endpoints };
                node.lab.node.inside(move || until_there_are(endpoints, service, start))??
            }
            Program::KubeProxy(_) => after_sync(node, written)?,
        });
        let arrived = watch.recv_timeout(PATIENCE).context("the watch was silent")?;
        delivered.push(arrived.duration_since(start).as_secs_f64());
    }
    let figures = |times| Percentiles::from_times(times).context("nothing was measured");
    Ok((figures(kernel)?, figures(delivered)?))
}

/// When each event arrives at a client that only reads.
pub(super) fn watch(node: &Node) -> Result<Receiver<Instant>> {
    let address = node.api.address;
    let mut stream = node.lab.node.inside(move || TcpStream::connect(address))??;
    write!(stream, "GET /apis/discovery.k8s.io/v1/endpointslices?watch=true HTTP/1.1\r\nHost: api\r\n\r\n")?;
    let mut answer = BufReader::new(stream);
    // Its head ends with an empty line; from then on there are only events.
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        ensure!(answer.read_line(&mut line)? > 0, "no answer");
    }
    let (sender, receiver) = channel();
    thread::spawn(move || {
        // An event is behind its length.
        let mut length = [0; 4];
        while answer.read_exact(&mut length).is_ok() {
            let mut event = answer.by_ref().take(u32::from_be_bytes(length).into());
            if io::copy(&mut event, &mut io::sink()).is_err() || sender.send(Instant::now()).is_err() {
                break;
            }
        }
    });
    Ok(receiver)
}

/// Seconds from `start` until a virtual server has this many real servers that take new connections.
fn until_there_are(endpoints: u32, service: u32, start: Instant) -> Result<f64> {
    let mut kernel = KernelIpvs::open()?;
    let id = VirtualServerId::Address(kernel_baseline::address(service));
    while start.elapsed() < PATIENCE {
        let servers = kernel.real_servers(id)?;
        let taken = servers.iter().filter(|server| server.config.weight > 0).count();
        if taken == endpoints as usize {
            return Ok(start.elapsed().as_secs_f64());
        }
        // Leaves the processor to the program under test, if there is only one.
        thread::sleep(Duration::from_micros(100));
    }
    bail!("the change of Service {service} has not reached the kernel")
}

/// Seconds from the write to the end of the sync after it, by kube-proxy's own metric: polling the rules of
/// iptables or nftables would cost more than the sync.
fn after_sync(node: &Node, written: SystemTime) -> Result<f64> {
    let since_1970 = between(SystemTime::UNIX_EPOCH, written)?;
    eventually_within(PATIENCE, "a sync after the change", || {
        let passed = node.syncs()?.last_ended - since_1970;
        ensure!(passed > 0.0, "the last sync ended before the change");
        Ok(passed)
    })
}
