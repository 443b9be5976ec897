//! `cargo xtask scale`: what many nodes cost a real API server, for docs/evidence/scale.md.
//!
//! etcd and kube-apiserver run on this machine's loopback, without a guest: nothing here touches the kernel.
//! A node is the three requests that kube-ipvs makes, as the service account of manifests/base, each over its
//! own connection. Its events are counted, not decoded, so that many nodes fit beside the server.
//!
//! `simulation` needs none of this: it computes what many nodes do to one Service.

mod changes;
mod cluster;
mod feed;
mod lists;
mod simulation;
mod storm;

use std::process::ExitCode;

use anyhow::Result;
use cluster::Cluster;
use testkit::kernel_baseline::Size;

/// The command line of `cargo xtask scale`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Services
    #[arg(long, default_value_t = 10_000)]
    services: u32,
    /// Endpoints of each
    #[arg(long, default_value_t = 5)]
    endpoints: u32,
    /// How many nodes have their watches cut at once
    #[arg(long, default_value_t = 100)]
    cut: u32,
    /// Nodes of the simulation
    #[arg(long, default_value_t = 5_000)]
    nodes: u32,
    /// What to measure; if none is named, everything but the simulation
    #[arg(value_enum, value_name = "SUBJECT")]
    subjects: Vec<Subject>,
}

/// What can be measured.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Subject {
    /// Complete lists in each encoding, and by several nodes at once
    Lists,
    /// Changes of EndpointSlices while many nodes watch
    Changes,
    /// The API server is killed and restarted
    Storm,
    /// Ejection, spill-over and slow starts of many nodes, in a simulation
    Simulation,
}

/// Measures, and prints tables.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let wanted = |subject| args.subjects.is_empty() || args.subjects.contains(&subject);
    if args.subjects.contains(&Subject::Simulation) {
        simulation::measure(args.nodes)?;
        if args.subjects.iter().all(|subject| *subject == Subject::Simulation) {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let size = Size { services: args.services, endpoints: args.endpoints };
    eprintln!("xtask: writing {} Services × {}", size.services, size.endpoints);
    let cluster = Cluster::start(size)?;
    if wanted(Subject::Lists) {
        lists::measure(&cluster)?;
    }
    if wanted(Subject::Changes) {
        changes::measure(&cluster)?;
    }
    if wanted(Subject::Storm) {
        storm::measure(&cluster, args.cut)?;
    }
    Ok(ExitCode::SUCCESS)
}
