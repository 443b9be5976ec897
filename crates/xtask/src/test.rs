//! `cargo xtask test`: every test, tier by tier, and the counts.
//!
//! - **unit** needs no root: format, lints, `cargo test` with documentation examples.
//! - **kernel** needs root and `ip_vs`: the integration tests whose target is named `kernel_…`, all
//!   in one boot of the test kernel.
//! - **api** needs a kube-apiserver and etcd, which it builds: the targets named `api_…`, and of those
//!   `api_node…` in the test kernel. Among them are kubectl and Helm at manifests/, and promtool.
//! - **peer** needs the same and the real kube-proxy: the targets named `peer_node…`.
//! - **bench** runs every measurement of `cargo xtask bench` in a tiny size, and counts instructions.
//! - **faults** runs a little of `cargo xtask chaos` and of `cargo xtask soak`.
//!
//! The tests of all but the first are `#[ignore]`d, with a reason that names the tier, so that a plain
//! `cargo test` works everywhere. A test that cannot do its work prints `SKIP: ` and the reason; skips are
//! counted and shown, and are failures when `REQUIRE_ALL=1` is set, or when nothing else comes of a tier that
//! was asked for by name. What the kernel itself does not have,
//! such as a scheduler, a test prints as `ABSENT: `; this is shown, and is not a failure, because there is
//! nothing to test.

mod bench_tier;
mod faults_tier;
mod guest_tier;
mod libtest;
mod tally;
mod unit;

use std::process::ExitCode;
use std::time::Instant;

use guest::KernelArgs;
use tally::{Report, Tally};

/// The command line of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The tier to run; may be given several times [default: all]
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
}

/// Runs the tiers asked for. Fails if a test does, or is skipped under `REQUIRE_ALL=1`, or if a tier that is
/// asked for by name could not run at all.
pub(crate) fn run(args: &Args) -> ExitCode {
    let wants = |tier| args.tiers.is_empty() || args.tiers.contains(&tier);
    let mut tally = Tally::default();
    let mut timed = |name, tier: &dyn Fn() -> Report| {
        println!("\n=== {name}");
        let started = Instant::now();
        let report = tier();
        tally.add(name, report, started.elapsed());
    };
    if wants(Tier::Unit) {
        timed("lint", &unit::lint);
        timed("unit", &|| unit::tests(&args.names));
    }
    if wants(Tier::Kernel) {
        timed("kernel", &|| guest_tier::kernel(&args.kernel.choose_for_tests(), &args.names));
    }
    if wants(Tier::Api) {
        timed("api", &|| guest_tier::api(&args.kernel.choose_for_tests(), &args.names));
    }
    if wants(Tier::Peer) {
        timed("peer", &|| guest_tier::peer(&args.kernel.choose_for_tests(), &args.names));
    }
    if wants(Tier::Bench) {
        timed("bench", &|| bench_tier::all(&args.kernel.choose_for_tests(), &args.names));
    }
    if wants(Tier::Faults) {
        timed("faults", &|| faults_tier::small(&args.kernel.choose_for_tests(), &args.names));
    }
    print!("\n{tally}");
    let strict = std::env::var("REQUIRE_ALL").is_ok_and(|value| value == "1");
    if tally.succeeded(strict, !args.tiers.is_empty()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
