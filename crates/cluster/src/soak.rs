//! `cargo xtask cluster soak`: hours of Kubernetes' own tests, with faults on one worker and two thousand Services that
//! come and go beside them.
//!
//! A test may fail while somebody empties its node's tables; it must pass afterwards. What counts is what the daemons
//! are at the end: no larger than after a fresh start, and with nothing else in the kernel.

mod daemon;
mod faults;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::crowd;
use crate::e2e;
use crate::kubectl::{self, patiently};
use crate::load_balancer::LoadBalancer;
use crate::node::Node;
use crate::proxy::Proxy;
use crate::state::Cluster;
use daemon::{Restarts, Size, kernel_state, start_afresh};

/// How much larger a daemon may be than one that has just started: an allocator keeps some of what it was given.
const TOLERATED_KIB: u64 = 8192;
/// Descriptors of requests that are being answered.
const TOLERATED_DESCRIPTORS: u64 = 2;

/// How long a daemon that has started is left alone before it is measured.
const SETTLES: Duration = Duration::from_secs(60);

/// How long the namespaces of tests take to go.
const IDLE_WITHIN: Duration = Duration::from_secs(600);

/// The command line of `cargo xtask cluster soak`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// After how many minutes no other round of tests is begun
    #[arg(long, default_value_t = 120)]
    minutes: u64,
    /// Only tests whose name matches this regular expression [default: as cargo xtask e2e, but for those that may not
    /// run beside others]
    focus: Option<String>,
    /// The seed for the faults and their moments
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs it. Fails if a daemon has grown or forgot something, or if a test does not pass afterwards.
pub(crate) fn run(args: &Args) -> Result<()> {
    let cluster = Arc::new(Cluster::open()?);
    ensure!(
        cluster.proxy == Proxy::KubeIpvs,
        "this looks at kube-ipvs: it begins with cargo xtask cluster up"
    );
    let _balancer = LoadBalancer::start(&cluster);
    crowd::delete_all()?;
    let services = services()?;
    let restarts = restarts(&cluster)?;
    let done = under_faults(&cluster, args);
    crowd::delete_all()?;
    let (failed, kills) = done?;

    println!("the faults have ended; {} tests failed meanwhile and are repeated", failed.len());
    let mut complaints = e2e::repeated(&cluster, &failed)?;
    patiently(IDLE_WITHIN, || {
        let now = self::services()?;
        ensure!(now == services, "there are still other Services than at the beginning: {now:?}");
        Ok(())
    })?;
    let victim = victim(&cluster)?;
    for ((node, before), now) in cluster.nodes.iter().zip(restarts).zip(self::restarts(&cluster)?) {
        let expected = before.count + if node == victim { u64::from(kills) } else { 0 };
        if now.count != expected || now.reason == "OOMKilled" {
            complaints.push(format!(
                "{}: the daemon was started again {} times instead of {expected}, last after {}",
                node.name, now.count, now.reason
            ));
        }
    }
    for node in cluster.workers() {
        complaints.extend(compare(&cluster, node)?);
    }
    ensure!(complaints.is_empty(), "{}", complaints.join("; "));
    Ok(())
}

/// The worker on which the faults are.
fn victim(cluster: &Cluster) -> Result<&Node> {
    cluster.workers().first().context("a cluster without workers")
}

fn restarts(cluster: &Cluster) -> Result<Vec<Restarts>> {
    cluster.nodes.iter().map(Restarts::of_daemon).collect()
}

/// Round after round of tests; the names of those that failed in one, and how often the daemon was killed.
fn under_faults(cluster: &Cluster, args: &Args) -> Result<(BTreeSet<String>, u32)> {
    let victim = victim(cluster)?;
    let length = Duration::from_secs(args.minutes * 60);
    let (started, stop) = (Instant::now(), AtomicBool::new(false));
    thread::scope(|scope| {
        let faults = scope.spawn(|| faults::inject(cluster, victim, args.seed, length, &stop));
        let rounds = || {
            let mut failed = BTreeSet::new();
            for round in 1.. {
                println!("round {round}, after {} minutes", started.elapsed().as_secs() / 60);
                let crowd = scope.spawn(|| crowd::NAMESPACES.iter().try_for_each(|name| crowd::make(name)));
                let done = e2e::round(cluster, &format!("soak-{round}"), args.focus.as_deref());
                crowd.join().map_err(|_| anyhow!("a thread panicked"))??;
                failed.extend(done?);
                crowd::delete_all()?;
                if started.elapsed() > length {
                    break;
                }
            }
            anyhow::Ok(failed)
        };
        let failed = rounds();
        stop.store(true, Ordering::Relaxed);
        let injected = faults.join().map_err(|_| anyhow!("a thread panicked"))?;
        Ok((failed?, injected?.kills()))
    })
}

/// What differs between a node's daemon and kernel now and after a fresh start with an empty kernel.
fn compare(cluster: &Cluster, node: &Node) -> Result<Vec<String>> {
    let name = &node.name;
    let (size, kernel) = (Size::of_daemon(cluster, node)?, kernel_state(cluster, node)?);
    start_afresh(cluster, node)?;
    thread::sleep(SETTLES);
    let fresh = Size::of_daemon(cluster, node)?;
    println!("{name}: {size}; after a fresh start {fresh}");
    let mut complaints = Vec::new();
    if size.memory_kib > fresh.memory_kib + TOLERATED_KIB {
        complaints.push(format!("{name}: the daemon has grown to {size} from {fresh}"));
    }
    if size.descriptors > fresh.descriptors + TOLERATED_DESCRIPTORS {
        complaints.push(format!(
            "{name}: the daemon has {} descriptors open, not {}",
            size.descriptors, fresh.descriptors
        ));
    }
    let same = patiently(Duration::from_secs(60), || {
        let fresh = kernel_state(cluster, node)?;
        let lines = |from: &BTreeSet<String>, without: &BTreeSet<String>| {
            from.difference(without).cloned().collect::<Vec<_>>().join(", ")
        };
        let (more, less) = (lines(&kernel, &fresh), lines(&fresh, &kernel));
        ensure!(more.is_empty() && less.is_empty(), "more: {more}; less: {less}");
        Ok(())
    });
    if let Err(difference) = same {
        complaints.push(format!("{name}: the kernel differs from that of a fresh start: {difference}"));
    }
    Ok(complaints)
}

/// Namespaces and names of all of them.
fn services() -> Result<Vec<String>> {
    let names = "--output=jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name}{'\\n'}{end}";
    let printed = kubectl::output(&["get", "services", "--all-namespaces", names])?;
    Ok(printed.lines().map(str::to_owned).collect())
}
