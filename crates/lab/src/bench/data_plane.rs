//! The way of a packet: what the processor does for a connection, a request, a datagram and a stream through each
//! program's rules, and through IPVS set up by hand.
//!
//! Every variant has a node of its own, with pods and a client, side by side in one guest: IPVS, nf_tables and conntrack
//! are a network namespace's own. Each program writes its state and ends, so that only the kernel works for the packets.
//! One variant is measured right after the other, round by round; so whatever else the machine does meets all of them.

mod by_hand;
mod cluster;
pub mod figures;
pub mod processor_clock;
mod scene;
mod traffic;
mod way;

use std::{thread, time::Duration};

use anyhow::{Context as _, Result};
pub use figures::Variant;
use serde::{Deserialize, Serialize};
use testkit::{
    kernel_baseline::Size,
    kube_proxy::{self, Mode},
};
pub use way::{Traffic, Way};

use self::{
    cluster::Cluster,
    figures::{DataPlane, Estimation, Missing, Rounds, Row},
    processor_clock::ProcessorClock,
    scene::Scene,
};
use super::case::Program;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effort {
    /// Eight rounds, each of about a twentieth of a second.
    Whole,
    /// One round of a few packets, to see that it works.
    Tiny,
}

impl Effort {
    const fn rounds(self) -> usize {
        match self {
            Self::Whole => 8,
            Self::Tiny => 1,
        }
    }

    /// In two modes kube-proxy takes half a minute to set up whatever little there is.
    fn takes(self, variant: Variant) -> bool {
        let is_slow = [Mode::Ipvs, Mode::Iptables].map(|mode| Variant::Program(Program::KubeProxy(mode)));
        self == Self::Whole || !is_slow.contains(&variant)
    }

    const fn operations(self, traffic: Traffic) -> u32 {
        match self {
            Self::Whole => traffic.operations(),
            Self::Tiny => 4,
        }
    }

    /// How long estimators may find out how fast the processor is.
    const fn settling(self) -> Duration {
        Duration::from_secs(match self {
            Self::Whole => 10,
            Self::Tiny => 0,
        })
    }

    /// How long nothing happens.
    const fn idle(self) -> Duration {
        Duration::from_millis(match self {
            Self::Whole => 20_000,
            Self::Tiny => 20,
        })
    }
}

pub(super) fn measure(size: Size, effort: Effort) -> Result<DataPlane> {
    let clock = ProcessorClock::here()?;
    let cluster = Cluster::new(size.services);
    let (mut scenes, mut missing) = (Vec::new(), Vec::new());
    for variant in Variant::ALL.into_iter().filter(|variant| effort.takes(*variant)) {
        let is_kube_proxy = matches!(variant, Variant::Program(Program::KubeProxy(_)));
        if is_kube_proxy && kube_proxy::binary().is_none() {
            continue;
        }
        eprintln!("setting up: {variant}");
        match Scene::new(variant, &cluster) {
            Ok(scene) => scenes.push(scene),
            // That kube-proxy takes too long is a result.
            Err(error) if is_kube_proxy => {
                missing.push(Missing { variant, reason: error.root_cause().to_string() });
            }
            Err(error) => return Err(error.context(variant.to_string())),
        }
    }
    let mut rows = Vec::new();
    for traffic in Traffic::ALL {
        for (way, family) in Way::in_both_families() {
            eprintln!("measuring: {traffic}, {way}");
            let mut rounds = Rounds::default();
            for round in 0..effort.rounds() {
                // None is always the first.
                for place in 0..scenes.len() {
                    let Some(scene) = scenes.get((place + round) % scenes.len()) else { continue };
                    let operations = effort.operations(traffic);
                    let spent = scene
                        .measure(traffic, (way, family), operations, &clock)
                        .with_context(|| format!("{}: {traffic}, {way}", scene.variant))?;
                    rounds.note(scene.variant, spent);
                }
            }
            rows.push(Row { traffic, way, family, costs: rounds.costs() });
        }
    }
    let estimation = estimation(&scenes, effort, &clock)?;
    Ok(DataPlane { rows, missing, estimation })
}

/// What the kernel's estimators take of a processor while nothing happens, for what was set up by hand.
fn estimation(scenes: &[Scene], effort: Effort, clock: &ProcessorClock) -> Result<Option<Estimation>> {
    let Some(scene) = scenes.iter().find(|scene| scene.variant == Variant::ByHand) else { return Ok(None) };
    let without = Scene::idle(effort, clock)?;
    if !scene.estimate(true) {
        return Ok(None);
    }
    // They first find out how fast the processor is.
    thread::sleep(effort.settling());
    let with = Scene::idle(effort, clock)?;
    scene.estimate(false);
    Ok(Some(Estimation { without, with }))
}
