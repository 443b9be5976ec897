//! What others publish figures of: the first sync of many Services, a restart, one Service more; and the core alone.

use std::{
    collections::BTreeSet,
    hint::black_box,
    path::Path,
    process, thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use ipvs::Family;
use kubernetes::directory::read_text;
use serde::{Deserialize, Serialize};
use service::{Change, Event, Options, State};
use testkit::{kernel_baseline::Size, objects, pure_path::encoded};
use watcher::{Foreign, Observed, Ownership, diff_everything};

use super::{
    case::Program,
    figures::Memory,
    node::{Node, Running, between},
    syncs::resident_memory,
};
use crate::{statistics::Percentiles, used};

/// How long a program may take for one of these.
const LIMIT: Duration = Duration::from_secs(20 * 60);
/// How long all of it may take. The last Service may begin just before the limit.
pub(super) const TIMEOUT: Duration = LIMIT.saturating_mul(5);
/// Memory of the guest in MiB: kube-proxy, nft and the kernel have rules for 250,000 endpoints at once.
pub(super) const MEMORY: u32 = 8192;
/// Long after a program's last sync, so that it does not wait.
const PAUSE: Duration = Duration::from_millis(2500);
/// The time in which one Service more is not looked for: that would keep the only processor busy.
const UNDISTURBED: Duration = Duration::from_millis(500);

/// Times of a program, in their order; those after one that took longer than the limit are missing too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Published {
    /// From both lists sent until a kernel that had nothing has everything.
    pub first_sync: Option<f64>,
    /// From a second start to the end of its first sync, over the unchanged kernel.
    pub restart: Option<f64>,
    /// From one Service more, whose endpoints are known, until the kernel has it.
    pub one_more: Option<Percentiles>,
    /// After all this, and the peak of both starts. Programs that it starts have their own.
    pub memory: Option<Memory>,
    /// What was missing at the limit, if a time is.
    pub late: Option<String>,
}

/// What the core takes, without a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Core {
    /// From decoded objects to netlink messages, in seconds.
    pub took: f64,
    /// In bytes, the objects included.
    pub memory: Memory,
}

pub(super) fn measure(size: Size, program: Program, more: u32) -> Result<Published> {
    let mut node = Node { patience: LIMIT, ..Node::expecting(size, more)? };
    let mut published = Published::default();
    let running = node.start(program, &[])?;
    let synced = node.synced(&running);
    let Some(synced) = published.in_time(&running, synced)? else { return Ok(published) };
    published.first_sync = Some(between(node.api.lists()?.complete, synced.end())?);
    let first_peak = resident_memory(&running)?.peak;
    running.kill()?;

    let running = node.start(program, &[])?;
    let synced = node.synced(&running);
    let Some(synced) = published.in_time(&running, synced)? else { return Ok(published) };
    published.restart = Some(between(running.started, synced.end())?);

    let (begun, mut times) = (Instant::now(), Vec::new());
    while node.size.services < size.services + more && begun.elapsed() < LIMIT {
        thread::sleep(PAUSE);
        let (before, written) = (node.syncs()?.last_ended, SystemTime::now());
        node.api.change(&objects::service(node.size.services));
        node.size.services += 1;
        thread::sleep(UNDISTURBED);
        let synced = node.synced_after(&running, before);
        let Some(synced) = published.in_time(&running, synced)? else { return Ok(published) };
        times.push(between(written, synced.end())?);
    }
    published.one_more = Percentiles::from_times(times);
    let Memory { steady, peak } = resident_memory(&running)?;
    published.memory = Some(Memory { steady, peak: peak.max(first_peak) });
    Ok(published)
}

impl Published {
    /// What has been waited for, or none if it takes too long. Fails if the program has ended.
    fn in_time<T>(&mut self, running: &Running, waited: Result<T>) -> Result<Option<T>> {
        match waited {
            Ok(found) => Ok(Some(found)),
            Err(error) => {
                // A process that has ended has no memory.
                resident_memory(running).with_context(|| format!("{error:#}"))?;
                eprintln!("{error:#}");
                self.late = Some(error.root_cause().to_string());
                Ok(None)
            }
        }
    }
}

/// Measures the core. Messages for VIPs are not a part of it: they are made where they are sent.
pub(super) fn core(size: Size) -> Result<Core> {
    // The first time takes pages of the program itself.
    compute(Size { services: 1, endpoints: 1 })?;
    compute(size)
}

fn compute(size: Size) -> Result<Core> {
    let resident = || used::memory(process::id());
    let [before, _] = resident()?;
    let (mut services, mut slices) = (Vec::new(), Vec::new());
    for object in
        (0..size.services).flat_map(|number| [objects::service(number), objects::slice(size, number)])
    {
        for change in read_text(Path::new("object.json"), object.to_string().as_bytes(), "node")? {
            match change {
                Change::Services(Event::Replace(read)) => services.extend(read),
                Change::Slices(Event::Replace(read)) => slices.extend(read),
                _ => {}
            }
        }
    }

    let begun = Instant::now();
    let mut state = State::new(Options::new("node"));
    state.apply(Change::Services(Event::Replace(services)));
    state.apply(Change::Slices(Event::Replace(slices)));
    let ours =
        Ownership { families: BTreeSet::from([Family::V4]), exclude: Vec::new(), foreign: Foreign::Delete };
    let mut image = Observed::default();
    let plan = diff_everything(&state, &image, &ours);
    let messages = black_box(encoded(&plan));
    let took = begun.elapsed().as_secs_f64();

    ensure!(plan.len() > (size.services * (1 + size.endpoints)) as usize, "only {} operations", plan.len());
    drop(messages);
    plan.operations().for_each(|operation| image.carried_out(&operation));
    drop(plan);
    let [steady, peak] = resident()?.map(|kibibytes| f64::from(kibibytes.saturating_sub(before)) * 1024.0);
    black_box((state, image));
    Ok(Core { took, memory: Memory { steady, peak } })
}
