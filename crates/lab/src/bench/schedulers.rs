//! What schedulers do for clients, with one node and with many.
//!
//! Each client node is a network namespace with its own table of IPVS, as in a cluster; all of them choose among the same
//! pods. These sleep instead of working, so that a guest with one processor has time for all of them, and times are
//! those of queues. A run is repeated with other seeds; one repeat has the same requests with every scheduler.

mod balancer;
pub mod figures;
mod pods;
mod world;

use std::time::Duration;

use anyhow::{Context as _, Result};
use figures::{Row, Scenario, Schedulers, Seen};
use ipvs::Scheduler;
use testkit::kernel_baseline::Size;

use self::{
    balancer::Chooser,
    pods::Capacity,
    world::{Distance, Load, World},
};
use super::data_plane::Effort;

/// 25 requests a second.
const USUAL_POD: Capacity = Capacity::new(2, Duration::from_millis(80), 6);
const SLOW_POD: Capacity = Capacity::new(2, Duration::from_millis(800), 6);
/// 50 requests a second, ten at once.
const WIDE_POD: Capacity = Capacity::new(10, Duration::from_millis(200), 20);
/// 25 requests a second, five at once.
const WARM_POD: Capacity = Capacity::new(5, Duration::from_millis(200), 10);
/// The same once it has warmed up.
const COLD_POD: Capacity = Capacity { cold: Duration::from_secs(1), ..WARM_POD };

/// What is compared.
const CHOOSERS: [(&str, Chooser); 5] = [
    ("random, as nftables mode", Chooser::Chance),
    ("`rr`", Chooser::Scheduler(Scheduler::RR)),
    ("`wlc`", Chooser::Scheduler(Scheduler::WLC)),
    ("`sed`", Chooser::Scheduler(Scheduler::SED)),
    ("`twos`", Chooser::Scheduler(Scheduler::TWOS)),
];

/// What is compared where pods are near or far: the weights of those of this node, of this zone and elsewhere. With weight 0
/// they are not used.
const BY_DISTANCE: [(&str, Scheduler, [u32; 3]); 4] = [
    ("`sed`, weights 100, 10 and 1", Scheduler::SED, [100, 10, 1]),
    ("`sed`, weights 10, 5 and 1", Scheduler::SED, [10, 5, 1]),
    ("`rr` in the zone only", Scheduler::RR, [1, 1, 0]),
    ("`rr` everywhere", Scheduler::RR, [1, 1, 1]),
];

/// What is compared when a pod appears, and how many seconds its slow start takes. With one, kube-ipvs uses `wrr` for `rr`
/// and `wlc` for `lc`.
const NEW_POD: [(&str, Scheduler, Option<u64>); 5] = [
    ("`rr`", Scheduler::RR, None),
    ("`rr`, slow start of 30 s", Scheduler::WRR, Some(30)),
    ("`lc`", Scheduler::LC, None),
    ("`lc`, slow start of 10 s", Scheduler::WLC, Some(10)),
    ("`lc`, slow start of 30 s", Scheduler::WLC, Some(30)),
];

/// How much is measured.
struct Extent {
    repeats: u64,
    /// How long requests come.
    length: Duration,
    /// For how long requests come before and after a pod appears.
    around: [Duration; 2],
    /// Long connections to each pod, on average.
    connections: u32,
}

/// Measures every scenario. There are as many nodes as `size` has Services, and as many pods as endpoints.
pub(super) fn measure(size: Size, effort: Effort) -> Result<Schedulers> {
    let world = World::new(size.services, size.endpoints)?;
    let extent = Extent::new(effort);
    let mut rows = Vec::new();
    for (name, chooser) in CHOOSERS {
        rows.extend(among_equals(&world, &extent, name, chooser).with_context(|| name.to_owned())?);
    }
    for (name, scheduler, weights) in BY_DISTANCE {
        let rows_of = by_distance(&world, &extent, name, scheduler, weights);
        rows.extend(rows_of.with_context(|| name.to_owned())?);
    }
    for (name, scheduler, slow_start) in NEW_POD {
        rows.push(new_pod(&world, &extent, name, scheduler, slow_start).with_context(|| name.to_owned())?);
    }
    Ok(Schedulers { rows })
}

/// The scenarios in which all pods have one weight.
fn among_equals(world: &World, extent: &Extent, name: &str, chooser: Chooser) -> Result<[Row; 4]> {
    let usual = vec![USUAL_POD; world.pods().into()];
    let mut one_slow = usual.clone();
    one_slow.splice(..1, [SLOW_POD]);
    let rate = 0.6 * USUAL_POD.rate() * f64::from(world.pods());
    let request = |pods: &[Capacity]| {
        extent.repeat(|seed| world.request(chooser, pods, extent.load(rate, seed), |_| 1))
    };
    let held = extent.repeat(|seed| world.hold(chooser, extent.connections, seed))?;
    let (held, rolled): (Vec<_>, Vec<_>) = held.into_iter().map(|[held, rolled]| (held, rolled)).unzip();
    Ok([
        Row::new(Scenario::Steady, name, &request(&usual)?)?,
        Row::new(Scenario::SlowPod, name, &request(&one_slow)?)?,
        Row::new(Scenario::Held, name, &held)?,
        Row::new(Scenario::RollingUpdate, name, &rolled)?,
    ])
}

/// The scenarios in which some pods are nearer than others.
fn by_distance(
    world: &World,
    extent: &Extent,
    name: &str,
    scheduler: Scheduler,
    [node, zone, elsewhere]: [u32; 3],
) -> Result<[Row; 2]> {
    let pods = vec![WIDE_POD; world.pods().into()];
    let weight = |distance| match distance {
        Distance::Node => node,
        Distance::Zone => zone,
        Distance::Elsewhere => elsewhere,
    };
    let row = |scenario, share: f64| {
        let rate = share * WIDE_POD.rate() * f64::from(world.pods_of_zone());
        let chooser = Chooser::Scheduler(scheduler);
        let repeats = extent.repeat(|seed| world.request(chooser, &pods, extent.load(rate, seed), weight));
        Row::new(scenario, name, &repeats?)
    };
    Ok([row(Scenario::QuietZone, 0.2)?, row(Scenario::HotZone, 1.5)?])
}

/// The scenario in which a pod appears.
fn new_pod(
    world: &World,
    extent: &Extent,
    name: &str,
    scheduler: Scheduler,
    slow_start: Option<u64>,
) -> Result<Row> {
    let mut pods = vec![WARM_POD; world.pods().into()];
    pods.splice(pods.len() - 1.., [COLD_POD]);
    let rate = 0.6 * WARM_POD.rate() * f64::from(world.pods());
    let [before, after] = extent.around;
    let slow_start = slow_start.map(Duration::from_secs);
    let repeats = extent.repeat(|seed| {
        let load = Load { rate, length: before + after, seed };
        world.grow(Chooser::Scheduler(scheduler), &pods, load, before, slow_start)
    });
    Row::new(Scenario::NewPod, name, &repeats?)
}

impl Extent {
    fn new(effort: Effort) -> Self {
        match effort {
            Effort::Whole => Self {
                repeats: 3,
                length: Duration::from_millis(2_500),
                around: [4, 12].map(Duration::from_secs),
                connections: 20,
            },
            Effort::Tiny => Self {
                repeats: 1,
                length: Duration::from_millis(300),
                around: [100, 300].map(Duration::from_millis),
                connections: 2,
            },
        }
    }

    /// Does something with each seed.
    fn repeat<T>(&self, once: impl FnMut(u64) -> Result<T>) -> Result<Vec<T>> {
        (0..self.repeats).map(once).collect()
    }

    fn load(&self, rate: f64, seed: u64) -> Load {
        Load { rate, length: self.length, seed }
    }
}

impl Row {
    fn new(scenario: Scenario, choice: &str, repeats: &[Seen]) -> Result<Self> {
        let seen = Seen::median(repeats).context("nothing was repeated")?;
        Ok(Self { scenario, choice: choice.to_owned(), seen })
    }
}
