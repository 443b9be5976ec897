//! `cargo xtask cluster soak`: hours of Kubernetes' own tests, with faults on one worker and two thousand Services that
//! come and go beside them.
//!
//! A test may fail while its node's tables are emptied; it must pass afterwards. What counts is what the daemons
//! are at the end: no larger than after a fresh start and the same crowd, and with nothing else in the kernel.

mod faults;

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use faults::{KernelState, Restarts, Size};

use crate::{
    e2e,
    kubectl::{self, patiently},
    load_balancer::LoadBalancer,
    node::Node,
    proxy::{self, Proxy},
    scenario::many_services,
    state::Cluster,
};

/// How much more a daemon may have allocated than a fresh one: an allocator keeps some of what it was given.
const TOLERATED_KIB: u64 = 4096;
/// Descriptors of requests that are being answered.
const TOLERATED_DESCRIPTORS: u64 = 2;

/// How long daemons are left alone before they are measured: longer than two sync periods, so that all is repaired.
const SETTLES: Duration = Duration::from_secs(75);

/// How long the namespaces of tests take to go.
const IDLE_WITHIN: Duration = Duration::from_secs(600);

/// The command line of `cargo xtask cluster soak`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// After how many minutes no other round of tests is begun
    #[arg(long, default_value_t = 120)]
    minutes: u64,
}

/// Runs it. Fails if a daemon has grown or forgot something, or if a test does not pass afterwards.
pub(crate) fn run(args: &Args) -> Result<()> {
    let cluster = Cluster::open()?;
    let is_ours = cluster.proxy == Proxy::KubeIpvs;
    ensure!(is_ours, "this looks at kube-ipvs: it begins with cargo xtask cluster up");
    proxy::check(&cluster)?;
    let _balancer = LoadBalancer::start();
    many_services::delete_all()?;
    let before = Idle::now(&cluster)?;

    let mut complaints = Vec::new();
    let (failed, kills) = under_faults(&cluster, args, &mut complaints)?;
    println!("the faults have ended; {} tests failed meanwhile and are repeated", failed.len());
    match e2e::repeated(&cluster, &failed) {
        Ok(again) => complaints.extend(again.iter().map(|name| format!("fails without faults too: {name}"))),
        Err(error) => complaints.push(format!("the tests could not be repeated: {error:#}")),
    }
    if let Err(error) = patiently(IDLE_WITHIN, || before.expect_no_more_services()) {
        complaints.push(format!("{error:#}"));
    }
    for looked in [before.restarts_besides(&cluster, kills), compare(&cluster)] {
        complaints.extend(looked.unwrap_or_else(|error| vec![format!("{error:#}")]));
    }
    ensure!(complaints.is_empty(), "{}", complaints.join("; "));
    Ok(())
}

/// What there is before anything happens.
struct Idle {
    services: Vec<String>,
    restarts: Vec<Restarts>,
}

impl Idle {
    fn now(cluster: &Cluster) -> Result<Self> {
        let restarts = cluster.nodes.iter().map(Restarts::of_daemon).collect::<Result<_>>()?;
        Ok(Self { services: services()?, restarts })
    }

    /// Nothing of the rounds is left. What was there before may have gone: it may have been a test's.
    fn expect_no_more_services(&self) -> Result<()> {
        let left: Vec<_> = services()?.into_iter().filter(|name| !self.services.contains(name)).collect();
        ensure!(left.is_empty(), "Services of the rounds are left: {left:?}");
        Ok(())
    }

    /// How often daemons were started again by other causes than these kills.
    fn restarts_besides(&self, cluster: &Cluster, kills: u32) -> Result<Vec<String>> {
        let victim = cluster.first_worker()?;
        let mut complaints = Vec::new();
        for (node, before) in cluster.nodes.iter().zip(&self.restarts) {
            let now = Restarts::of_daemon(node)?;
            let expected = before.count + if node == victim { u64::from(kills) } else { 0 };
            if now.count != expected || now.reason == "OOMKilled" {
                complaints.push(format!(
                    "{}: the daemon was started again {} times instead of {expected}, last after {}",
                    node.name, now.count, now.reason
                ));
            }
        }
        Ok(complaints)
    }
}

/// Namespaces and names of all of them.
fn services() -> Result<Vec<String>> {
    let names = "--output=jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name}{'\\n'}{end}";
    let printed = kubectl::output_of(&["get", "services", "--all-namespaces", names])?;
    Ok(printed.lines().map(str::to_owned).collect())
}

/// Round after round of tests, and fault after fault: the names of the tests that failed in one, and how often the
/// daemon was killed. A round that goes wrong as a whole is a complaint and does not end it: hours would be lost.
fn under_faults(
    cluster: &Cluster,
    args: &Args,
    complaints: &mut Vec<String>,
) -> Result<(BTreeSet<String>, u32)> {
    let victim = cluster.first_worker()?;
    let length = Duration::from_secs(args.minutes * 60);
    let (started, stop) = (Instant::now(), AtomicBool::new(false));
    let mut failed = BTreeSet::new();
    let injected = thread::scope(|scope| {
        let faults = scope.spawn(|| faults::inject(victim, length, &stop));
        for number in 1.. {
            println!("round {number}, after {} minutes", started.elapsed().as_secs() / 60);
            let (tests, crowd) = round(cluster, number);
            let wrong = [tests.map(|names| failed.extend(names)), crowd].into_iter().filter_map(Result::err);
            complaints.extend(wrong.map(|error| format!("round {number}: {error:#}")));
            if started.elapsed() > length {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        faults.join().map_err(|_| anyhow!("a thread panicked"))
    })?;
    println!("{} minutes, faults on {}: {injected}", started.elapsed().as_secs() / 60, victim.name);
    complaints.extend(injected.complaint());
    Ok((failed, injected.kills()))
}

/// One round, with a crowd that comes beside it and goes after it: the names of the tests that failed, and what came of
/// the crowd, which leaves the tests what they were.
fn round(cluster: &Cluster, number: u32) -> (Result<BTreeSet<String>>, Result<()>) {
    let (tests, made) = thread::scope(|scope| {
        let crowd = scope.spawn(many_services::make_all);
        let tests = e2e::round(cluster, &format!("soak-{number}"));
        (tests, crowd.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
    });
    // It is deleted whatever there is of it.
    let deleted = many_services::delete_all();
    (tests, made.and(deleted))
}

/// What differs between each node's daemon and kernel now, and after a fresh start with an empty kernel and one crowd
/// that came and went.
fn compare(cluster: &Cluster) -> Result<Vec<String>> {
    thread::sleep(SETTLES);
    let nodes = cluster.nodes.iter().map(Measured::now).collect::<Result<Vec<_>>>()?;
    cluster.nodes.iter().try_for_each(faults::start_afresh)?;
    many_services::make_all()?;
    many_services::delete_all()?;
    thread::sleep(SETTLES);
    let mut complaints = Vec::new();
    for before in &nodes {
        let fresh = Measured::now(before.node)?;
        println!("{}: {}; after a fresh start {}", before.node.name, before.size, fresh.size);
        complaints.extend(before.is_worse_than(&fresh));
    }
    Ok(complaints)
}

/// A node's daemon, and its kernel.
struct Measured<'a> {
    node: &'a Node,
    size: Size,
    kernel: KernelState,
}

impl<'a> Measured<'a> {
    fn now(node: &'a Node) -> Result<Self> {
        let (size, kernel) = (Size::of_daemon(node)?, faults::kernel_state(node)?);
        Ok(Self { node, size, kernel })
    }

    fn is_worse_than(&self, fresh: &Self) -> Vec<String> {
        let name = &self.node.name;
        let mut complaints = Vec::new();
        if self.size.memory_kib > fresh.size.memory_kib + TOLERATED_KIB {
            complaints.push(format!("{name}: the daemon has grown to {} from {}", self.size, fresh.size));
        }
        if self.size.descriptors > fresh.size.descriptors + TOLERATED_DESCRIPTORS {
            complaints.push(format!("{name}: the daemon has {} and not {}", self.size, fresh.size));
        }
        let lines = |from: &KernelState, without: &KernelState| {
            from.difference(without).cloned().collect::<Vec<_>>().join(", ")
        };
        let (more, less) = (lines(&self.kernel, &fresh.kernel), lines(&fresh.kernel, &self.kernel));
        if !more.is_empty() || !less.is_empty() {
            complaints.push(format!(
                "{name}: the kernel differs from that of a fresh start: more: {more}; less: {less}"
            ));
        }
        complaints
    }
}
