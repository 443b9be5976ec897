//! In the guest: lets the story happen, and writes down the metrics meanwhile.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::Plan;
use super::cluster::{Cluster, Node, USED};
use super::pages::{self, EVERY};
use super::story::STORY;
use super::traffic;

/// Between two changes of endpoints, in seconds.
const CHANGED_EVERY: std::ops::Range<f64> = 2.0..12.0;
/// The step in which time passes.
const TICK: Duration = Duration::from_millis(200);
/// Where a daemon serves its metrics and its health.
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const METRICS: SocketAddr = SocketAddr::new(LOCALHOST, 10249);
const HEALTH: SocketAddr = SocketAddr::new(LOCALHOST, 10256);

/// Records into this directory.
pub(super) fn record(plan: &Plan, pages: &Path) -> Result<()> {
    let cluster = Cluster::start()?;
    eprintln!("dashboard: two nodes are recorded for {} s", plan.seconds);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers = [&cluster.a, &cluster.b].map(|node| {
            traffic::start(node, scope, &stop);
            scope.spawn(|| read(node, pages, &stop))
        });
        let told = tell(&cluster, Duration::from_secs(plan.seconds.into()));
        stop.store(true, Relaxed);
        for reader in readers {
            reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??;
        }
        told
    })
}

/// Lets everything happen in its time, and endpoints come and go all the time.
fn tell(cluster: &Cluster, length: Duration) -> Result<()> {
    let (begun, mut change_due) = (Instant::now(), Duration::ZERO);
    let mut random = fastrand::Rng::with_seed(1);
    let mut story = STORY.iter().peekable();
    while begun.elapsed() < length {
        if let Some((percent, scene)) =
            story.next_if(|(percent, _)| length * *percent / 100 <= begun.elapsed())
        {
            scene(cluster).with_context(|| format!("what happens at {percent}%"))?;
        }
        if change_due <= begun.elapsed() {
            let [first, count] = [random.u8(1..=4), random.u8(2..=4)];
            if let Some(service) = random.choice(&USED) {
                cluster.endpoints(service, first..first + count)?;
            }
            let pause = CHANGED_EVERY.start + random.f64() * (CHANGED_EVERY.end - CHANGED_EVERY.start);
            change_due = begun.elapsed() + Duration::from_secs_f64(pause);
        }
        thread::sleep(TICK);
    }
    Ok(())
}

/// Asks a daemon for its metrics as Prometheus does, and for its health as load balancers and the kubelet do. A daemon that is
/// stopped does not answer.
fn read(node: &Node, pages: &Path, stop: &AtomicBool) -> Result<()> {
    while !stop.load(Relaxed) {
        let next = Instant::now() + EVERY;
        if let Ok(page) = node.lab.node.get(METRICS, "/metrics") {
            pages::keep(pages, node.name, &page.body)?;
        }
        for path in ["/healthz", "/livez"] {
            drop(node.lab.node.get(HEALTH, path));
        }
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(())
}
