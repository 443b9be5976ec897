//! What it costs to know whether endpoints answer, and to eject those that do not: the daemon's processor time while
//! clients connect to a tenth of all Services, and nothing else happens.

use std::{
    fs,
    net::{IpAddr, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use guest::programs::processor_time;
use serde::{Deserialize, Serialize};
use serde_json::json;
use testkit::{
    kernel_baseline::{PORT, Size, TARGET_PORT, vip},
    lab::{Host, Lab},
    objects::with,
};

use super::{
    api::Objects,
    case::{Binding, Ejecting, Program},
    data_plane::Effort,
    figures::Figures,
    node::Node,
};
use crate::used;

/// Of all Services, this part has clients.
const PART: u32 = 10;
/// New connections in a second, to one of these Services after the other.
const CONNECTIONS: u32 = 200;
/// How long a client waits.
const PATIENCE: Duration = Duration::from_secs(5);
/// No periodic comparison is due meanwhile.
const NEVER: &str = "--ipvs-sync-period=1h";
/// Where all endpoints are.
const PODS: &str = "10.244.0.0/16";
/// The thread of the daemon that reads the counters.
const READER: &str = "liveness";
/// How often it is looked whether it sleeps: more often than it reads.
const SAMPLED_EVERY: Duration = Duration::from_millis(100);

/// What the daemon takes, in parts of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// Before any client connects.
    pub quiet: f64,
    /// While clients connect: the thread that reads the counters,
    pub reader: f64,
    /// and all others.
    pub others: f64,
    /// Seconds from one reading to the next then.
    pub between_readings: f64,
}

/// How long everything takes.
struct Lengths {
    settle: Duration,
    quiet: Duration,
    busy: Duration,
}

impl From<Effort> for Lengths {
    fn from(effort: Effort) -> Self {
        let [settle, quiet, busy] = match effort {
            Effort::Whole => [15, 30, 180],
            Effort::Tiny => [1, 1, 5],
        }
        .map(Duration::from_secs);
        Self { settle, quiet, busy }
    }
}

/// Processor time so far, in seconds.
struct Taken {
    process: f64,
    reader: f64,
    at: Instant,
}

pub(super) fn measure(size: Size, ejecting: Ejecting, effort: Effort) -> Result<Figures> {
    let Lengths { settle, quiet, busy } = effort.into();
    let lab = Lab::new(0, TARGET_PORT)?;
    let pods = lab.neighbour("pods0", "pods", [192, 168, 60, 2], "fd00:60::2")?;
    pods.serve(TARGET_PORT)?;
    pods.ip(&format!("route add local {PODS} dev lo"))?;
    lab.node.ip(&format!("route add {PODS} via {}", pods.ipv4))?;
    let active = size.services.div_ceil(PART);
    let objects = objects(size, ejecting, active, lab.node.ipv4.into());
    let node = Node::with(lab, size, objects)?;
    let running = node.start(Program::KubeIpvs(Binding::Route), &[NEVER])?;
    node.synced(&running)?;
    thread::sleep(settle);

    let begin = Taken::now(running.id())?;
    thread::sleep(quiet);
    let quiet = Taken::now(running.id())?.since(&begin);
    let stop = Arc::new(AtomicBool::new(false));
    let clients = clients(&node.lab.client, active, Arc::clone(&stop))?;
    thread::sleep(settle);
    let begin = Taken::now(running.id())?;
    let readings = readings(running.id(), busy)?;
    let taken = Taken::now(running.id())?.since(&begin);
    stop.store(true, Relaxed);
    let answered = clients.join().map_err(|_| anyhow::anyhow!("the clients panicked"))???;
    ensure!(answered > active, "only {answered} connections");
    let status = running.kube_ipvs()?.status(&node.lab.node)?;
    ensure!(status.get("ejected").is_some_and(|count| count == 0), "endpoints were ejected: {status:#}");
    Ok(Figures::Ejection(Shares {
        quiet: quiet.process,
        reader: taken.reader,
        others: taken.process - taken.reader,
        between_readings: busy.as_secs_f64() / f64::from(readings.max(1)),
    }))
}

/// The cluster, in which so many of the Services eject. Clients use the first ones.
fn objects(size: Size, ejecting: Ejecting, active: u32, node: IpAddr) -> Objects {
    let mut objects = Objects::of_size(size, &[node]);
    let count = match ejecting {
        Ejecting::None => 0,
        Ejecting::Active => active,
        Ejecting::All => size.services,
    };
    for service in objects.services.iter_mut().take(count as usize) {
        let annotations = json!({"kube-ipvs.io/eject": "silent,refusing"});
        *service = with(service.take(), "/metadata", "annotations", annotations);
    }
    objects
}

/// Connects to one of the first Services after the other; how many connections were answered.
fn clients(
    from: &Host,
    active: u32,
    stop: Arc<AtomicBool>,
) -> Result<thread::JoinHandle<Result<Result<u32>>>> {
    from.spawn(move || {
        let mut next = Instant::now();
        for (count, service) in (0..).zip((0..active).cycle()) {
            if stop.load(Relaxed) {
                return Ok(count);
            }
            let to = SocketAddr::new(vip(service).into(), PORT);
            TcpStream::connect_timeout(&to, PATIENCE).with_context(|| to.to_string())?;
            next += Duration::from_secs(1) / CONNECTIONS;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(0)
    })
}

/// How often the thread wakes up and reads within this time.
fn readings(process: u32, length: Duration) -> Result<u32> {
    let task = reader(process)?;
    let switches = || -> Result<u32> {
        let status = fs::read_to_string(format!("{task}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|line| line.trim().parse().ok()).context("no context switches")
    };
    let begun = Instant::now();
    let (mut readings, mut before, mut ran) = (0, switches()?, false);
    while begun.elapsed() < length {
        thread::sleep(SAMPLED_EVERY);
        let now = switches()?;
        readings += u32::from(now != before && !ran);
        (ran, before) = (now != before, now);
    }
    Ok(readings)
}

/// The directory of the thread that reads the counters.
fn reader(process: u32) -> Result<String> {
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let path = task?.path().to_string_lossy().into_owned();
        if fs::read_to_string(format!("{path}/comm")).is_ok_and(|name| name.trim() == READER) {
            return Ok(path);
        }
    }
    anyhow::bail!("no thread {READER}")
}

impl Taken {
    fn now(process: u32) -> Result<Self> {
        let stat = fs::read_to_string(format!("{}/stat", reader(process)?))?;
        let reader = processor_time(&stat).context("a stat without times")?;
        Ok(Self { process: used::processor(process)?, reader: reader.as_secs_f64(), at: Instant::now() })
    }

    /// The parts of a processor since then.
    fn since(&self, begin: &Self) -> Share {
        let passed = (self.at - begin.at).as_secs_f64();
        Share {
            process: (self.process - begin.process) / passed,
            reader: (self.reader - begin.reader) / passed,
        }
    }
}

/// Parts of a processor.
struct Share {
    process: f64,
    reader: f64,
}
