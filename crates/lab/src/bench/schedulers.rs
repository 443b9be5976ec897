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
    world::{Load, World},
};
use super::data_plane::Effort;

/// 25 requests a second.
const USUAL_POD: Capacity = Capacity::new(2, Duration::from_millis(80), 6);
const SLOW_POD: Capacity = Capacity::new(2, Duration::from_millis(800), 6);

/// What is compared.
const CHOOSERS: [(&str, Chooser); 5] = [
    ("random, as nftables mode", Chooser::Chance),
    ("`rr`", Chooser::Scheduler(Scheduler::RR)),
    ("`wlc`", Chooser::Scheduler(Scheduler::WLC)),
    ("`sed`", Chooser::Scheduler(Scheduler::SED)),
    ("`twos`", Chooser::Scheduler(Scheduler::TWOS)),
];

/// How much is measured.
struct Extent {
    repeats: u64,
    /// How long requests come.
    length: Duration,
    /// Long connections to each pod, on average.
    connections: u32,
}

/// Measures every scenario. There are as many nodes as `size` has Services, and as many pods as endpoints.
pub(super) fn measure(size: Size, effort: Effort) -> Result<Schedulers> {
    let world = World::new(size.services, size.endpoints)?;
    let extent = Extent::new(effort);
    let mut rows = Vec::new();
    for (name, chooser) in CHOOSERS {
        rows.extend(all_scenarios(&world, &extent, name, chooser).with_context(|| name.to_owned())?);
    }
    Ok(Schedulers { rows })
}

/// What one way to choose pods does in each scenario.
fn all_scenarios(world: &World, extent: &Extent, name: &str, chooser: Chooser) -> Result<[Row; 4]> {
    let usual = vec![USUAL_POD; world.pods().into()];
    let mut one_slow = usual.clone();
    one_slow.splice(..1, [SLOW_POD]);
    let rate = 0.6 * USUAL_POD.rate() * f64::from(world.pods());
    let request = |pods: &[Capacity]| {
        extent.repeat(|seed| world.request(chooser, pods, Load { rate, length: extent.length, seed }))
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

impl Extent {
    fn new(effort: Effort) -> Self {
        match effort {
            Effort::Whole => Self { repeats: 3, length: Duration::from_millis(2_500), connections: 20 },
            Effort::Tiny => Self { repeats: 1, length: Duration::from_millis(300), connections: 2 },
        }
    }

    /// Does something with each seed.
    fn repeat<T>(&self, once: impl FnMut(u64) -> Result<T>) -> Result<Vec<T>> {
        (0..self.repeats).map(once).collect()
    }
}

impl Row {
    fn new(scenario: Scenario, choice: &str, repeats: &[Seen]) -> Result<Self> {
        let seen = Seen::median(repeats).context("nothing was repeated")?;
        Ok(Self { scenario, choice: choice.to_owned(), seen })
    }
}
