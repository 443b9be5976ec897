//! The nodes with the clients, the pods, and one run of their requests or connections.

use std::{
    cell::Cell,
    fs,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use fastrand::Rng;
use testkit::lab::Fabric;

use super::{
    balancer::{Balancer, Chooser, Reply},
    figures::Seen,
    pods::{Capacity, Pods},
};
use crate::statistics::Percentiles;

/// Nothing of the fabric's own is asked.
const UNUSED: u16 = 8_080;
/// The first port of the first run's virtual server and pods. Each run has others: the kernel still counts the connections
/// of those before, and takes answers from the same pod to the same port of a client for theirs.
const PORTS: u16 = 9_000;
/// Answers at once; the client holds the connection.
const HOLDING_POD: Capacity = Capacity::new(1, Duration::ZERO, 10_000);

/// The clients' nodes, and how many pods there are.
pub(super) struct World {
    fabric: Fabric,
    pods: u8,
    /// The first port of the next run.
    port: Cell<u16>,
}

/// Requests that come at random.
#[derive(Clone, Copy)]
pub(super) struct Load {
    /// In a second, from all nodes.
    pub(super) rate: f64,
    /// How long they come.
    pub(super) length: Duration,
    pub(super) seed: u64,
}

impl World {
    pub(super) fn new(nodes: u32, pods: u32) -> Result<Self> {
        ensure!(pods <= 64, "with their successors, {pods} pods are more than a byte can number");
        let fabric = Fabric::new(&vec![0; nodes as usize], UNUSED)?;
        for node in &fabric.nodes {
            // Of a hundred namespaces together, estimators would be most of what is measured. Older kernels have no such
            // switch.
            node.inside(|| drop(fs::write("/proc/sys/net/ipv4/vs/run_estimation", "0")))?;
        }
        Ok(Self { fabric, pods: u8::try_from(pods)?, port: Cell::new(PORTS) })
    }

    pub(super) fn pods(&self) -> u8 {
        self.pods
    }

    /// Starts pods for one run. Its virtual server has the port of the first.
    fn start(&self, capacities: &[Capacity]) -> Result<(u16, Pods)> {
        let first = self.port.get();
        self.port.set(first + u16::try_from(capacities.len())?);
        Ok((first, Pods::start(&self.fabric.client, first, capacities)?))
    }

    /// Lets the nodes make their requests.
    pub(super) fn request(&self, chooser: Chooser, capacities: &[Capacity], load: Load) -> Result<Seen> {
        let (port, pods) = self.start(capacities)?;
        let targets: Vec<_> = (0..self.pods).map(|pod| pods.address(pod)).collect();
        let nodes = &self.fabric.nodes;
        let arrivals = arrivals(load, nodes.len());
        // Every node has its table by then.
        let begin = Instant::now()
            + Duration::from_millis(100)
            + Duration::from_millis(5) * u32::try_from(nodes.len())?;
        let mut threads = Vec::new();
        for (number, (node, times)) in nodes.iter().zip(arrivals).enumerate() {
            let (targets, rng) = (targets.clone(), node_rng(load.seed, number));
            let requests = move || Balancer::new(chooser, port, targets, rng)?.request(begin, &times);
            threads.push(node.spawn(requests)?);
        }
        let replies =
            threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a client panicked"))??);
        self.seen(&replies.collect::<Result<Vec<_>>>()?.concat())
    }

    /// What the clients saw.
    fn seen(&self, replies: &[Reply]) -> Result<Seen> {
        let mut counts = vec![0; self.pods.into()];
        let mut times = Vec::new();
        for (pod, time) in replies.iter().flatten() {
            count(&mut counts, *pod)?;
            times.push(*time);
        }
        let [asked, answered] = [replies.len(), times.len()].map(u32::try_from);
        let failed = 1.0 - f64::from(answered?) / f64::from(asked?);
        let times = Percentiles::from_times(times).context("nothing was answered")?;
        Ok(Seen { failed, ..Seen::from_counts(&counts).times(times) })
    }

    /// Opens long connections, so many to each pod on average and equally many from each node; then replaces every pod. How
    /// they are spread before and after.
    pub(super) fn hold(&self, chooser: Chooser, connections: u32, seed: u64) -> Result<[Seen; 2]> {
        let (port, pods) = self.start(&vec![HOLDING_POD; 2 * usize::from(self.pods)])?;
        let nodes = u32::try_from(self.fabric.nodes.len())?;
        let connections = (connections * u32::from(self.pods)).div_ceil(nodes);
        let successors = (0..self.pods).map(|pod| (pods.address(pod), pods.address(pod + self.pods)));
        let successors: Vec<_> = successors.collect();
        let mut counts = [vec![0; self.pods.into()], vec![0; self.pods.into()]];
        for (number, node) in self.fabric.nodes.iter().enumerate() {
            let (successors, rng) = (successors.clone(), node_rng(seed, number));
            let chosen = node.inside(move || hold(chooser, port, connections, &successors, rng))??;
            for (counts, chosen) in counts.iter_mut().zip(chosen) {
                chosen.into_iter().try_for_each(|pod| count(counts, pod % self.pods))?;
            }
        }
        Ok(counts.map(|counts| Seen::from_counts(&counts)))
    }
}

fn count(counts: &mut [u32], pod: u8) -> Result<()> {
    counts.get_mut(usize::from(pod)).map(|count| *count += 1).context("no such pod")
}

/// One node's connections: the pods that they are on, before and after each pod was replaced by its successor. Connections
/// of the old pod are opened anew.
fn hold(
    chooser: Chooser,
    port: u16,
    connections: u32,
    successors: &[(SocketAddr, SocketAddr)],
    rng: Rng,
) -> Result<[Vec<u8>; 2]> {
    let pods = successors.iter().map(|(old, _)| *old).collect();
    let mut balancer = Balancer::new(chooser, port, pods, rng)?;
    let mut held = (0..connections).map(|_| balancer.open()).collect::<Result<Vec<_>>>()?;
    let before = held.iter().map(|(pod, _)| *pod).collect();
    for (number, (old, new)) in (0..).zip(successors) {
        balancer.replace(*old, *new)?;
        let lost = held.extract_if(.., |(pod, _)| *pod == number).count();
        for _ in 0..lost {
            held.push(balancer.open()?);
        }
    }
    Ok([before, held.iter().map(|(pod, _)| *pod).collect()])
}

/// When each node makes its requests: those of all nodes together are independent of each other, and each comes from any
/// node.
fn arrivals(load: Load, nodes: usize) -> Vec<Vec<Duration>> {
    let mut rng = Rng::with_seed(load.seed);
    let mut arrivals = vec![Vec::new(); nodes];
    let mut now = 0.0;
    loop {
        now -= (1.0 - rng.f64()).ln() / load.rate;
        if now > load.length.as_secs_f64() {
            return arrivals;
        }
        if let Some(node) = rng.choice(&mut arrivals) {
            node.push(Duration::from_secs_f64(now));
        }
    }
}

/// Another one for each node and seed.
fn node_rng(seed: u64, node: usize) -> Rng {
    Rng::with_seed((seed << 32) + 1 + node as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_requests_whatever_chooses_and_another_seed_gives_others() {
        let load = |seed| Load { rate: 100.0, length: Duration::from_secs(10), seed };
        let all = |seed| arrivals(load(seed), 10);
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
        let count: usize = all(1).iter().map(Vec::len).sum();
        assert!((800..1_200).contains(&count), "{count}");
        assert!(all(1).iter().all(|node| node.is_sorted() && !node.is_empty()));
    }
}
