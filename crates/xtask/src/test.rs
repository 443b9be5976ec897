//! `cargo xtask test`: every test, tier by tier, and the counts.
//!
//! - **lint**, with unit: format, lints, the rules for dependencies, the examples of the documentation.
//! - **unit** needs no root: all tests that are not ignored.
//! - **kernel** needs root and `ip_vs`: the test programs named `kernel`.
//! - **api** needs a kube-apiserver and etcd, which it builds: the test programs named `api`; of those the module
//!   `node` runs in the test kernel. Among them are kubectl and Helm at manifests/, and promtool.
//! - **peer** needs the same and the real kube-proxy: the test program named `peer`.
//! - **bench** runs every measurement of `cargo xtask bench` in a tiny size, and counts instructions.
//! - **faults** runs a little of `cargo xtask chaos` and of `cargo xtask soak`.
//! - **cluster**, only if it is named: a whole cluster. Its programs take too long to build on an empty machine.
//! - **arm64**, only if it is named: the demo and tests of what talks to the kernel, on a kernel for 64-bit ARM.
//! - **release**, only if it is named: `cargo xtask release`, and what it makes. It builds the program three times, and
//!   once that of the version before, with which the present one goes together.
//!
//! cargo-nextest runs all of them, each test in a process of its own. What needs a kernel is spread over guests, one
//! for each processor ([`guests`]).
//!
//! The tests of all tiers but unit are `#[ignore]`d, with a reason that names the tier, so that a plain `cargo test`
//! works everywhere. A test that cannot do its work prints `SKIP: ` and the reason; skips are counted and shown, and
//! are failures when `REQUIRE_ALL=1` is set, or when nothing else comes of a tier that was named. What the kernel
//! itself lacks, such as a scheduler, a test prints as `ABSENT: `; this is shown, and is not a failure.

mod arm64;
mod guests;
mod lint;
mod nextest;
mod release;
mod summary;
mod tiers;
mod whole_cluster;

use std::{process::ExitCode, time::Instant};

use clap::ValueEnum as _;
use guest::{
    KernelArgs,
    needs::{self, Task},
    source::Source,
};
use summary::{Report, Summary};

use crate::gate;

/// The command line of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The tier to run; may be given several times [default: all but cluster, arm64 and release]
    #[arg(long = "tier", value_name = "TIER")]
    tiers: Vec<Tier>,
    /// Only the tests whose name contains one of these
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    kernel: KernelArgs,
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Tier {
    /// Pure logic; no root
    Unit,
    /// A real kernel with IPVS
    Kernel,
    /// A real API server
    Api,
    /// The real kube-proxy, for comparison
    Peer,
    /// Every measurement in a tiny size, and the instruction counts
    Bench,
    /// Some faults and some churn under load
    Faults,
    /// A whole cluster: it comes up, some of Kubernetes' own tests, a roll-out under load
    Cluster,
    /// A little of each tier on a kernel for 64-bit ARM
    Arm64,
    /// What is published: made twice, unpacked, pushed, verified
    Release,
}

impl Tier {
    /// Whether it is run if no tier is named.
    const fn is_usual(self) -> bool {
        !matches!(self, Self::Cluster | Self::Arm64 | Self::Release)
    }

    /// What it takes; the tier unit takes nothing.
    const fn task(self) -> Option<Task> {
        Some(match self {
            Self::Unit => return None,
            Self::Kernel => Task::Kernel,
            Self::Api => Task::Api,
            Self::Peer => Task::Peer,
            Self::Bench => Task::Bench,
            Self::Faults => Task::Faults,
            Self::Cluster => Task::ClusterUp,
            Self::Arm64 => Task::Arm64,
            Self::Release => Task::TryRelease,
        })
    }
}

/// Runs the tiers asked for. Fails if a test does, or is skipped under `REQUIRE_ALL=1`, or if a tier that is
/// asked for by name could not run at all.
pub(crate) fn run(args: &Args) -> ExitCode {
    let before = Source::here();
    let strict = std::env::var("REQUIRE_ALL").is_ok_and(|value| value == "1");
    let is_gate = strict && args.tiers.is_empty() && args.names.is_empty();
    if is_gate && let Err(error) = gate::withdraw(before.as_ref()) {
        eprintln!("xtask: {error:#}");
        return ExitCode::FAILURE;
    }
    let wants = |tier: Tier| args.tiers.contains(&tier) || (args.tiers.is_empty() && tier.is_usual());
    let tasks: Vec<Task> =
        Tier::value_variants().iter().filter(|tier| wants(**tier)).filter_map(|tier| tier.task()).collect();
    if let Err(error) = needs::ensure(&tasks, || args.kernel.prefer_for_tests()) {
        eprintln!("xtask: {error:#}");
        // Otherwise the tiers that can run do, and the others are skipped.
        if strict || !args.tiers.is_empty() {
            return ExitCode::FAILURE;
        }
    }
    let mut summary = Summary::default();
    let mut timed = |name, tier: &dyn Fn() -> Report| {
        println!("\n=== {name}");
        let started = Instant::now();
        let report = tier();
        summary.add(name, report, started.elapsed());
    };
    let kernel = || args.kernel.choose_for_tests();
    let names = &args.names;
    for tier in Tier::value_variants().iter().filter(|tier| wants(**tier)) {
        match tier {
            Tier::Unit => {
                timed("unit", &|| tiers::unit(names));
                timed("lint", &lint::all);
            }
            Tier::Kernel => timed("kernel", &|| tiers::kernel(&kernel(), names)),
            Tier::Api => timed("api", &|| tiers::api(&kernel(), names)),
            Tier::Peer => timed("peer", &|| tiers::peer(&kernel(), names)),
            Tier::Bench => timed("bench", &|| tiers::bench(&kernel(), names)),
            Tier::Faults => timed("faults", &|| tiers::faults(&kernel(), names)),
            Tier::Cluster => timed("cluster", &whole_cluster::run),
            Tier::Arm64 => timed("arm64", &|| arm64::run(&args.kernel)),
            Tier::Release => {
                // Names are those of tests.
                if names.is_empty() {
                    timed("release", &release::run);
                }
                timed("upgrades", &|| tiers::upgrades(&kernel(), names));
            }
        }
    }
    print!("\n{summary}");
    if !summary.succeeded(strict, !args.tiers.is_empty()) {
        return ExitCode::FAILURE;
    }
    if is_gate && let Err(error) = gate::note_passed(before.as_ref(), &summary.to_string()) {
        eprintln!("xtask: that everything passed cannot be noted: {error:#}");
    }
    ExitCode::SUCCESS
}
